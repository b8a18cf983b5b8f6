"""`fa4gen emulate`: builds, runs, judges, and says where in the schedule a fault lies."""

import json
from pathlib import Path

import pytest

from fa4gen.cli import main
from fa4gen.diag import Fa4genError
from fa4gen.emulate import Emulated, _placed, emulate
from fa4gen.emulator.attention import AttentionProblem, Verdict
from fa4gen.emulator.report import Deadlock, Fault, Report, Waiter

HOPPER = Path(__file__).parents[1] / "schedules" / "fwd_hd64_sm90.yaml"
PROBLEM = AttentionProblem(seqlen_q=1, seqlen_k=1, head_dim=64, head_dim_v=64)


def fault(source: str, other: str = "") -> Fault:
    return Fault(
        kind="race",
        message="m",
        kernel="k",
        ptx_line=7,
        ptx="st",
        source=source,
        other_line=9,
        other_source=other,
    )


def outcome(report: Report, *, right: bool = True) -> Emulated:
    verdict = Verdict(
        name="out",
        max_error=0.0,
        rms_error=0.0,
        plain_max_error=0.0,
        plain_rms_error=0.0,
        right=right,
    )
    return Emulated(
        name="k", target="sm_90a", problem=PROBLEM, seed=0, report=report, verdicts=(verdict,)
    )


def test_faults_name_lines_of_the_schedule_where_they_are_known() -> None:
    waiter = Waiter(cta=0, warp=1, ptx_line=3, ptx="w", source="k.py:5", waits_for="mbarrier")
    report = Report(
        races=(fault("k.py:5", "k.py:6"),), deadlock=Deadlock(kernel="k", waiters=(waiter,))
    )
    placed = _placed(report, {5: "k.yaml:40:1"})
    assert placed.races[0].source == "k.yaml:40:1, k.py:5"
    assert placed.races[0].other_source == "k.py:6"
    assert "k.yaml:40:1" in str(placed.deadlock)


def test_a_run_is_ok_only_without_any_fault_and_with_right_values() -> None:
    assert outcome(Report(races_checked=True)).ok
    assert "no race, no hang" in str(outcome(Report(races_checked=True)))
    assert "races not checked" in str(outcome(Report()))
    assert not outcome(Report(), right=False).ok
    assert not outcome(Report(races=(fault("k.py:1"),))).ok
    assert not outcome(Report(deadlock=Deadlock(kernel="k", waiters=()))).ok


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"seqlen_q": 0, "seqlen_k": 1}, "seqlen_q is 0"),
        ({"seqlen_q": 1, "seqlen_k": 1, "heads": 3, "heads_kv": 2}, "3 heads are no multiple of 2"),
    ],
)
def test_sizes_that_make_no_problem_are_named(sizes: dict[str, int], words: str) -> None:
    with pytest.raises(Fa4genError, match=words):
        emulate(HOPPER, **sizes)


@pytest.mark.dsl
def test_the_verb_builds_runs_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("cutlass")
    asked = [str(HOPPER), "--causal", "--seqlen-q", "70", "--seqlen-k", "200", "--seed", "3"]
    assert main(["emulate", *asked, "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert one["ok"]
    assert one["problem"]["causal"]
    assert one["warp_instructions"] > 1000
    assert main(["emulate", *asked]) == 0
    assert "no race, no hang: 2 CTAs" in capsys.readouterr().out
