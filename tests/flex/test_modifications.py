"""Twenty published modifications: traced and interpreted, they are what eager FlexAttention
computes."""

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

from fa4gen.bench.runner.modifications import MODIFICATIONS, Sizes
from fa4gen.flex.interpret import interpret
from fa4gen.flex.modifiers import Function
from fa4gen.flex.trace import trace_mask_mod, trace_score_mod

SIZES = Sizes(batch=2, heads=4, seqlen_q=150, seqlen_k=170)


def indices(x: Sizes) -> dict[str, torch.Tensor]:
    sizes = {"batch": x.batch, "head": x.heads, "query": x.seqlen_q, "key": x.seqlen_k}
    return {
        name: torch.arange(n, dtype=torch.int32).view([n if d == i else 1 for d in range(4)])
        for i, (name, n) in enumerate(sizes.items())
    }


def run(traced: Function, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    (found,) = interpret(traced.expression, inputs, numbers=traced.numbers, tensors=traced.tensors)
    return found


def attention(
    x: Sizes, score_mod: Any, mask_mod: Any
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(x.batch, x.heads, n, 32, generator=generator, dtype=torch.float64)
        for n in (x.seqlen_q, x.seqlen_k, x.seqlen_k)
    )
    scores = q @ k.transpose(-1, -2) * 32**-0.5
    inputs = indices(x)
    if score_mod is not None:
        scores = run(trace_score_mod(score_mod), {"score": scores, **inputs})
    if mask_mod is not None:
        scores = scores.masked_fill(~run(trace_mask_mod(mask_mod), inputs), float("-inf"))
    return (q, k, v), scores.softmax(-1).nan_to_num(0.0) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("name", MODIFICATIONS)
def test_traced_and_interpreted_it_is_eager_flex_attention(name: str) -> None:
    score_mod, mask_mod = MODIFICATIONS[name](SIZES)
    (q, k, v), out, lse = attention(SIZES, score_mod, mask_mod)
    mask = None
    if mask_mod is not None:
        sizes = SIZES.batch, SIZES.heads, SIZES.seqlen_q, SIZES.seqlen_k
        mask = torch_flex.create_block_mask(mask_mod, *sizes, device="cpu")
    torch_flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True  # the eager path, not traced by dynamo
    try:
        expected, expected_lse = torch_flex.flex_attention(
            q, k, v, score_mod=score_mod, block_mask=mask, return_lse=True
        )
    finally:
        torch_flex._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = False
    assert (out - expected).abs().max() < 1e-6
    seen = expected_lse > -1e4
    assert (lse - expected_lse)[seen].abs().max() < 1e-5
