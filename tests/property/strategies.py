"""Random small pipelines: rings from one role to others, in several styles, whole or damaged."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from tests.pipelines.damage import damaged
from tests.pipelines.small import (
    Barrier,
    Pipeline,
    R,
    Role,
    Stmt,
    W,
    arrive,
    commit,
    free,
    issue,
    load,
    pending,
    prev,
    sync,
    touch,
    wait,
)

Draw = Callable[[st.SearchStrategy], object]


@dataclass
class _Parts:
    """A pipeline under construction: per role and section its statements."""

    bars: dict[str, Barrier] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    units: dict[str, bool] = field(default_factory=dict)
    body: dict[tuple[str, str], list[Stmt]] = field(default_factory=dict)

    def put(self, role: str, section: str, *statements: Stmt) -> None:
        self.body.setdefault((role, section), []).extend(statements)

    def build(self, names: list[str]) -> Pipeline:
        roles = []
        for n in names:
            sections = {s: tuple(b) for (r, s), b in self.body.items() if r == n}
            roles.append(Role(n, **sections))
        return Pipeline("random", tuple(roles), self.bars, self.buffers, self.units)


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """One or two rings between two or three roles; perhaps a tile's own buffer; up to two
    damages."""
    parts = _Parts()
    names = ["a", "b", "c"][: draw(st.integers(2, 3))]
    for n in range(draw(st.integers(1, 2))):
        _ring(draw, parts, names, f"x{n}")
    if draw(st.booleans()):
        _tile(parts, names[0], names[-1])
    if draw(st.integers(0, 3)) == 0:
        _meet(parts, names[:2])
    whole = parts.build(names)
    rng = draw(st.randoms(use_true_random=False))
    for _ in range(draw(st.integers(0, 2))):
        _, whole = damaged(whole, random.Random(rng.random()))
    return whole


def _ring(draw: st.DrawFn, parts: _Parts, names: list[str], x: str) -> None:
    """One producer, one or two consumers."""
    producer, consumers = names[0], names[1 : 1 + draw(st.integers(1, 2))]
    if draw(st.integers(0, 3)) == 0:
        producer, consumers = names[-1], [names[0]]
    stages = draw(st.integers(1, 2))
    full, empty = f"{x}f", f"{x}e"
    parts.bars |= {full: Barrier(stages=stages), empty: Barrier(len(consumers), stages)}
    parts.buffers[x] = stages
    filled = (touch(W(x)), arrive(full)) if draw(st.booleans()) else (load(full, W(x)),)
    for section in ("first", "rest"):
        parts.put(producer, section, free(empty), *filled)
    if draw(st.booleans()):
        parts.put(producer, "end", *[free(empty)] * stages)
    for c in consumers:
        style = draw(st.sampled_from((_plain, _in_order, _grouped, _behind)))
        style(parts, c, x, full, empty)


def _plain(parts: _Parts, c: str, x: str, full: str, empty: str) -> None:
    for section in ("first", "rest"):
        parts.put(c, section, wait(full), touch(R(x)), arrive(empty))


def _in_order(parts: _Parts, c: str, x: str, full: str, empty: str) -> None:
    parts.units[f"tc{c}"] = True
    for section in ("first", "rest"):
        parts.put(c, section, wait(full), issue(f"tc{c}", R(x)), commit(f"tc{c}", empty))


def _grouped(parts: _Parts, c: str, x: str, full: str, empty: str) -> None:
    parts.units[f"wg{c}"] = False
    for section in ("first", "rest"):
        parts.put(
            c, section, wait(full), issue(f"wg{c}", R(x)), pending(f"wg{c}", 0), arrive(empty)
        )


def _behind(parts: _Parts, c: str, x: str, full: str, empty: str) -> None:
    """Uses each version one block later than it is loaded."""
    use = (wait(full), touch(R(x)), arrive(empty))
    parts.put(c, "rest", *prev(*use))
    parts.put(c, "last", *use)


def _tile(parts: _Parts, producer: str, consumer: str) -> None:
    parts.bars |= {"qf": Barrier(), "qe": Barrier()}
    parts.buffers["q"] = 1
    body = parts.body.setdefault((producer, "first"), [])
    body[:0] = [free("qe"), load("qf", W("q", a=0))]
    body = parts.body.setdefault((consumer, "first"), [])
    body[:0] = [wait("qf")]
    parts.put(consumer, "last", touch(R("q", a=0)), arrive("qe"))


def _meet(parts: _Parts, pair: list[str]) -> None:
    """A named barrier in every block."""
    parts.bars["m"] = Barrier(count=2, named=True)
    for n in pair:
        for section in ("first", "rest"):
            parts.put(n, section, sync("m"))
