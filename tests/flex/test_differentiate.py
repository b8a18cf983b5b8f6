"""Derivatives of traced functions are those of torch's autograd."""

from typing import Any

import pytest
import torch

from fa4gen.flex.differentiate import differentiate, with_derivative
from fa4gen.flex.interpret import interpret
from fa4gen.flex.trace import trace_score_mod
from fa4gen.ir.expression import Modifiers

BIAS = torch.randn(4, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
GATE = torch.rand(9, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5


def softcap(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return 5.0 * torch.tanh(s / 5.0)


def learned(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * torch.sigmoid(BIAS[h, q]) + BIAS[h, k] * GATE[k]


def shifted(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(q >= k, s - GATE[q - k], torch.exp(-s.abs()) * GATE[k] / (1 + s * s))


def many(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    x = torch.maximum(s, GATE[k]) - torch.minimum(s, BIAS[h, q]) + torch.sqrt(1 + s * s)
    y = torch.rsqrt(2 + s * s) + torch.log(GATE[q]) * torch.exp2(s) + torch.log2(1 + s * s)
    return x + y + torch.sin(s) * torch.cos(BIAS[h, k]) + torch.floor(s) + s % GATE[k] - (-s) ** 3


@pytest.mark.parametrize("function", [softcap, learned, shifted, many])
def test_against_autograd(function: Any) -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 4, 9, 9, generator=generator, dtype=torch.float64)
    inputs = {
        name: torch.arange(n).view([n if i == d else 1 for i in range(4)])
        for d, (name, n) in enumerate({"batch": 2, "head": 4, "query": 9, "key": 9}.items())
    }
    traced = trace_score_mod(function)
    made = differentiate(traced.expression, range(len(traced.tensors)))
    leaves = [t.clone().requires_grad_() for t in (scores, *traced.tensors)]
    (value,) = interpret(
        traced.expression,
        {"score": leaves[0], **inputs},
        numbers=traced.numbers,
        tensors=leaves[1:],
    )
    wanted = torch.autograd.grad(value.sum(), leaves, allow_unused=True)
    same, d_score, *rest = interpret(
        made.expression, {"score": scores, **inputs}, numbers=traced.numbers, tensors=traced.tensors
    )
    assert torch.equal(same, value.detach())
    assert torch.allclose(d_score.expand_as(scores), wanted[0])
    found = [torch.zeros_like(t) for t in traced.tensors]
    for tensor, rank in made.elements:
        *indices, gradient = (x.expand_as(scores).flatten() for x in rest[: rank + 1])
        wrapped = [
            torch.where(i < 0, i + n, i) for i, n in zip(indices, found[tensor].shape, strict=True)
        ]
        found[tensor].index_put_(tuple(wrapped), gradient, accumulate=True)
        rest = rest[rank + 1 :]
    for got, expected in zip(found, wanted[1:], strict=True):
        assert expected is not None
        assert torch.allclose(got, expected)


def test_only_what_is_asked_for() -> None:
    made = differentiate(trace_score_mod(learned).expression)
    assert made.elements == ()
    assert len(made.expression.results) == 2


def biased(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s - 0.5 * (q - k).abs()


@pytest.mark.parametrize(("function", "results"), [(biased, 1), (softcap, 2)])
def test_a_backward_has_a_derivative_where_it_is_not_1(function: Any, results: int) -> None:
    made = with_derivative(Modifiers(score=trace_score_mod(function).expression))
    assert made.score is not None
    assert len(made.score.results) == results
