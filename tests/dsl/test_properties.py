"""Properties: positions move with the text, and no text makes the reader fail in another way."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4gen.diag import Diagnostic, Fa4genError, Span
from fa4gen.dsl import load

SCHEDULE = (Path(__file__).parents[2] / "schedules" / "fwd_hd128.yaml").read_text()
LINES = SCHEDULE.splitlines()
TOKENS = [
    "{",
    "}",
    "[",
    "]",
    ":",
    ",",
    '"',
    "|",
    "+1",
    "[s]",
    "[0]",
    "null",
    "max",
    "1e3",
    "-",
    "&x",
    "*x",
    "\t",
    "é",
    "#",
]


def loaded(text: str) -> object:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "x.yaml"
        path.write_text(text)
        return load(path)


def faults(text: str) -> tuple[Diagnostic, ...]:
    try:
        loaded(text)
    except Fa4genError as e:
        return e.diagnostics or (Diagnostic(code="none", title="an error without diagnostics"),)
    return ()


def spans(value: object) -> Iterator[Span]:
    """All positions in a value, in the order of its fields."""
    if isinstance(value, Span):
        yield value
    elif is_dataclass(value):
        for f in fields(value):
            yield from spans(getattr(value, f.name))
    elif isinstance(value, tuple):
        for item in value:
            yield from spans(item)


@settings(max_examples=15, deadline=None)
@given(st.integers(min_value=0, max_value=len(LINES)))
def test_a_comment_line_moves_what_follows_and_changes_nothing(at: int) -> None:
    before = loaded(SCHEDULE)
    after = loaded("\n".join([*LINES[:at], "# a comment", *LINES[at:]]) + "\n")
    found = zip(spans(before), spans(after), strict=True)
    assert all(
        b.line == a.line - (a.line > at) and (a.col, a.end_col) == (b.col, b.end_col)
        for b, a in found
    )
    # the file's name differs, and nothing else
    ours = {
        f.name: getattr(before, f.name) for f in fields(before) if f.compare and f.name != "file"
    }  # type: ignore[arg-type]
    theirs = {
        f.name: getattr(after, f.name) for f in fields(after) if f.compare and f.name != "file"
    }  # type: ignore[arg-type]
    assert ours == theirs


@settings(max_examples=60, deadline=None)
@given(
    st.integers(min_value=0, max_value=len(SCHEDULE) - 1),
    st.integers(min_value=0, max_value=12),
    st.sampled_from(TOKENS) | st.text(max_size=4),
)
def test_a_damaged_text_is_a_schedule_or_an_error_with_places(at: int, cut: int, put: str) -> None:
    cleaned = put.replace("\r", "").encode("utf-8", "ignore").decode()
    for d in faults(SCHEDULE[:at] + cleaned + SCHEDULE[at + cut :]):
        assert d.code.startswith(("FA01", "FA02"))
        assert d.span
        assert d.span.line >= 1
        assert d.span.col >= 1


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([n for n, line in enumerate(LINES) if line.strip() and "#" not in line[:3]]))
def test_a_text_without_one_of_its_lines(n: int) -> None:
    assert all(d.span for d in faults("\n".join([*LINES[:n], *LINES[n + 1 :]]) + "\n"))


def test_errors_are_sorted_and_drawn() -> None:
    text = SCHEDULE.replace("warps: 4, per: s", "warp: 4, per: s").replace(
        "order: descending", "order: down"
    )
    with pytest.raises(Fa4genError) as caught:
        loaded(text)
    places = [(d.span.line, d.span.col) for d in caught.value.diagnostics if d.span]
    assert places == sorted(places)
    assert len(places) == 3
    drawn = str(caught.value)
    assert "softmax:    {warp: 4, per: s, registers: 192}" in drawn
    assert "fix:  write `warps`" in drawn
