"""The judge itself: it accepts roundings, and nothing else."""

import pytest
import torch

from fa4gen.emulator.attention import (
    AttentionProblem,
    attend,
    exact_forward,
    fuse,
    judge_backward,
    judge_forward,
    make_inputs,
)

SHAPES = [
    AttentionProblem(seqlen_q=33, seqlen_k=50, head_dim=64, head_dim_v=64),
    AttentionProblem(
        heads=4, heads_kv=2, seqlen_q=50, seqlen_k=33, head_dim=64, head_dim_v=32, causal=True
    ),
]


@pytest.mark.parametrize("problem", SHAPES)
def test_attention_equals_pytorchs_own_where_every_row_sees_a_key(
    problem: AttentionProblem,
) -> None:
    x = make_inputs(problem, 1)
    q, k, v = (t.double().transpose(1, 2) for t in (x.q, x.k, x.v))
    mask = None
    if problem.causal:
        offset = problem.seqlen_k - problem.seqlen_q
        mask = torch.ones(problem.seqlen_q, problem.seqlen_k, dtype=torch.bool).tril(offset)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    want = sdpa(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    out, lse = attend(problem, x.q.double(), x.k.double(), x.v.double())
    blind = max(0, problem.seqlen_q - problem.seqlen_k) if problem.causal else 0
    assert torch.allclose(out[:, blind:], want[:, blind:], atol=1e-12)
    assert (out[:, :blind] == 0).all()
    assert torch.isneginf(lse[..., :blind]).all()
    assert lse[..., blind:].isfinite().all()


@pytest.mark.parametrize("problem", SHAPES)
def test_rounded_results_are_right_and_damaged_ones_wrong(problem: AttentionProblem) -> None:
    x = make_inputs(problem, 2)
    out, lse = exact_forward(problem, x)
    assert all(v.right for v in judge_forward(problem, x, out, lse))
    for damage in (float("nan"), float("inf"), 0.05):
        worse = out.clone()
        worse[0, -1, 0, 0] += damage
        assert [v.right for v in judge_forward(problem, x, worse, lse)] == [False, True]
    assert [v.right for v in judge_forward(problem, x, out, lse + 1e-3)] == [True, False]


@pytest.mark.parametrize("problem", SHAPES)
def test_gradients_are_judged_one_by_one(problem: AttentionProblem) -> None:
    x = make_inputs(problem, 3)
    leaves = [t.double().requires_grad_() for t in (x.q, x.k, x.v)]
    out, _ = attend(problem, *leaves)
    grads = [g.bfloat16() for g in torch.autograd.grad(out, leaves, x.d_out.double())]
    assert all(v.right for v in judge_backward(problem, x, tuple(grads)))
    grads[1] = grads[1] * 1.1
    assert [v.right for v in judge_backward(problem, x, tuple(grads))] == [True, False, True]


def test_fused_roundings_are_those_of_pytorchs_fused_attention() -> None:
    """On the CPU: the same errors within 2 %, less than half of the step-by-step one's."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    problem = AttentionProblem(
        batch=2, heads=2, heads_kv=2, seqlen_q=129, seqlen_k=300, head_dim=128, head_dim_v=128
    )
    x = make_inputs(problem, 0)
    exact, _ = attend(problem, x.q.double(), x.k.double(), x.v.double())
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = torch.nn.functional.scaled_dot_product_attention(
            *(t.transpose(1, 2) for t in (x.q, x.k, x.v))
        ).transpose(1, 2)
    plain, _ = attend(problem, x.q, x.k, x.v)
    rms = {
        name: (t.double() - exact).square().mean().sqrt().item()
        for name, t in (
            ("ours", fuse(problem, x.q, x.k, x.v)),
            ("theirs", theirs),
            ("plain", plain),
        )
    }
    assert rms["ours"] == pytest.approx(rms["theirs"], rel=0.02)
    assert rms["theirs"] < 0.5 * rms["plain"]


@pytest.mark.parametrize("causal", [False, True])
def test_fused_roundings_are_few_under_every_mask(causal: bool) -> None:
    """Rows without keys are 0; in float64 nothing is left but the exact answer."""
    problem = AttentionProblem(
        heads=2, seqlen_q=50, seqlen_k=33, head_dim=64, head_dim_v=32, causal=causal, sinks=causal
    )
    x = make_inputs(problem, 1)
    double = [t.double() for t in (x.q, x.k, x.v)]
    assert torch.allclose(fuse(problem, *double), attend(problem, *double)[0], atol=1e-12)
