"""Each edit is short, and is either sound and another program, or refused for the right reason."""

import shutil
from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.driver import check
from tests.edits import EDITS, SCHEDULES, Edit

SHORT = 4  # lines touched, those of a role that goes away included


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path in SCHEDULES.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    return tmp_path


def touched(edit: Edit) -> int:
    return sum(
        max(old.strip("\n").count("\n"), new.strip("\n").count("\n")) + 1
        for old, new in edit.replace
    )


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: e.name)
def test_an_edit_is_sound_or_refused(edit: Edit, folder: Path) -> None:
    assert touched(edit) <= SHORT
    path = folder / "edited.yaml"
    path.write_text(edit.text())
    if edit.refused:
        with pytest.raises(Fa4genError) as caught:
            check(path)
        assert all(d.code.startswith(edit.refused) for d in caught.value.diagnostics)
        return
    ours = check(path).program.value
    theirs = check(SCHEDULES / f"{edit.schedule}.yaml").program.value
    assert ours != theirs
