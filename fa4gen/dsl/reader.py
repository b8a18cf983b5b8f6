"""YAML text to a tree whose every node knows its place; no value is guessed.

Built from parse events, so that nothing is silently lost: duplicate keys, anchors, aliases, tags
and keys that are not text are refused. Scalars are typed here (`on`, `no` and `010` are text, `1e3`
is a number), and only when written plain: a quoted scalar is always text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml  # type: ignore[import-untyped]  # no stubs are installed; its events are `Any` here

from fa4gen.diag import Bag, Diagnostic, Fa4genError, Note, Span

MAX_DEPTH = 24  # of nested collections; a schedule has six

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None, "~": None, "": None}

Value = str | int | float | bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """A single value; `shift`: columns from the span to its text, None if not verbatim there."""

    text: str
    span: Span
    plain: bool = True
    shift: int | None = None

    @property
    def value(self) -> Value:
        """The typed value: text, int, float, bool or None."""
        if not self.plain:
            return self.text
        if self.text in _WORDS:
            return _WORDS[self.text]
        if _INTEGER.fullmatch(self.text):
            return int(self.text)
        return float(self.text) if _NUMBER.fullmatch(self.text) else self.text

    def part(self, start: int, end: int) -> Span:
        """Where characters start … end of the text stand in the file."""
        if self.shift is None:
            return self.span
        col = self.span.col + self.shift
        return Span(self.span.file, self.span.line, col + start, self.span.line, col + end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seq:
    """A sequence of nodes."""

    items: tuple["Node", ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """A mapping with text keys, in the order of the file."""

    entries: tuple[tuple[Scalar, "Node"], ...]
    span: Span

    def get(self, key: str) -> "Node | None":
        """The value of a key, or None."""
        return next((v for k, v in self.entries if k.text == key), None)

    def key(self, key: str) -> Scalar | None:
        """The key itself, for its position."""
        return next((k for k, _ in self.entries if k.text == key), None)

    def keys(self) -> list[str]:
        """All keys, in order."""
        return [k.text for k, _ in self.entries]


Node = Scalar | Seq | Map


def _names(key: Scalar) -> bool:
    """A key is a name, or a bound of a choice (a plain integer)."""
    number = isinstance(key.value, int) and not isinstance(key.value, bool)
    return isinstance(key.value, str) or number


def read(text: str, file: str) -> Map:
    """The tree of one schedule file.

    Raises Fa4genError: FA0101 (not YAML), FA0102 (key given twice), FA0103 (anchor, alias or tag),
    FA0104 (a key that is not text), FA0106 (the file is not a mapping).
    """
    builder = _Builder(text=text, file=file, lines=text.splitlines())
    root = builder.document()
    builder.bag.raise_if_any()
    if not isinstance(root, Map):
        builder.report("FA0106", "a schedule is a mapping of keys to values", root.span)
        builder.bag.raise_if_any()
        raise AssertionError("unreachable")
    return root


@dataclass(slots=True)
class _Builder:
    text: str
    file: str
    lines: list[str]
    bag: Bag = field(default_factory=Bag)

    def report(
        self, code: str, title: str, span: Span, *, notes: tuple[Note, ...] = (), fix: str = ""
    ) -> None:
        self.bag.sources = {self.file: self.text}
        self.bag.add(Diagnostic(code=code, title=title, span=span, notes=notes, fix=fix))

    def document(self) -> Node:
        try:
            documents = self._documents(yaml.parse(self.text, Loader=yaml.SafeLoader))
        except yaml.YAMLError as e:
            raise self._syntax(e) from None
        if not documents:
            return Scalar(text="", span=Span(self.file, 1, 1, 1, 1))
        if len(documents) > 1:
            self.report("FA0101", "one file holds one schedule", documents[1].span)
        return documents[0]

    def _documents(self, events: Iterator[Any]) -> list[Node]:
        return [
            self._node(next(events), events, 0)
            for event in events
            if isinstance(event, yaml.DocumentStartEvent)
        ]

    def _syntax(self, e: yaml.YAMLError) -> Fa4genError:
        mark = getattr(e, "problem_mark", None) or getattr(e, "context_mark", None)
        line, col = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        what = getattr(e, "problem", None) or getattr(e, "reason", None) or "not readable"
        around = getattr(e, "context", None)
        title = f"not YAML: {what}" + (f" ({around})" if around else "")
        self.report("FA0101", title, Span(self.file, line, col, line, col + 1))
        return Fa4genError(self.bag.found, self.bag.sources)

    def _span(self, start: Any, end: Any) -> Span:
        return Span(self.file, start.line + 1, start.column + 1, end.line + 1, end.column + 1)

    def _node(self, event: Any, events: Iterator[Any], depth: int) -> Node:
        span = self._span(event.start_mark, event.end_mark)
        if depth > MAX_DEPTH:
            self.report("FA0101", f"nested more than {MAX_DEPTH} deep", span)
            raise Fa4genError(self.bag.found, self.bag.sources)
        if isinstance(event, yaml.AliasEvent):
            self.report(
                "FA0103",
                f"alias `*{event.anchor}`",
                span,
                fix="write the value again, or make it a parameter",
            )
            return Scalar(text="", span=span)
        if event.anchor is not None:
            self.report(
                "FA0103", f"anchor `&{event.anchor}`", span, fix="make the shared value a parameter"
            )
        if event.tag is not None:
            self.report("FA0103", f"tag `{event.tag}`", span, fix="leave the tag out")
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, span)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(event, events, depth)
        return self._mapping(event, events, depth)

    def _scalar(self, event: Any, span: Span) -> Scalar:
        plain = event.style is None
        shift = 0 if plain else 1
        line = self.lines[span.line - 1] if span.line <= len(self.lines) else ""
        verbatim = (
            line[span.col - 1 + shift : span.col - 1 + shift + len(event.value)] == event.value
        )
        return Scalar(
            text=event.value,
            span=span,
            plain=plain,
            shift=shift if verbatim and span.line == span.end_line else None,
        )

    def _sequence(self, start: Any, events: Iterator[Any], depth: int) -> Seq:
        items = []
        while not isinstance(event := next(events), yaml.SequenceEndEvent):
            items.append(self._node(event, events, depth + 1))
        return Seq(items=tuple(items), span=self._span(start.start_mark, event.end_mark))

    def _mapping(self, start: Any, events: Iterator[Any], depth: int) -> Map:
        entries: dict[str, tuple[Scalar, Node]] = {}
        while not isinstance(event := next(events), yaml.MappingEndEvent):
            key = self._node(event, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            if not isinstance(key, Scalar) or not _names(key):
                self.report(
                    "FA0104",
                    "a key must be text",
                    key.span,
                    fix="quote it, if it is meant as a name",
                )
                continue
            if key.text in entries:
                first = Note(text="given here before", span=entries[key.text][0].span)
                self.report("FA0102", f"`{key.text}` is given twice", key.span, notes=(first,))
                continue
            entries[key.text] = (key, value)
        return Map(
            entries=tuple(entries.values()), span=self._span(start.start_mark, event.end_mark)
        )
