"""A session from kernels to kept results, with a GPU machine that is not one."""

import json

import pytest

from fa4gen.bench import session, verb
from fa4gen.bench.session import keep_results, make_kit, run_here
from fa4gen.cli import main
from fa4gen.diag import Fa4genError
from fa4gen.options import Options
from fa4gen.runtime import kit
from fa4gen.runtime.kit import KitKernel


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setattr(
        kit, "_fetch_parts", lambda f, dsl, ffi: (f / "w.whl").write_text(dsl + ffi)
    )
    (tmp_path / "peers").mkdir()
    for name in ("kernel", "peers/fa4_sm_90a_d128_dv128_full", "peers/fa4_sm_100a_d128_dv128_full"):
        (tmp_path / f"{name}.so").write_bytes(b"x")

    def make(*targets):
        kernels = [
            KitKernel(
                name=f"ours{n}", shared_object=tmp_path / "kernel.so", target=target,
                dtype="bfloat16", head_dim=128, head_dim_v=128, causal=False,
            )
            for n, target in enumerate(targets)
        ]  # fmt: skip
        options = Options(cache_dir=tmp_path / "cache")
        return make_kit(tmp_path / "kit", kernels, options, peers_folder=tmp_path / "peers")

    return make


def test_a_kit_has_cases_for_what_its_kernels_serve_and_the_peers_of_its_target(made):
    manifest = json.loads((made("sm_90a") / "manifest.json").read_text())
    assert [k["name"] for k in manifest["kernels"]] == ["ours0", "fa4_d128_full"]
    kinds = [c["kind"] for c in manifest["cases"]]
    assert (kinds.count("check"), kinds.count("time"), kinds.count("host")) == (68, 3, 1)
    assert {c["dtype"] for c in manifest["cases"]} == {"bfloat16"}
    assert manifest["about"]["date"]


@pytest.mark.parametrize("targets", [(), ("sm_90a", "sm_100a")])
def test_a_kit_is_for_one_target(made, targets):
    with pytest.raises(Fa4genError, match="a kit is for one target"):
        made(*targets)


def test_without_a_gpu_nothing_is_compiled_for_a_benchmark(monkeypatch, capsys):
    monkeypatch.setattr(session, "has_gpu", lambda: False)
    monkeypatch.setattr(verb, "kernels", lambda *_: pytest.fail("compiled"))
    assert main(["bench", "schedules/fwd_hd64_sm90.yaml"]) == 1
    assert "`--kit DIR`" in capsys.readouterr().err


def test_without_a_gpu_the_error_says_what_the_worker_said(made, tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(Fa4genError, match="FA0709") as caught:
        run_here(made("sm_90a"), tmp_path / "out", only="host")
    assert caught.value.diagnostics[0].why in (tmp_path / "out" / "worker.log").read_text()
    with pytest.raises(Fa4genError, match="no worker reached a GPU"):
        keep_results(tmp_path / "out", tmp_path / "results")
