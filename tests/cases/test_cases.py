"""Files under `pass` are sound; one under `fail` gives the errors its lines are marked with.

A mark is `# error: FA0302` (or several codes) on the guilty line; exactly that set of codes and
lines must result, and none of them in another file.
"""

import re
from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.driver import check

HERE = Path(__file__).parent
MARK = re.compile(r"# error: ((?:FA\d{4} ?)+)$")


def files(outcome: str) -> list[Path]:
    found = sorted((HERE / outcome).glob("*.yaml"))
    assert found, outcome
    return found


def marks(path: Path) -> set[tuple[str, str, int]]:
    lines = enumerate(path.read_text().splitlines(), start=1)
    return {
        (str(path), code, n)
        for n, line in lines
        for m in [MARK.search(line)]
        if m
        for code in m[1].split()
    }


@pytest.mark.parametrize("path", files("pass"), ids=lambda p: p.stem)
def test_a_sound_schedule_is_accepted(path: Path) -> None:
    assert check(path).schedule.name == "case"


@pytest.mark.parametrize("path", files("fail"), ids=lambda p: p.stem)
def test_each_fault_is_found_on_its_line_and_no_other(path: Path) -> None:
    with pytest.raises(Fa4genError) as caught:
        check(path)
    spans = [(d.span, d.code) for d in caught.value.diagnostics]
    assert {(s.file, code, s.line) if s else ("", code, 0) for s, code in spans} == marks(path)
