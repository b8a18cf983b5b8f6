"""The small languages inside texts: steps ("pv[0] qk[0]+1"), ends ("exp[s].0 | rescale[s]"), names.

Every token keeps its own place in the file.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fa4gen.diag import Bag, Diagnostic, Span

from .reader import Node, Scalar, Seq

NAME = r"[a-z][a-z0-9_]*"
STEP = rf"{NAME}(\[({NAME}|[0-9]+)\])?(\+[0-9]+)?"
END = rf"{NAME}(\[({NAME}|[0-9]+)\])?(\.([0-9]+|rest))?"
EDGE_NAME = rf"{NAME}(\[{NAME}\])?"

_STEP = re.compile(rf"(?P<name>{NAME})(\[(?P<at>{NAME}|[0-9]+)\])?(\+(?P<ahead>[0-9]+))?")
_END = re.compile(rf"(?P<name>{NAME})(\[(?P<at>{NAME}|[0-9]+)\])?(\.(?P<part>[0-9]+|rest))?")
_EDGE_NAME = re.compile(rf"(?P<name>{NAME})(\[(?P<at>{NAME})\])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepToken:
    """`name[at]+ahead`; `at` is None, a literal index, or the index's name."""

    name: str
    at: str | int | None
    ahead: int
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class EndToken:
    """`name[at].part`; `part` is None, a number, or 'rest' (each part but the first)."""

    name: str
    at: str | int | None
    part: str | int | None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeName:
    """The name of a barrier, and the name of its index if it has one."""

    name: str
    at: str | None


def steps(node: Node, bag: Bag) -> tuple[StepToken, ...]:
    """Steps from a text (separated by blanks) or a list of texts. FA0108 for others."""
    found = []
    for scalar in _texts(node):
        for m in re.finditer(r"\S+", scalar.text):
            span = scalar.part(m.start(), m.end())
            token = _STEP.fullmatch(m[0])
            if token is None:
                bag.add(
                    _unreadable(
                        m[0], span, "a step is `operation`, `operation[0]` or `operation[0]+1`"
                    )
                )
                continue
            found.append(
                StepToken(
                    name=token["name"],
                    at=_at(token["at"]),
                    ahead=int(token["ahead"] or 0),
                    span=span,
                )
            )
    return tuple(found)


def ends(node: Node, bag: Bag) -> tuple[tuple[EndToken, ...], ...]:
    """Alternatives that take turns (`a | b`), each of operations that go together (`[a, b]`)."""
    if isinstance(node, Seq):
        together = [
            e for scalar in _texts(node) for e in [_end(scalar, 0, len(scalar.text), bag)] if e
        ]
        return (tuple(together),) if together else ()
    alternatives = []
    for scalar in _texts(node):
        start = 0
        for text in scalar.text.split("|"):
            end = _end(scalar, start, start + len(text), bag)
            alternatives += [(end,)] if end else []
            start += len(text) + 1
    return tuple(alternatives)


def edge_name(scalar: Scalar, bag: Bag) -> EdgeName | None:
    """`s_full[s]` or `kv_full`."""
    m = _EDGE_NAME.fullmatch(scalar.text)
    if m is None:
        bag.add(_unreadable(scalar.text, scalar.span, "a barrier is named `name` or `name[s]`"))
        return None
    return EdgeName(name=m["name"], at=m["at"])


def _end(scalar: Scalar, start: int, end: int, bag: Bag) -> EndToken | None:
    text = scalar.text[start:end]
    start += len(text) - len(text.lstrip())
    text = text.strip()
    span = scalar.part(start, start + len(text))
    m = _END.fullmatch(text)
    if m is None:
        bag.add(
            _unreadable(text, span, "an end is `operation`, `operation[s]` or `operation[s].0`")
        )
        return None
    part = int(m["part"]) if m["part"] and m["part"].isdigit() else m["part"]
    return EndToken(name=m["name"], at=_at(m["at"]), part=part, span=span)


def _texts(node: Node) -> Iterator[Scalar]:
    if isinstance(node, Scalar):
        yield node
    elif isinstance(node, Seq):
        for item in node.items:
            yield from _texts(item)


def _at(text: str | None) -> str | int | None:
    return int(text) if text and text.isdigit() else text


def _unreadable(text: str, span: Span, expected: str) -> Diagnostic:
    return Diagnostic(code="FA0108", title=f"`{text}` cannot be read here: {expected}", span=span)
