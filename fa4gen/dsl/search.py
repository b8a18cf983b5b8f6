"""Variants of a schedule as files: the axes of its section `search`, and a text for each choice.

    search:
      tile_n: [112, 128, 144]            # a key as for `--set`, and its values
      turns:                             # or changes by name, as in `variants`; `{}` is none
        taken: {}
        none: {turns: null}

A choice takes one option of each axis. Its text is an ordinary schedule that extends the base, so
that everything that reads schedules reads it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from fa4gen.diag import Bag, error

from .family import nested, overlaid, read_family, settable
from .language import PROBLEM
from .reader import Map, Node, Scalar, Seq, read
from .writer import entries_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One value of an axis: what it is called, and the change that it makes."""

    name: str
    patch: Map


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """What may be chosen independently of the other axes."""

    name: str
    options: tuple[Option, ...]


Choice = tuple[tuple[str, Option], ...]


def axes(path: str | Path, more: Mapping[str, str] | None = None) -> tuple[Axis, ...]:
    """The axes of a schedule's section `search`; `more`: axes as text (`tile_n`: `96, 112`), which
    replace those of the same name.

    Raises Fa4genError: FA0113 for what is no axis, FA0112 for values of what the schedule does not
    have, those of reading a file.
    """
    bag = Bag()
    tree = read_family(Path(path), bag)
    section = tree.get("search")
    entries = section.entries if isinstance(section, Map) else ()
    nodes = {k.text: v for k, v in entries if not _null(v)}
    for key, text in (more or {}).items():
        name = f"--try {key}"
        bag.sources[name] = f"{key}: [{text}]"
        node = read(bag.sources[name], name).get(key)
        nodes |= {key: node} if node is not None else {}
    found = tuple(_axis(key, node) for key, node in nodes.items())
    for key, node in nodes.items():
        if isinstance(node, Seq):
            settable(tree, key, node.span, bag)
    bag.raise_if_any()
    return found


def choices(found: Sequence[Axis]) -> list[Choice]:
    """Every combination, the last axis changing fastest."""
    named = [[(a.name, o) for o in a.options] for a in found]
    return [tuple(c) for c in product(*named)]


def label(choice: Choice) -> str:
    """`tile_n=112 turns=none`."""
    return " ".join(f"{axis}={option.name}" for axis, option in choice)


def schedule_text(choice: Choice, *, name: str, extends: str, comment: str = "") -> str:
    """The schedule file of one choice; `extends` is the base's path as seen from where it lies."""
    patch = Map(entries=(), span=choice[0][1].patch.span) if choice else None
    for _, option in choice:
        assert patch is not None
        patch = overlaid(patch, option.patch)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    body = entries_text(patch) if patch else ""
    return f"{head}language: 1\nschedule: {name}\nextends: {extends}\n{body}"


def _null(node: Node) -> bool:
    return isinstance(node, Scalar) and node.value is None


def _axis(name: str, node: Node) -> Axis:
    if name in PROBLEM:
        raise error(
            "FA0113",
            f"`{name}` is the problem, not a choice: search for each by itself",
            span=node.span,
            fix=f"--set {name}=…",
        )
    if isinstance(node, Seq) and node.items:
        values = [i for i in node.items if isinstance(i, Scalar)]
        if len(values) == len(node.items):
            options = [Option(name=v.text, patch=nested(name, v)) for v in values]
            return _distinct(Axis(name=name, options=tuple(options)), node)
    if isinstance(node, Map) and node.entries:
        patches = [(k.text, v) for k, v in node.entries]
        if all(isinstance(v, Map) for _, v in patches):
            return Axis(
                name=name,
                options=tuple(Option(name=k, patch=v) for k, v in patches if isinstance(v, Map)),
            )
    raise error(
        "FA0113",
        f"`search.{name}` is neither a list of values nor changes by name",
        span=node.span,
        fix="write `tile_n: [96, 112]`, or `turns: {taken: {}, none: {turns: null}}`",
    )


def _distinct(axis: Axis, node: Node) -> Axis:
    names = [o.name for o in axis.options]
    if double := next((n for n in names if names.count(n) > 1), None):
        raise error("FA0113", f"`search.{axis.name}` has {double} twice", span=node.span)
    return axis
