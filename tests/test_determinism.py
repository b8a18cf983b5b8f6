"""The same schedule gives the same bytes: under any hash seed, and after its file was deleted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fa4gen.build import generated_file, members, stale, write_generated

ROOT = Path(__file__).parents[1]
COMMITTED = ("fwd_hd128", "fwd_hd64", "fwd_hd128_sm90", "fwd_hd64_sm90", "bwd_hd128", "bwd_hd64")
FAMILIES = ("fwd", "fwd_sm90", "bwd")

SCRIPT = """
import hashlib, json, sys
from fa4gen.build import members
from fa4gen.show import show
for path in sys.argv[1:]:
    for one in members(path, {}, None):
        print(one.name, hashlib.sha256(one.source.text.encode()).hexdigest())
    for level in ("plan", "program"):
        print(level, hashlib.sha256(show(path, level, {}, None).encode()).hexdigest())
"""


def digests(seed: str) -> str:
    paths = [str(ROOT / "schedules" / f"{name}.yaml") for name in (*COMMITTED, *FAMILIES)]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *paths],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
        cwd=ROOT,
    )
    return done.stdout


def test_every_level_is_the_same_text_under_two_hash_seeds() -> None:
    first, second = digests("1"), digests("4242")
    assert len(first.splitlines()) == 4 * len((*COMMITTED, *FAMILIES))
    assert first == second


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_sources_are_current(name: str) -> None:
    path = ROOT / "schedules" / f"{name}.yaml"
    for one in members(path, {}, None):
        file = generated_file(path, one.checked.schedule, one.name)
        assert file is not None
        assert stale(file, one.source.text) == ""


def test_a_deleted_source_is_written_again_byte_for_byte(tmp_path: Path) -> None:
    for name in ("schedules", "generated"):
        shutil.copytree(ROOT / name, tmp_path / name)
    path = tmp_path / "schedules" / "fwd_hd64_sm90.yaml"
    (one,) = members(path, {"causal": "true"}, None)
    file = generated_file(path, one.checked.schedule, one.name)
    assert file is not None
    before = file.read_bytes()
    file.unlink()
    assert "+" in stale(file, one.source.text)
    write_generated(file, one.source.text)
    assert file.read_bytes() == before


def test_members_of_families_and_of_settings_have_no_committed_source() -> None:
    path = ROOT / "schedules" / "fwd_sm90.yaml"
    (one,) = members(path, {"causal": "false", "head_dim": "80"}, None)
    assert one.name.startswith("fwd_sm90_hd80")
    assert generated_file(path, one.checked.schedule, one.name) is None
