"""Each sound edit of tests/edits.py becomes another kernel that gives right values, emulated."""

import shutil
from functools import cache
from pathlib import Path

import pytest

from fa4gen.driver import check
from fa4gen.emit.render import render
from fa4gen.emulate import emulate
from fa4gen.options import Options
from fa4gen.runtime.compile import Request, compile_cached
from tests.edits import EDITS, SCHEDULES, Edit

SOUND = tuple(e for e in EDITS if not e.refused)
SHAPES = {"batch": 1, "heads": 3, "heads_kv": 1, "seqlen_q": 200, "seqlen_k": 330}


def ptx(path: Path, causal: bool) -> str:
    """The PTX of one member."""
    checked = check(path, settings={"causal": str(causal).lower()})
    source = render(checked.program)
    request = Request(name="kernel", target=checked.schedule.target, text=source.text)
    return compile_cached(request, Options.from_environment()).ptx.read_text()


@cache
def unedited(schedule: str, causal: bool) -> str:
    return ptx(SCHEDULES / f"{schedule}.yaml", causal)


@pytest.mark.dsl
@pytest.mark.parametrize(("number", "edit"), list(enumerate(SOUND)), ids=[e.name for e in SOUND])
def test_an_edit_is_another_kernel_and_right(number: int, edit: Edit, tmp_path: Path) -> None:
    for path in SCHEDULES.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    path = tmp_path / "edited.yaml"
    path.write_text(edit.text())
    causal = number % 2 == 0 and edit.name != "one_tile_a_cta"  # which changes the full kernel
    assert ptx(path, causal) != unedited(edit.schedule, causal)
    done = emulate(path, settings={"causal": str(causal).lower()}, seed=number, **SHAPES)
    assert done.ok, str(done)
