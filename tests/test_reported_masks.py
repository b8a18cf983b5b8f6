"""Faults of masks and scores that users reported elsewhere, run here in the emulator.

Each test names where it was reported. What concerns the order of softcap and ALiBi
(NVIDIA/TransformerEngine#3391) is in `test_features`: both together against one stated order.
"""

import math
from pathlib import Path

import pytest
import torch

from fa4gen import driver
from fa4gen.emit.render import render
from fa4gen.emulate import Emulated, emulate
from fa4gen.emulator import Emulator
from fa4gen.ir.features import OPEN
from fa4gen.options import Options
from fa4gen.runtime.compile import Request, compile_cached

SCHEDULES = Path(__file__).parents[1] / "schedules"
pytestmark = [
    pytest.mark.dsl,
    pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"]),
]
ALL = ("window", "softcap", "alibi", "sinks")


def run(name: str, **asked: object) -> Emulated:
    pytest.importorskip("cutlass")
    return emulate(SCHEDULES / f"{name}.yaml", **asked)  # type: ignore[arg-type]


def forward(
    name: str,
    features: tuple[str, ...],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *values: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE of a kernel with these features on given tensors, with the usual scale."""
    pytest.importorskip("cutlass")
    settings = dict.fromkeys(features, "true")
    checked = driver.check(SCHEDULES / f"{name}.yaml", settings=settings)
    schedule, text = checked.schedule, render(checked.program).text
    request = Request(name=schedule.name, target=schedule.target, text=text)
    made = compile_cached(request, Options.from_environment())
    fwd = Emulator(target=schedule.target).load(made.shared_object, ptx=[made.ptx])["fwd"]
    out = torch.full_like(q, float("nan"))
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"))
    fwd(q, k, v, out, lse, q.shape[-1] ** -0.5, 1, *values).raise_if_faulty()
    return out, lse


@pytest.mark.parametrize("length", [256, 257])
def test_load_and_compute_roles_visit_the_same_blocks(name: str, length: int) -> None:
    """flashinfer-ai/flashinfer#3578, #3682: 257 keys and a window of 511 hang, 256 do not."""
    done = run(name, window=(511, 0), seqlen_q=length, seqlen_k=length)
    assert done.ok, str(done)


@pytest.mark.parametrize(("sq", "sk"), [(129, 129), (129, 20), (300, 65), (1, 100)])
def test_a_window_that_leaves_rows_without_keys(name: str, sq: int, sk: int) -> None:
    """Dao-AILab/flash-attention#2199: such rows are 0 and -inf; the judge insists on both."""
    done = run(name, window=(32, 64), seqlen_q=sq, seqlen_k=sk)
    assert done.ok, str(done)


def test_a_window_open_to_the_left_and_shifted_at_the_right(name: str) -> None:
    """Dao-AILab/flash-attention#2634."""
    done = run(name, window=(None, -30), seqlen_q=200, seqlen_k=150)
    assert done.ok, str(done)


def test_causal_with_more_queries_than_keys(name: str) -> None:
    """Dao-AILab/flash-attention#1778: the first rows see nothing; they are 0, their LSE -inf."""
    done = run(name, settings={"causal": "true"}, seqlen_q=300, seqlen_k=150)
    assert done.ok, str(done)


def test_a_sink_is_in_the_denominator(name: str) -> None:
    """modular/modular#6198, #6591: scores 0, values 1, a positive sink: n / (n + e^sink)."""
    keys, sink = 160, 5.916
    q, k = torch.zeros(1, 10, 2, 64).bfloat16(), torch.randn(1, keys, 1, 64).bfloat16()
    values = (OPEN, OPEN, 30.0, torch.zeros(1, 2), torch.tensor([sink, -sink]))
    out, lse = forward(name, ALL, q, k, torch.ones_like(k), *values)
    for head, logit in enumerate((sink, -sink)):
        expected = keys / (keys + math.exp(logit))
        assert torch.allclose(out[:, :, head].double(), torch.tensor(expected).double(), rtol=4e-3)
        assert (lse[:, head] - math.log(keys + math.exp(logit))).abs().max() < 1e-4
    assert expected > 0.99
    assert abs(out[0, 0, 0, 0] - 0.3013) < 2e-3  # the value that was reported as missing


@pytest.mark.parametrize("sink", [200.0, -200.0, float("-inf")])
def test_sinks_far_from_the_scores(name: str, sink: float) -> None:
    """e^sink overflows float32, or is nothing: the LSE is right all the same."""
    q, k = torch.zeros(1, 5, 1, 64).bfloat16(), torch.randn(1, 40, 1, 64).bfloat16()
    values = (OPEN, OPEN, 30.0, torch.zeros(1, 1), torch.tensor([sink]))
    out, lse = forward(name, ALL, q, k, torch.ones_like(k), *values)
    assert torch.equal(out, torch.full_like(out, 0.0 if sink > 0 else 1.0))
    assert (lse - max(sink, math.log(40))).abs().max() < 1e-4
    hidden = (OPEN, -100, *values[2:])  # no row sees a key
    out, lse = forward(name, ALL, q, k, torch.ones_like(k), *hidden)
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, sink))


def test_one_key_with_a_huge_negative_score(name: str) -> None:
    """flashinfer-ai/flashinfer#4451: output the value, LSE the scaled score."""
    q, k = torch.full((1, 1, 1, 64), 64.0), torch.full((1, 1, 1, 64), -128.0)
    v = torch.ones_like(k).bfloat16()
    out, lse = forward(name, (), q.bfloat16(), k.bfloat16(), v)
    assert torch.equal(out, v)
    assert abs(lse.item() / (-524288 / 8) - 1) < 1e-6
