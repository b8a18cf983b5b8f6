"""The rule of docs/values.md as the runner on a GPU applies it; here with PyTorch on the CPU."""

import pytest

torch = pytest.importorskip("torch")

from fa4gen.bench.runner.judge import RMS_FACTOR, compare  # noqa: E402
from fa4gen.bench.runner.problem import make_inputs, plain, reference, sdpa  # noqa: E402

CASE = {
    "batch": 2, "heads": 2, "heads_kv": 2, "seqlen_q": 129, "seqlen_k": 129, "head_dim": 128,
    "head_dim_v": 128, "dtype": "bfloat16", "causal": False, "layout": "contiguous",
}  # fmt: skip


def tensors(case: dict[str, object]) -> dict[str, object]:
    made, _ = make_inputs(torch, case, "cpu", torch.Generator().manual_seed(0))
    o, lse = reference(torch, made["q"], made["k"], made["v"], case)
    made["lse"].copy_(lse.view(made["lse"].shape))
    made["o"].copy_(o.view(2, 2, 129, 128).transpose(1, 2))
    return made


def weights(t: dict[str, object], reference_off: float) -> "torch.Tensor":
    """An output from exponentials rounded 2^reference_off above those relative to the maximum."""
    q, k, v = (t[n].transpose(1, 2).double() for n in "qkv")
    s = q @ k.transpose(-1, -2) * 128**-0.5
    p = (s - s.amax(-1, keepdim=True)).exp() * 2.0**reference_off
    o = p.bfloat16().double() @ v / p.sum(-1, keepdim=True)
    return o.bfloat16().transpose(1, 2)


def test_the_exact_answer_is_right() -> None:
    found, faults = compare(torch, tensors(CASE), CASE)
    assert faults == []
    assert found["rms"] < found["torch_rms"]


@pytest.mark.parametrize("off", [0.0, 0.3])
def test_a_maximum_that_is_not_the_rows_own_is_right(off: float) -> None:
    """Fused attention rounds the largest weight, 1, without an error; the rule does not ask it."""
    t = tensors(CASE)
    t["o"].copy_(weights(t, off))
    found, faults = compare(torch, t, CASE)
    assert faults == []
    fused = sdpa(torch, t["q"], t["k"], t["v"], CASE)[0]().flatten(0, 1).double()
    exact, _ = reference(torch, t["q"], t["k"], t["v"], CASE)
    beside = found["rms"] / float((fused - exact).square().mean().sqrt())
    assert (beside > RMS_FACTOR) == (off > 0)


@pytest.mark.parametrize("causal", [False, True])
def test_more_than_plain_pytorch_is_wrong(causal: bool) -> None:
    case = {**CASE, "causal": causal}
    t = tensors(case)
    exact = t["o"].double().transpose(1, 2).flatten(0, 1)
    own = plain(torch, t["q"], t["k"], t["v"], case).double()
    for factor, right in ((RMS_FACTOR - 0.05, True), (RMS_FACTOR + 0.4, False)):
        made = exact + factor * (own - exact)
        t["o"].copy_(made.view(2, 2, 129, 128).transpose(1, 2))
        assert (compare(torch, t, case)[1] == []) == right
