"""Single damages to a schedule, as a hand that slips could do them: each is another YAML tree."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

Tree = dict[str, Any]
STEP = re.compile(r"\S+")


class Mutant(NamedTuple):
    """What was done, and the text of the damaged schedule."""

    name: str
    text: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Every single damage to a schedule file, with what it extends written out."""
    tree = _whole(path)
    tree.pop("variants", None)
    for name, change in (
        *_barriers(tree),
        *_steps(tree),
        *_buffers(tree),
        *_roles(tree),
        *_operations(tree),
        *_others(tree),
    ):
        damaged = copy.deepcopy(tree)
        change(damaged)
        if damaged != tree:
            yield Mutant(name, yaml.safe_dump(damaged, sort_keys=False, width=200))


def _whole(path: Path) -> Tree:
    tree: Tree = yaml.safe_load(path.read_text())
    base = tree.pop("extends", None)
    return _merged(_whole(path.parent / base), tree) if base else tree


def _merged(base: Tree, patch: Tree) -> Tree:
    """As the language has it: mappings key by key, a null takes the key away."""
    out = dict(base)
    for key, value in patch.items():
        inner = isinstance(value, dict) and isinstance(base.get(key), dict)
        whole = isinstance(value, dict) and "up_to" in value
        out[key] = _merged(base[key], value) if inner and not whole else value
    return {k: v for k, v in out.items() if v is not None}


Change = tuple[str, Callable[[Tree], object]]


def _set(*keys: str, value: object) -> Callable[[Tree], None]:
    def change(tree: Tree) -> None:
        for k in keys[:-1]:
            tree = tree[k]
        if value is None:
            tree.pop(keys[-1], None)
        else:
            tree[keys[-1]] = value

    return change


def _barriers(tree: Tree) -> Iterator[Change]:
    order = [
        re.sub(r"[+\[].*", "", t)
        for sections in tree["steps"].values()
        for text in sections.values()
        for t in text.split()
    ]
    for name, b in tree["barriers"].items():
        here = ("barriers", name)
        yield f"drop barrier {name}", _set(*here, value=None)
        if "ring" in b:
            continue
        yield (
            f"swap the ends of {name}",
            _set(*here, value={**b, "after": b["before"], "before": b["after"]}),
        )
        yield f"distance of {name}", _set(*here, "distance", value=1 - b.get("distance", 0) or None)
        yield f"{name} two apart", _set(*here, "distance", value=2)
        level = None if b.get("level") == "tile" else "tile"
        yield f"level of {name}", _set(*here, "level", value=level)
        yield f"{name} is a named barrier", _set(*here, "kind", value="named")
        for side in ("after", "before"):
            for what, value in _ends(b[side], order):
                yield f"{name}: {side} {what}", _set(*here, side, value=value)


def _ends(side: object, order: list[str]) -> Iterator[tuple[str, object]]:
    """One end less, in turns or together; an end at the operation before or behind."""
    if isinstance(side, list):
        for n, end in enumerate(side):
            rest = side[:n] + side[n + 1 :]
            yield f"without {end}", rest[0] if len(rest) == 1 else rest
        return
    text = str(side)
    if "|" in text:
        turns = [t.strip() for t in text.split("|")]
        for n, end in enumerate(turns):
            yield f"without {end}", " | ".join(turns[:n] + turns[n + 1 :])
        return
    name = re.match(r"\w+", text)[0]
    at = order.index(name)
    for n in (at - 1, at + 1):
        if 0 <= n < len(order) and order[n] != name:
            yield f"{order[n]} for {name}", text.replace(name, order[n], 1)


