"""Masks that schedules have: recognised where that is certain, and nowhere else."""

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import and_masks

from fa4gen.flex.recognise import Known, Number, recognise
from fa4gen.flex.trace import trace_mask_mod

IDS = torch.zeros(9, dtype=torch.int32)
OTHER = torch.zeros(9, dtype=torch.int32)


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(size: int) -> Any:
    return lambda b, h, q, k: (q - k < size) & (q >= k)


@pytest.mark.parametrize(
    ("mask", "known"),
    [
        (causal, Known(causal=True)),
        (lambda b, h, q, k: k <= q, Known(causal=True)),
        (lambda b, h, q, k: k - q <= 0, Known(causal=True)),
        (lambda b, h, q, k: b >= 0 if False else q == q, Known()),
        (window(5), Known(causal=True, left=Number(0, -1))),
        (lambda b, h, q, k: (q - k <= 7) & (k - q <= 3), Known(left=7, right=3)),
        (lambda b, h, q, k: IDS[q] == IDS[k], Known(document=0)),
        (and_masks(causal, lambda b, h, q, k: IDS[k] == IDS[q]), Known(causal=True, document=0)),
        (lambda b, h, q, k: q > k, None),
        (lambda b, h, q, k: q <= k, None),
        (lambda b, h, q, k: (q >= k) | (k < 4), None),
        (lambda b, h, q, k: IDS[q] == OTHER[k], None),
        (lambda b, h, q, k: IDS[q] == IDS[q + 1], None),
        (lambda b, h, q, k: IDS[b] == IDS[k], None),
        (lambda b, h, q, k: q + 1 >= k, None),
        (and_masks(window(5), window(9)), None),
    ],
)
def test_masks(mask: Any, known: Known | None) -> None:
    assert recognise(trace_mask_mod(mask).expression) == known
