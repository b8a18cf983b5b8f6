"""Kits: what they hold, what they refuse, and that what they hold runs."""

import json
import subprocess
import sys

import pytest

from fa4gen.bench.results import RUNNER
from fa4gen.diag import Fa4genError
from fa4gen.options import Options
from fa4gen.runtime import kit
from fa4gen.runtime.kit import KitKernel, write_kit


@pytest.fixture
def made(tmp_path, monkeypatch):
    """A function that writes a kit of kernels with these names; nothing is downloaded."""

    def parts(folder, dsl, ffi):
        (folder / "apache_tvm_ffi.whl").write_text(ffi)
        (folder / "libcute_dsl_runtime.so.xz").write_text(dsl)

    monkeypatch.setattr(kit, "_fetch_parts", parts)
    (tmp_path / "kernel.so").write_bytes(b"machine code")

    def make(*names, folder=tmp_path / "kit"):
        kernels = [
            KitKernel(
                name=name, shared_object=tmp_path / "kernel.so", target="sm_90a",
                dtype="bfloat16", head_dim=128, head_dim_v=128, causal=False,
                peer=name.startswith("fa4"),
            )
            for name in names
        ]  # fmt: skip
        return write_kit(
            folder, kernels=kernels, cases=[], runner=RUNNER, about={"commit": "c"},
            options=Options(cache_dir=tmp_path / "cache"),
        )  # fmt: skip

    return make


def test_a_kit_holds_all_that_the_other_machine_needs(made):
    folder = made("ours", "fa4_d128")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert [k["file"] for k in manifest["kernels"]] == ["kernels/ours.so", "kernels/fa4_d128.so"]
    assert manifest["kernels"][0]["arguments"][-1] == "num_sms"
    assert [k.get("peer", False) for k in manifest["kernels"]] == [False, True]
    assert manifest["about"]["commit"] == "c"
    assert (folder / "kernels" / "ours.so").read_bytes() == b"machine code"
    assert "NVIDIA" in (folder / "NOTICE.txt").read_text()
    assert {p.name for p in folder.iterdir()} >= {"run.py", "runner", "apache_tvm_ffi.whl"}


def test_the_runner_starts_from_a_kit_without_this_package(made, tmp_path):
    folder = made("ours")
    command = [sys.executable, "-I", str(folder / "run.py"), "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr  # no cases, no work
    record = json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["kit"]["commit"] == "c"
    assert record["results"] == []


def test_a_kit_replaces_an_older_one_and_nothing_else(made, tmp_path):
    made("old")
    assert not (made("new") / "kernels" / "old.so").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(Fa4genError, match="neither empty nor a kit"):
        made("new", folder=tmp_path / "mine")


def test_names_are_unique_and_size_is_limited(made, monkeypatch):
    with pytest.raises(Fa4genError, match="two kernels of a kit are called `a`"):
        made("a", "a")
    monkeypatch.setattr(kit, "LIMIT_BYTES", 100)
    with pytest.raises(Fa4genError, match="FA0708"):
        made("a")