def _steps(tree: Tree) -> Iterator[Change]:
    for role, sections in tree["steps"].items():
        for section, text in sections.items():
            tokens = STEP.findall(text)
            here = ("steps", role, section)

            def put(*changed: str, here: tuple[str, ...] = here) -> Callable[[Tree], None]:
                return _set(*here, value=" ".join(changed) or None)

            for n, t in enumerate(tokens):
                before, behind = tokens[:n], tokens[n + 1 :]
                yield f"{role}.{section} without {t}", put(*before, *behind)
                yield f"{role}.{section} with {t} twice", put(*before, t, t, *behind)
                if section == "block":
                    other = t.removesuffix("+1") if t.endswith("+1") else f"{t}+1"
                    yield f"{role}.{section}: {other} for {t}", put(*before, other, *behind)
                for m in range(n + 1, len(tokens)):
                    moved = [*before, *tokens[n + 1 : m + 1], t, *tokens[m + 1 :]]
                    yield f"{role}.{section}: {t} behind {tokens[m]}", put(*moved)


def _buffers(tree: Tree) -> Iterator[Change]:
    for name, b in tree["buffers"].items():
        here = ("buffers", name)
        if "stages" in b:
            for n in (1, 2, 3, 5):
                yield f"{name} has {n} stages", _set(*here, "stages", value=n)
        if "columns" in b:
            for n in range(len(b["columns"])):
                for by in (8, 64):
                    columns = list(b["columns"])
                    columns[n] = f"{columns[n]} + {by}"
                    yield (
                        f"{name}[{n}] lies {by} columns over",
                        _set(*here, "columns", value=columns),
                    )
        for key in ("overlays", "parts", "per", "one_load", "dtype"):
            if key in b:
                yield f"{name} without {key}", _set(*here, key, value=None)
        for n, side in enumerate(b["tile"]):
            tile = [*b["tile"]]
            tile[n] = f"{side} // 2"
            yield f"{name} is half as large", _set(*here, "tile", value=tile)


def _roles(tree: Tree) -> Iterator[Change]:
    for name, r in tree["roles"].items():
        here = ("roles", name)
        for by in (8, -8, 4, 64):
            yield (
                f"{name} has {by} registers more",
                _set(*here, "registers", value=_more(r["registers"], by)),
            )
        for by in (1, -1, 4):
            yield f"{name} has {by} warps more", _set(*here, "warps", value=r["warps"] + by)
        if "per" in r:
            yield f"one {name} for all", _set(*here, "per", value=None)
        if "active" in r:
            yield f"all warps of {name} are active", _set(*here, "active", value=None)


def _more(registers: Any, by: int) -> Any:
    if isinstance(registers, dict):  # a choice by head dim
        return {"up_to": {dim: n + by for dim, n in registers["up_to"].items()}}
    return registers + by


def _operations(tree: Tree) -> Iterator[Change]:
    for name, o in tree["operations"].items():
        here = ("operations", name)
        yield f"no operation {name}", _set(*here, value=None)
        if "a" in o:
            yield (
                f"{name} with a and b exchanged",
                _set(*here, value={**o, "a": o["b"], "b": o["a"]}),
            )
        for key in ("reads", "writes", "updates"):
            if key in o:
                yield f"{name} without {key}", _set(*here, key, value=None)
            for buffer in tree["buffers"]:
                if isinstance(o.get(key), str) and buffer != o[key]:
                    yield f"{name} {key} {buffer}", _set(*here, key, value=buffer)
        for key in ("mask", "first", "mix"):
            if key in o:
                yield f"{name} without {key}", _set(*here, key, value=None)


def _others(tree: Tree) -> Iterator[Change]:
    for n in (1, 3, 4):
        yield f"index {n}", _set("index", "s", value=n)
    for name, t in tree.get("turns", {}).items():
        yield f"no turn {name}", _set("turns", value=None)
        yield f"turn {name} backwards", _set("turns", name, "around", value=t["around"][::-1])
    for key, values in {"tile_m": (64, 128), "tile_n": (64, 96, 256)}.items():
        for v in values:
            yield f"{key} {v}", _set("params", key, value=v)
    yield "blocks ascend", _set("levels", "block", "order", value="ascending")
    yield "empty tiles are skipped", _set("levels", "block", "empty", value="skip")
