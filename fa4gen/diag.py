"""Diagnostics: what went wrong, where, why, and how to mend it; all errors of a step come together.

One class is caught by library users, `Fa4genError`; it carries its diagnostics as data. Rendering
is text for people and plain dictionaries for machines. Nothing here decides what is an error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """A place in a source file; lines and columns count from 1, the end column is exclusive."""

    file: str
    line: int
    col: int
    end_line: int = 0
    end_col: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.col}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A second place that takes part in an error."""

    text: str
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostic:
    """One error: `code` is FA and four digits, `title` states the fact in one line with its
    numbers."""

    code: str
    title: str
    span: Span | None = None
    label: str = ""
    notes: tuple[Note, ...] = ()
    why: str = ""
    fix: str = ""
    severity: str = "error"

    def as_dict(self) -> dict[str, object]:
        """The same for machines (JSON types alone)."""
        return {
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "at": str(self.span) if self.span else None,
            "label": self.label,
            "notes": [{"text": n.text, "at": str(n.span) if n.span else None} for n in self.notes],
            "why": self.why,
            "fix": self.fix,
        }

    def render(self, sources: Mapping[str, str] | None = None) -> str:
        """Text for people; with the file's text in `sources`, the guilty line is drawn."""
        where = f"{self.span}: " if self.span else ""
        lines = [f"{where}{self.severity}[{self.code}]: {self.title}"]
        lines += _drawn(self.span, self.label, sources or {})
        for n in self.notes:
            lines.append(f"  note: {f'{n.span}: ' if n.span else ''}{n.text}")
        lines += [f"  why:  {self.why}"] if self.why else []
        lines += [f"  fix:  {self.fix}"] if self.fix else []
        return "\n".join([*lines, f"  see:  fa4gen explain {self.code}"])


def _drawn(span: Span | None, label: str, sources: Mapping[str, str]) -> list[str]:
    text = sources.get(span.file) if span else None
    if span is None or text is None or span.line > len(text.splitlines()):
        return [f"  {label}"] if label else []
    line = text.splitlines()[span.line - 1]
    last = span.end_col if span.end_line == span.line else len(line) + 1
    gutter = " " * len(str(span.line))
    marks = "^" * max(1, last - span.col)
    return [
        f"  {span.line} | {line}",
        f"  {gutter} | {' ' * (span.col - 1)}{marks} {label}".rstrip(),
    ]


class Fa4genError(Exception):
    """The one error of this package: `.diagnostics` holds every fault found, sorted by position."""

    def __init__(
        self, diagnostics: Iterable[Diagnostic], sources: Mapping[str, str] | None = None
    ) -> None:
        def place(d: Diagnostic) -> tuple[str, int, int, str]:
            s = d.span
            return (s.file, s.line, s.col, d.code) if s else ("", 0, 0, d.code)

        self.diagnostics = tuple(sorted(diagnostics, key=place))
        self.sources = dict(sources or {})
        super().__init__("\n\n".join(d.render(self.sources) for d in self.diagnostics))


def error(
    code: str, title: str, *, span: Span | None = None, why: str = "", fix: str = ""
) -> Fa4genError:
    """An error of a single diagnostic, for arguments and the environment."""
    return Fa4genError([Diagnostic(code=code, title=title, span=span, why=why, fix=fix)])


@dataclass(slots=True)
class Bag:
    """Gathers the diagnostics of one step, to be raised together."""

    sources: dict[str, str] = field(default_factory=dict)
    found: list[Diagnostic] = field(default_factory=list)

    def add(self, diagnostic: Diagnostic) -> None:
        """Keeps one more."""
        self.found.append(diagnostic)

    def raise_if_any(self) -> None:
        """Raises `Fa4genError` with all of them, if there are any errors among them."""
        if any(d.severity == "error" for d in self.found):
            raise Fa4genError(self.found, self.sources)
