"""Single damages to a small pipeline: a statement dropped, doubled, swapped, moved; a number
changed."""

import random
from collections.abc import Callable
from dataclasses import replace

from tests.pipelines.small import SECTIONS, Pipeline, Stmt

SYNC = ("wait", "arrive", "sync", "commit", "pending")
TRIES = 50


def damaged(p: Pipeline, rng: random.Random) -> tuple[str, Pipeline]:
    """One random damage and what it is; the pipeline itself if nothing fits."""
    for _ in range(TRIES):
        found = rng.choice(DAMAGES)(p, rng)
        if found is not None:
            return found
    return "nothing", p


def _place(
    p: Pipeline, rng: random.Random, kinds: tuple[str, ...]
) -> tuple[int, str, int, list[Stmt]] | None:
    places = [
        (n, section, i)
        for n, r in enumerate(p.roles)
        for section in SECTIONS
        for i, s in enumerate(r.section(section))
        if s.kind in kinds
    ]
    if not places:
        return None
    n, section, i = rng.choice(places)
    return n, section, i, list(p.roles[n].section(section))


def _put(p: Pipeline, role: int, section: str, body: list[Stmt]) -> Pipeline:
    roles = list(p.roles)
    roles[role] = replace(roles[role], **{section: tuple(body)})
    return replace(p, roles=tuple(roles))


def _edit(
    kinds: tuple[str, ...], name: str, change: Callable[[list[Stmt], int, random.Random], bool]
) -> Callable[[Pipeline, random.Random], tuple[str, Pipeline] | None]:
    def apply(p: Pipeline, rng: random.Random) -> tuple[str, Pipeline] | None:
        found = _place(p, rng, kinds)
        if found is None:
            return None
        n, section, i, body = found
        what = f"{name} {body[i].kind} {body[i].bar or body[i].unit}"
        if not change(body, i, rng):
            return None
        return f"{what} at {p.roles[n].name}.{section}[{i}]", _put(p, n, section, body)

    return apply


def _drop(body: list[Stmt], i: int, _rng: random.Random) -> bool:
    del body[i]
    return True


def _double(body: list[Stmt], i: int, _rng: random.Random) -> bool:
    body.insert(i, body[i])
    return True


def _swap(body: list[Stmt], i: int, _rng: random.Random) -> bool:
    if i + 1 == len(body) or body[i] == body[i + 1]:
        return False
    body[i], body[i + 1] = body[i + 1], body[i]
    return True


def _move(body: list[Stmt], i: int, rng: random.Random) -> bool:
    s = body.pop(i)
    j = rng.randrange(len(body) + 1)
    body.insert(j, s)
    return j != i


def _lap(body: list[Stmt], i: int, _rng: random.Random) -> bool:
    body[i] = replace(body[i], n=1 - body[i].n)
    return True


def _group(body: list[Stmt], i: int, rng: random.Random) -> bool:
    n = body[i].n + rng.choice((-1, 1))
    body[i] = replace(body[i], n=n)
    return n >= 0


def _count(p: Pipeline, rng: random.Random) -> tuple[str, Pipeline] | None:
    name = rng.choice(sorted(p.bars))
    n = p.bars[name].count + rng.choice((-1, 1))
    if n < 1:
        return None
    return f"{name} counts {n}", replace(p, bars={**p.bars, name: replace(p.bars[name], count=n)})


def _stages(p: Pipeline, rng: random.Random) -> tuple[str, Pipeline] | None:
    name = rng.choice(sorted(p.bars))
    n = p.bars[name].stages + rng.choice((-1, 1))
    if n < 1 or p.bars[name].named:
        return None
    bars = {**p.bars, name: replace(p.bars[name], stages=n)}
    return f"{name} has {n} stages", replace(p, bars=bars)


def _depth(p: Pipeline, rng: random.Random) -> tuple[str, Pipeline] | None:
    name = rng.choice(sorted(p.buffers))
    n = p.buffers[name] + rng.choice((-1, 1))
    if n < 1:
        return None
    return f"buffer {name} has {n} slots", replace(p, buffers={**p.buffers, name: n})


def _other(p: Pipeline, rng: random.Random) -> tuple[str, Pipeline] | None:
    """A statement goes to another barrier."""
    found = _place(p, rng, ("wait", "arrive", "commit", "load"))
    if found is None:
        return None
    n, section, i, body = found
    others = [
        b for b in p.bars if b != body[i].bar and p.bars[b].named == p.bars[body[i].bar].named
    ]
    if not others:
        return None
    to = rng.choice(others)
    what = f"{body[i].kind} {body[i].bar} goes to {to} at {p.roles[n].name}.{section}[{i}]"
    body[i] = replace(body[i], bar=to)
    return what, _put(p, n, section, body)


DAMAGES = (
    *[_edit(SYNC, "drop", _drop)] * 5,
    _edit(SYNC, "double", _double),
    *[_edit((*SYNC, "issue", "load", "touch"), "swap", _swap)] * 2,
    *[_edit(SYNC, "move", _move)] * 3,
    _edit(("wait",), "lap of", _lap),
    _edit(("pending",), "groups of", _group),
    _count,
    _stages,
    _depth,
    *[_other] * 2,
)
