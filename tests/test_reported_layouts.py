"""Faults of lengths, head groups, splits and sizes that users reported elsewhere: right or refused.

report                                    here
Dao-AILab/flash-attention#2300            10 heads a KV head, decoding and not: test_packed_heads
pytorch/pytorch#143117                    9 heads over 3, five queries: test_packed_heads
flashinfer-ai/flashinfer#1198             no keys for one of several sequences: test_varlen, below
flashinfer-ai/flashinfer#1103             padded tiles of short sequences: below, smaller
flashinfer-ai/flashinfer#3716             fewer keys than a tile, full, decoding: below
pytorch/pytorch#134650                    a row that no split sees: -inf: test_splits
vllm-project/flash-attention#176          splits of several sequences: test_splits, test_varlen
flagos-ai/FlagGems#5235                   the combination writes where it should: below
flashinfer-ai/flashinfer#3871             causal among several new tokens: test_splits
Dao-AILab/flash-attention#1786            80,000 packed sequences: test_varlen (their grid)
Dao-AILab/flash-attention#2515            no queries, no sequences: below
flashinfer-ai/flashinfer#2801             other batches than promised are refused: below
pytorch/pytorch#146704                    65,536 in a batch with lengths is refused: below
Dao-AILab/flash-attention#2368            pages of 16 and 48 at (192,128), below; others: test_pages
flashinfer-ai/flashinfer#4347             pages of 256 past 4096 keys at head dim 256: below
"""

from pathlib import Path
from typing import Any

import pytest
import torch

import fa4gen
from fa4gen.diag import Fa4genError
from fa4gen.emulate import emulate
from tests.api.kernels import on_cpu

SCHEDULES = Path(__file__).parents[1] / "schedules"
BOTH = pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"])


def assert_right(name: str, **asked: Any) -> None:
    pytest.importorskip("cutlass")
    given = {"seqlen_q": 1, "seqlen_k": 1, "heads_kv": 1} | asked
    done = emulate(SCHEDULES / f"{name}.yaml", **given)
    assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_tiles_behind_short_sequences_hold_nothing(name: str) -> None:
    """Lengths that are no multiples of a tile, as in the report, and one without keys."""
    lengths = (127, 129, 134, 128, 130, 134, 1)
    assert_right(name, heads=1, lengths_q=lengths, lengths_k=(*lengths[:-1], 0))


@pytest.mark.dsl
@BOTH
def test_padding_of_a_short_cache_never_counts(name: str) -> None:
    assert_right(name, heads=2, seqlen_k=16)


@pytest.mark.dsl
@BOTH
def test_the_combination_writes_its_own_rows_alone(name: str) -> None:
    """The emulator reports any access outside of the tensors; rows are (heads, head_dim) apart."""
    settings = {"pack_gqa": "true", "causal": "true"}
    assert_right(name, heads=6, heads_kv=2, seqlen_q=3, seqlen_k=300, splits=2, settings=settings)


@pytest.mark.dsl
@pytest.mark.parametrize("name", ["fwd", "fwd_sm90"])
def test_pages_at_head_dims_192_and_128(name: str) -> None:
    """Pages that are smaller than a block, one query and many."""
    settings = {"head_dim": "192", "head_dim_v": "128", "causal": "true"}
    for queries, page_size in ((1, 16), (128, 16), (128, 48)):
        sizes = {"seqlen_q": queries, "seqlen_k": 200, "used_k": (200,), "page_size": page_size}
        assert_right(name, heads=1, settings=settings, races=False, **sizes)


@pytest.mark.dsl
def test_pages_of_256_past_4096_keys() -> None:
    sizes = {"seqlen_q": 1, "seqlen_k": 4400, "used_k": (4400,), "page_size": 256}
    settings = {"head_dim": "256", "head_dim_v": "256", "pack_gqa": "true"}
    assert_right("fwd_sm90", heads=4, settings=settings, races=False, **sizes)


def ends(*lengths: int) -> Any:
    return torch.tensor((0, *lengths)).cumsum(0).int()


def normal(*shape: int) -> Any:
    return torch.randn(*shape, 64).bfloat16()


@pytest.mark.parametrize("lengths", [(), (0, 0)])
def test_no_queries_are_an_empty_result(
    monkeypatch: pytest.MonkeyPatch, lengths: tuple[int, ...]
) -> None:
    with on_cpu(monkeypatch) as kernels:
        given = {"cu_seqlens_q": ends(*lengths), "cu_seqlens_k": ends(*lengths)}
        q, k = normal(0, 4), normal(0, 2)
        out, lse = fa4gen.flash_attn_varlen_func(q, k, k, return_lse=True, **given)
        assert (out.shape, lse.shape) == ((0, 4, 64), (4, 0))  # type: ignore[union-attr]
        assert not kernels


@pytest.mark.parametrize(
    ("code", "q", "k", "more"),
    [
        ("FA0802.*numbers of sequences", (3, 1, 4), (2, 9, 2), {"seqused_k": (9, 9)}),
        ("FA0809.*batch of 65536", (65536, 1, 1), (65536, 1, 1), {"seqused_k": (1,) * 65536}),
        ("FA0802.*numbers of sequences", (3, 1, 4), (9, 16, 2), {"page_table": ((0,), (1,))}),
        ("FA0802.*`page_table`", (2, 1, 4), (9, 16, 2), {"page_table": (0, 1)}),
        ("FA0809.*pages of 9 keys", (2, 1, 4), (2, 9, 2), {"page_table": ((0,), (1,))}),
    ],
)
def test_what_is_not_right_is_refused(
    monkeypatch: pytest.MonkeyPatch, code: str, q: Any, k: Any, more: dict[str, Any]
) -> None:
    tensors = {name: torch.tensor(value, dtype=torch.int32) for name, value in more.items()}
    with on_cpu(monkeypatch), pytest.raises(Fa4genError, match=code):
        fa4gen.flash_attn_varlen_func(normal(*q), normal(*k), normal(*k), **tensors)
