"""The command line: what verbs print, their exit codes, and what they load."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fa4gen import cli
from fa4gen.codes import CODES

ROOT = Path(__file__).parents[1]
BLACKWELL = str(ROOT / "schedules" / "fwd_hd128.yaml")
HOPPER = str(ROOT / "schedules" / "fwd_hd128_sm90.yaml")

Output = pytest.CaptureFixture[str]


def test_check_says_what_is_sound(capsys: Output) -> None:
    assert cli.main(["check", BLACKWELL, HOPPER]) == cli.OK
    out = capsys.readouterr().out
    assert "fwd_hd128.yaml: sound for sm_100a, bf16, full, head dim 128" in out
    assert "512 threads, 232448 bytes of shared memory, 512 columns" in out
    assert "stages: kv 3" in out
    assert "fwd_hd128_sm90.yaml: sound for sm_90a" in out


def test_check_refuses_with_the_line(capsys: Output) -> None:
    assert cli.main(["check", BLACKWELL, "--set", "kv_stages=4"]) == cli.REFUSED
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "error[FA0401]: 265216 bytes of shared memory, a CTA has 232448" in captured.err
    assert "kv:    {space: smem, ring: [k, v]" in captured.err


def test_check_for_machines(capsys: Output) -> None:
    given = ["check", BLACKWELL, HOPPER, "--json", "--set", "kv_stages=2", "--set", "causal=true"]
    assert cli.main(given) == cli.OK
    sound = json.loads(capsys.readouterr().out)
    assert [(r["sound"], r["target"], r["problem"]["causal"]) for r in sound] == [
        (True, "sm_100a", True),
        (True, "sm_90a", True),
    ]
    assert sound[0]["stages"]["kv"] == 2
    assert cli.main(["check", BLACKWELL, "--json", "--set", "kv_stages=9"]) == cli.REFUSED
    refused = json.loads(capsys.readouterr().out)
    assert refused[0]["sound"] is False
    assert [e["code"] for e in refused[0]["errors"]] == ["FA0401"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "none.yaml"],
        ["check", BLACKWELL, "--set", "kv_stage=2"],
        ["check", BLACKWELL, "--variant", "none"],
        ["list", "none"],
        ["explain", "FA9999"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: Output) -> None:
    assert cli.main(arguments) == cli.USAGE
    assert capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["chek"], ["check"], ["check", BLACKWELL, "--set", "x"]])
def test_the_parser_ends_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2


def test_a_schedule_that_is_worse_than_another_decides_the_exit_code(capsys: Output) -> None:
    assert cli.main(["check", BLACKWELL, "none.yaml"]) == cli.USAGE
    captured = capsys.readouterr()
    assert "sound" in captured.out
    assert "FA0111" in captured.err


def test_list(capsys: Output) -> None:
    assert cli.main(["list", str(ROOT / "schedules")]) == cli.OK
    out = capsys.readouterr().out
    assert "fwd_hd64_sm90.yaml  sm_90a  head_dim 64, head_dim_v 64, dtype bf16|fp16" in out
    assert cli.main(["list", str(ROOT / "schedules"), "--json"]) == cli.OK
    rows = json.loads(capsys.readouterr().out)
    assert {Path(r["schedule"]).stem for r in rows} >= {"fwd_hd128", "fwd_hd64_sm90"}


def test_schema_is_json(capsys: Output) -> None:
    assert cli.main(["schema"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org")


def test_explain(capsys: Output) -> None:
    assert cli.main(["explain", "fa0302"]) == cli.OK
    assert capsys.readouterr().out.startswith("# FA0302: ")
    assert cli.main(["explain"]) == cli.OK
    assert len(capsys.readouterr().out.splitlines()) == len(CODES)
    assert cli.main(["explain", "FA0302", "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["code"] == "FA0302"


def test_check_loads_nothing_heavy() -> None:
    script = (
        "import sys; from fa4gen.cli import main; main(['check', sys.argv[1]]);"
        "heavy = {'torch', 'cutlass', 'networkx', 'jinja2', 'numpy'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, BLACKWELL], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"
