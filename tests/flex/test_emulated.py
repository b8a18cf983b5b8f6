"""Kernels with users' functions and block lists, compiled and emulated; more in bench/flex.py."""

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask

from fa4gen.bench.runner.modifications import MODIFICATIONS, Sizes

from .emulated import run, run_backward


def kept_blocks(last: int = 2) -> BlockMask:
    """Lists that only they know: a function that hides nothing, an entry of -1 behind the count,
    a row without blocks, full blocks, the tail. The last row lists `last` blocks: with one, the
    first keys are in no list."""
    counts = torch.tensor([[[1, 0, last]]], dtype=torch.int32)
    indices = torch.tensor([[[[1, -1, -1], [-1, -1, -1], [2, 0, -1]]]], dtype=torch.int32)
    full = torch.tensor([[[1, 0, 0]]], dtype=torch.int32)
    full_indices = torch.tensor([[[[2, -1, -1], [-1, -1, -1], [-1, -1, -1]]]], dtype=torch.int32)
    return BlockMask.from_kv_blocks(
        counts,
        indices,
        full,
        full_indices,
        BLOCK_SIZE=128,
        seq_lengths=(300, 333),
        compute_q_blocks=False,
    )


@pytest.mark.dsl
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_listed_blocks_alone_count(target: str) -> None:
    """With a score function, and a mask that hides nothing (a mask is then looked for in lists)."""
    x = Sizes(batch=1, heads=1, seqlen_q=300, seqlen_k=333)
    score_mod, _ = MODIFICATIONS["alibi_table"](x)
    ran = run(target, x, score_mod, kept_blocks())
    assert ran.right, ran.said
    assert not ran.report.faulty, (ran.report.races, ran.report.faults, ran.report.deadlock)
    assert not ran.out[:, 128:256].any()
    assert bool((ran.lse[..., 128:256] == float("-inf")).all())


@pytest.mark.dsl
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_listed_blocks_alone_have_gradients(target: str) -> None:
    """With a score function whose derivative depends on the score, over lists by keys: rows and
    keys that nobody sees have gradients of exactly 0."""
    x = Sizes(batch=1, heads=1, seqlen_q=300, seqlen_k=333)
    score_mod, _ = MODIFICATIONS["softcap"](x)
    ran = run_backward(target, x, score_mod, kept_blocks(1))
    assert ran.right, ran.said
    assert not ran.report.faulty, (ran.report.races, ran.report.faults, ran.report.deadlock)
    dq, dk, dv = ran.gradients
    assert not dq[:, 128:256].any()
    assert not dk[:, :128].any()
    assert not dv[:, :128].any()
