"""`attention` on this machine's GPU, compiled on first use; skipped where there is none.

`run_runtime.py` beside this file does more, on a machine with neither the DSL nor pytest.
"""

import pytest
import torch

import fa4gen
from tests.api.kernels import reference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU"),
]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("lengths", [(1, 1), (65, 129), (300, 200), (1025, 1025)])
def test_values(lengths: tuple[int, int], head_dim: int, causal: bool) -> None:
    q, k, v = (
        torch.randn(2, n, h, head_dim).to("cuda", torch.bfloat16)
        for n, h in ((lengths[0], 6), (lengths[1], 2), (lengths[1], 2))
    )
    o, lse = fa4gen.attention(q, k, v, causal=causal, return_lse=True)
    ref, rows = reference(q.cpu(), k.cpu(), v.cpu(), causal, head_dim**-0.5)
    assert torch.allclose(o.cpu().double(), ref, atol=2e-2)
    assert torch.allclose(lse.cpu().double(), rows, atol=1e-4)
