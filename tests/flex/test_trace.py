"""What a traced function becomes, what stays an argument, and what is refused in which words."""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import and_masks, or_masks

from fa4gen.diag import Fa4genError
from fa4gen.flex.trace import trace_mask_mod, trace_score_mod

WINDOW = 128
TABLE = torch.zeros(300)


def window(size: int) -> Callable[..., Any]:
    return lambda b, h, q, k: q - k <= size


def softcap(cap: float) -> Callable[..., Any]:
    return lambda score, b, h, q, k: cap * torch.tanh(score / cap)


def test_the_expression_is_the_function_and_not_who_wrote_it() -> None:
    def other(score: Any, batch: Any, head: Any, i: Any, j: Any) -> Any:
        limit = bound
        return (score / limit).tanh() * limit

    bound = 7.5
    one, two = trace_score_mod(softcap(30.0)), trace_score_mod(other)
    assert str(one.expression) == str(two.expression)
    assert (one.numbers, two.numbers) == ((30.0,), (7.5,))
    assert str(one.expression) == (
        "%0 = score(): f32\n%1 = number 0(): f32\n%2 = div(%0, %1): f32\n"
        "%3 = tanh(%2): f32\n%4 = mul(%1, %3): f32\nreturn %4"
    )


def test_numbers_are_captured_from_cells_defaults_globals_and_partials() -> None:
    def default(b: Any, h: Any, q: Any, k: Any, size: int = 5) -> Any:
        return q - k <= size

    def from_global(b: Any, h: Any, q: Any, k: Any) -> Any:
        return q - k <= WINDOW

    def keyword(b: Any, h: Any, q: Any, k: Any, *, size: int) -> Any:
        return q - k <= size

    found = [
        trace_mask_mod(f)
        for f in (window(3), default, from_global, functools.partial(keyword, size=9))
    ]
    assert len({str(f.expression) for f in found}) == 1
    assert [f.numbers for f in found] == [(3,), (5,), (WINDOW,), (9,)]


def test_combined_masks_keep_their_numbers() -> None:
    both = trace_mask_mod(and_masks(window(3), or_masks(window(4), lambda b, h, q, k: q >= k)))
    assert both.numbers == (3, 4)


def test_a_number_that_python_needs_is_part_of_the_expression() -> None:
    def repeated(n: int, factor: float) -> Callable[..., Any]:
        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            for _ in range(n):
                score = score * factor
            return score if n > 1 else -score

        return score_mod

    two, three = trace_score_mod(repeated(2, 0.3)), trace_score_mod(repeated(3, 0.3))
    assert str(two.expression) != str(three.expression)
    rooted = trace_score_mod(lambda score, b, h, q, k: score * math.sqrt(WINDOW))
    assert rooted.numbers == ()
    assert "11.31" in str(rooted.expression)


def test_tensors_are_captured_wherever_they_come_from() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(4, 7))

        def forward(self, score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return score + self.bias[h][k] * TABLE.float()[q]

    module = Module()
    traced = trace_score_mod(module)
    assert traced.tensors[0] is module.bias
    assert [(t.dtype, t.rank) for t in traced.captured] == [("float32", 2), ("float32", 1)]


def test_types_are_promoted_as_torch_does() -> None:
    text = str(
        trace_mask_mod(lambda b, h, q, k: (q + 1.5) // 2 == torch.ones(9).long()[k]).expression
    )
    assert "floordiv(%5, %6): f32" in text or "floordiv" in text
    assert str(trace_mask_mod(lambda b, h, q, k: (q >= k) + (k < 3)).expression).count("or(") == 1


@pytest.mark.parametrize(
    ("function", "short"),
    [
        (lambda b, h, q, k: (q >= k) & (q - q == 0), "le(%1, %0)"),
        (lambda b, h, q, k: ~(k > q), "le(%1, %0)"),
        (lambda b, h, q, k: q - k >= 0, "le(%1, %0)"),
        (lambda b, h, q, k: torch.where(k <= q, True, False), "le(%1, %0)"),
        (lambda b, h, q, k: (q * 1 + 0) >= torch.abs(torch.abs(k)) * 2 // 2 % (1 << 40), None),
    ],
)
def test_what_changes_nothing_is_left_out(function: Any, short: str | None) -> None:
    expression = trace_mask_mod(function).expression
    if short:
        assert str(expression) == (
            f"%0 = query(): i32\n%1 = key(): i32\n%2 = {short}: bool\nreturn %2"
        )
    assert "query" in str(expression)


def prints(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    print("tracing", score)
    return score


def makes_text(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * len(f"{score}")


def branches(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score if q >= k else -score


def chains(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(0 <= q - k < 5, score, 0)


def calls_numpy(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return np.abs(score)


def calls_math(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score * math.exp(q)


def asks(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + score.item()


def unknown(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.special.bessel_j0(score)


def reduces(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score - score.sum()


def in_place(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score.mul_(2)


def writes(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    TABLE[q] = score
    return score


def slices(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + TABLE[q:].sum()


def leaves_dimensions(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return score + TABLE


def nothing(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    pass


def wrong_arguments(score: Any, b: Any) -> Any:
    return score


@pytest.mark.parametrize(
    ("function", "words", "fix"),
    [
        (prints, "it prints", "take it out"),
        (makes_text, "makes a string", "take it out"),
        (branches, "branches on a score or an index", "torch.where"),
        (chains, "branches", "(a <= x) & (x < b)"),
        (calls_numpy, "numpy.absolute", "torch's function"),
        (calls_math, "Python's `math`", "torch's functions"),
        (asks, "`item` asks for a value", "torch.where"),
        (unknown, "have no `special_bessel_j0`", "they have arithmetic"),
        (reduces, "`sum` needs other scores", "compute the rest before"),
        (in_place, "`mul_` changes a tensor in place", "use `mul`"),
        (writes, "writes into a tensor", "return a new value"),
        (slices, "an index or a count in Python", "stay on tensors"),
        (leaves_dimensions, "1 dimensions left", "index it down"),
        (nothing, "returns nothing", "return"),
        (wrong_arguments, "takes 2 positional arguments but 5 were given", ""),
    ],
)
def test_what_cannot_be_traced_is_refused_at_its_line(function: Any, words: str, fix: str) -> None:
    with pytest.raises(Fa4genError) as caught:
        trace_score_mod(function)
    (diagnostic,) = caught.value.diagnostics
    assert diagnostic.code == "FA0820"
    assert words in diagnostic.title
    assert fix in diagnostic.fix
    assert diagnostic.span
    assert diagnostic.span.file == __file__
    first = function.__code__.co_firstlineno
    if function not in (nothing, wrong_arguments):
        assert diagnostic.span.line == first + 1
        assert "^^^" in str(caught.value)


def test_a_function_that_is_none() -> None:
    with pytest.raises(Fa4genError, match="it is a int, and cannot be called"):
        trace_mask_mod(3)  # type: ignore[arg-type]
