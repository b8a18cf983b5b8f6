"""`fa4gen build` and `show`: what is written where, what the report says, what is refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fa4gen import cli
from fa4gen.build import Built, build, member, spills
from fa4gen.options import Options
from fa4gen.runtime import kit

ROOT = Path(__file__).parents[1]
Output = pytest.CaptureFixture[str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the schedules and of what is generated from them, as working directory."""
    for name in ("schedules", "generated"):
        shutil.copytree(ROOT / name, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def built(name: str, causal: str, folder: Path) -> Built:
    pytest.importorskip("cutlass")
    one = member(ROOT / "schedules" / f"{name}.yaml", {"causal": causal}, None)
    return build(one, folder, Options.from_environment())


# K steps of 16 of both products: 128/16 + 128/16, and head dim 64: 64/16 + 128/16
PRODUCTS = {"fwd_hd128": 16, "fwd_hd64": 12, "fwd_hd128_sm90": 16, "fwd_hd64_sm90": 12}


@pytest.mark.dsl
@pytest.mark.parametrize("causal", ["false", "true"])
@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_the_report_of_a_shipped_kernel(name: str, causal: str, tmp_path: Path) -> None:
    made = built(name, causal, tmp_path)
    assert not made.report.code.spills
    assert made.report.code.local_bytes == 0
    assert made.products == PRODUCTS[name]
    if name == "fwd_hd128":  # fma_share: 0.125 of 128 keys
        assert made.exponentials == (112, 16)
        assert "MMA instructions: 16" in made.summary()
        assert "112 on MUFU, 16 on the FMA units (0.125 of them)" in made.summary()
    files = {"kernel.ptx", "kernel.cubin", "kernel.so", "report.txt", "report.json"}
    assert files <= {p.name for p in tmp_path.iterdir()}
    assert (tmp_path / "report.txt").read_text() == made.summary()
    assert json.loads((tmp_path / "report.json").read_text())["products"] == PRODUCTS[name]


@pytest.mark.dsl
def test_the_declared_share_of_exponentials_is_found_in_the_machine_code(tmp_path: Path) -> None:
    pytest.importorskip("cutlass")
    file = tmp_path / "edited.yaml"
    text = (ROOT / "schedules" / "fwd_hd128.yaml").read_text()
    file.write_text(text.replace("fma_share: 0.125, degree: 3", "fma_share: 0.25, degree: 3"))
    one = member(file, {"causal": "false"}, None)
    assert build(one, tmp_path / "out", Options.from_environment()).exponentials == (96, 32)


@pytest.mark.dsl
def test_a_kernel_that_spills_is_said_with_numbers(tmp_path: Path) -> None:
    made = built("fwd_hd64_sm90", "false", tmp_path)
    schedule = member(
        ROOT / "schedules" / "fwd_hd64_sm90.yaml", {"causal": "false"}, None
    ).checked.schedule
    assert spills(made, schedule, "warning") is None
    code = replace(made.report.code, local_bytes=24, local_loads=5, local_stores=3)
    slow = spills(replace(made, report=replace(made.report, code=code)), schedule, "error")
    assert slow is not None
    assert (slow.code, slow.severity) == ("FA0710", "error")
    assert "3 stores to and 5 loads from local memory" in slow.title


@pytest.mark.dsl
def test_build_writes_the_committed_source_but_not_for_settings(
    project: Path, capsys: Output
) -> None:
    pytest.importorskip("cutlass")
    source = project / "generated" / "fwd_hd64_sm90.py"
    before = source.read_bytes()
    asked = ["build", "schedules/fwd_hd64_sm90.yaml", "--set", "causal=false", "-o", "made"]
    source.unlink()
    assert cli.main([*asked, "--set", "kv_stages=2"]) == cli.OK
    assert not source.exists()
    assert "written to made/fwd_hd64_sm90\n" in capsys.readouterr().out
    assert (project / "made" / "fwd_hd64_sm90" / "kernel.so").exists()
    assert cli.main(["build", "schedules/fwd_hd64_sm90.yaml", "--json"]) == cli.OK
    rows = json.loads(capsys.readouterr().out)
    assert [r["name"] for r in rows] == ["fwd_hd64_sm90", "fwd_hd64_sm90_causal"]
    assert source.read_bytes() == before


@pytest.mark.dsl
def test_a_kit_holds_each_member(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cutlass")
    monkeypatch.setattr(kit, "runtime_parts", lambda _options: ())  # these would be downloaded
    asked = ["build", "schedules/fwd_hd64_sm90.yaml", "--kit", "kit"]
    assert cli.main(asked) == cli.OK
    manifest = json.loads((project / "kit" / "manifest.json").read_text())
    assert [k["name"] for k in manifest["kernels"]] == ["fwd_hd64_sm90", "fwd_hd64_sm90_causal"]
    assert manifest["cases"]
    assert all((project / "kit" / k["file"]).exists() for k in manifest["kernels"])


def test_a_stale_source_is_refused_with_the_difference(project: Path, capsys: Output) -> None:
    asked = ["build", "--check", "schedules/fwd_hd64.yaml"]
    assert cli.main(asked) == cli.OK
    assert "fwd_hd64.py is current" in capsys.readouterr().out
    source = project / "generated" / "fwd_hd64.py"
    source.write_text(source.read_text().replace("mbarrier_arrive_expect_tx", "mbarrier_arrive", 1))
    assert cli.main(asked) == cli.REFUSED
    said = capsys.readouterr().err
    assert "fwd_hd64.py is not current (FA0711)" in said
    assert "mbarrier_arrive_expect_tx" in said


def test_all_is_every_schedule_of_the_folder(project: Path, capsys: Output) -> None:
    assert cli.main(["build", "--all", "--check", "--json"]) == cli.OK
    names = [r["name"] for r in json.loads(capsys.readouterr().out)]
    assert set(names) >= {p.stem for p in (project / "generated").glob("*.py")}


def test_nothing_to_build_is_wrong_usage(capsys: Output) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["build"])
    assert ended.value.code == cli.USAGE
    assert "which schedules?" in capsys.readouterr().err
    assert cli.main(["build", "none.yaml"]) == cli.USAGE
    assert "there is no file `none.yaml`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("level", "words"),
    [
        ("plan", "p_ready (mbarrier): 12, 2, 256 (128 softmax.exp, 128 correction.rescale), 0"),
        ("plan", "kv_full (mbarrier): 4, 3, 1 (1 load.load_k | load_v), 32768"),  # in turn
        ("program", "TmaLoad load_q x 2"),
        ("source", "def launch("),
    ],
)
def test_show(level: str, words: str, capsys: Output) -> None:
    asked = ["show", str(ROOT / "schedules" / "fwd_hd128.yaml"), "--at", level]
    assert cli.main(asked) == cli.OK
    text = capsys.readouterr().out
    assert words in text
    assert cli.main([*asked, "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)[0]["text"] == text
