"""This project's schedules, built by the DSL and run: right values, no race, no hang.

A few lengths and one seed here; `python bench/emulator_own.py` runs all of them.
"""

from pathlib import Path

import pytest
import torch

from fa4gen import driver
from fa4gen.emit.render import render
from fa4gen.emulator import Emulator
from fa4gen.emulator.attention import (
    AttentionProblem,
    judge_forward,
    judge_fused,
    make_inputs,
)
from fa4gen.emulator.report import Report
from fa4gen.ir.schedule import Schedule
from fa4gen.options import Options
from fa4gen.runtime.compile import Compiled, Request, compile_cached

SCHEDULES = Path(__file__).parents[2] / "schedules"
# over lists of blocks: tests/flex
PLAIN = sorted(p.stem for p in SCHEDULES.glob("fwd*.yaml") if not p.stem.startswith("fwd_lists"))
PAIRS = ((129, 300), (300, 513), (513, 129))


def build(name: str, causal: str) -> tuple[Schedule, Compiled]:
    pytest.importorskip("cutlass")
    checked = driver.check(SCHEDULES / f"{name}.yaml", settings={"causal": causal})
    schedule, text = checked.schedule, render(checked.program).text
    request = Request(name=schedule.name, target=schedule.target, text=text)
    return schedule, compile_cached(request, Options.from_environment())


@pytest.mark.dsl
@pytest.mark.parametrize("causal", ["false", "true"])
@pytest.mark.parametrize("name", PLAIN)
def test_a_shipped_schedule_is_right_and_without_a_fault(name: str, causal: str) -> None:
    schedule, made = build(name, causal)
    emulator = Emulator(target=schedule.target, seed=len(name))
    fwd = emulator.load(made.shared_object, ptx=[made.ptx])["fwd"]
    for sq, sk in PAIRS:
        problem = AttentionProblem(
            heads=2,
            heads_kv=1,
            seqlen_q=sq,
            seqlen_k=sk,
            head_dim=schedule.head_dim,
            head_dim_v=schedule.head_dim_v,
            causal=schedule.causal,
        )
        x = make_inputs(problem, sq)
        out, lse = torch.full_like(x.q, float("nan")), torch.full((1, 2, sq), float("nan"))
        report = fwd(x.q, x.k, x.v, out, lse, problem.scale, 2)  # 2 SMs: CTAs take several tiles
        report.raise_if_faulty()
        assert not report.warnings
        assert all(v.right for v in judge_forward(problem, x, out, lse))
        if schedule.target == "sm_90a":  # its maximum is always the row's own
            verdict = judge_fused(problem, x, out)
            assert verdict.right, verdict


@pytest.mark.dsl
def test_one_seed_is_one_run_whatever_the_processes_and_the_race_detection() -> None:
    schedule, made = build("fwd_hd64", "true")
    problem = AttentionProblem(
        heads=2, seqlen_q=300, seqlen_k=300, head_dim=64, head_dim_v=64, causal=True
    )
    x = make_inputs(problem, 0)

    def run(**asked: int | bool) -> tuple[torch.Tensor, torch.Tensor, Report]:
        emulator = Emulator(target=schedule.target, **asked)
        out, lse = torch.full_like(x.q, float("nan")), torch.full((1, 2, 300), float("nan"))
        fwd = emulator.load(made.shared_object, ptx=[made.ptx])["fwd"]
        return out, lse, fwd(x.q, x.k, x.v, out, lse, problem.scale, 2)

    out, lse, report = run(seed=5)
    for asked in ({"seed": 5}, {"seed": 5, "processes": 2}, {"seed": 5, "races": False}):
        again_out, again_lse, again = run(**asked)
        assert torch.equal(again_out, out)
        assert torch.equal(again_lse, lse)
        assert again.opcodes == report.opcodes
    assert run(seed=6)[2].opcodes != report.opcodes  # another interleaving: other numbers of polls
