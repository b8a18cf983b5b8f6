"""Lengths, caches, splits, packed heads of a call: their meaning, the kernel chosen, refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fa4gen
from fa4gen.diag import Fa4genError
from fa4gen.runtime.splits import packs, splits_of
from tests.api.kernels import Reference, on_cpu, reference

SCALE = 64**-0.5


@pytest.fixture(name="kernels")
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Reference]]:
    with on_cpu(monkeypatch) as made:
        yield made


def ends(*lengths: int) -> Any:
    return torch.tensor((0, *lengths)).cumsum(0).int()


def normal(*shape: int) -> Any:
    return torch.randn(*shape, 64).bfloat16()


def test_packed_sequences_equal_each_alone(kernels: Any) -> None:
    queries, keys = (5, 0, 3, 1), (7, 4, 0, 9)
    q, k, v = normal(9, 4), normal(20, 2), normal(20, 2)
    out, lse = fa4gen.flash_attn_varlen_func(
        q, k, v, cu_seqlens_q=ends(*queries), cu_seqlens_k=ends(*keys), causal=True, return_lse=True
    )
    assert out.shape == (9, 4, 64)
    assert lse.shape == (4, 9)
    parts = zip(q.split(queries), k.split(keys), v.split(keys), strict=True)
    for n, (a, b, c) in enumerate(parts):
        rows = slice(sum(queries[:n]), sum(queries[: n + 1]))
        ref, expected = reference(a[None], b[None], c[None], True, SCALE)
        assert torch.allclose(out[rows].double(), ref[0], atol=1e-3, rtol=1e-2)
        assert torch.allclose(lse[:, rows].double(), expected[0], atol=1e-4)
    assert [set(p.features) for p in kernels] == [{"varlen_q", "varlen_k", "pack_gqa"}]


def test_new_keys_go_behind_those_that_a_tensor_counts(kernels: Any) -> None:
    keys, values, k, v = (normal(3, n, 2) for n in (20, 20, 2, 2))
    q = normal(3, 2, 8)
    counts = torch.tensor([0, 7, 18], dtype=torch.int32)
    out = fa4gen.flash_attn_with_kvcache(q, keys, values, k, v, cache_seqlens=counts, causal=True)
    for n, used in enumerate((2, 9, 20)):
        assert torch.equal(keys[n, used - 2 : used], k[n])
        own = (q[n : n + 1], keys[n : n + 1, :used], values[n : n + 1, :used])
        ref, _ = reference(*own, True, SCALE)
        assert torch.allclose(out[n].double(), ref[0], atol=1e-3, rtol=1e-2)
    assert [set(p.features) for p in kernels] == [{"seqused_k", "pack_gqa"}]


def in_pages(size: int, *sequences: Any) -> tuple[Any, Any]:
    """A pool of pages, NaN where no sequence is, and the table; pages lie backwards in the pool."""
    counts = [-(-len(t) // size) for t in sequences]
    pool = torch.full((sum(counts) + 1, size, *sequences[0].shape[1:]), float("nan")).bfloat16()
    table = torch.full((len(sequences), max(counts) + 1), -1, dtype=torch.int32)
    pages = iter(range(sum(counts), 0, -1))
    for b, (t, count) in enumerate(zip(sequences, counts, strict=True)):
        for n in range(count):
            table[b, n] = next(pages)
            rows = t[n * size : (n + 1) * size]
            pool[table[b, n], : len(rows)] = rows
    return pool, table


@pytest.mark.parametrize("by", ["seqused_k", "cu_seqlens_k"])
def test_pages_of_sequences_equal_each_alone(kernels: Any, by: str) -> None:
    """`cu_seqlens_k` only says lengths, as version 2 of flash-attn has it."""
    queries, keys = (2, 3), (40, 9)
    q, k, v = normal(5, 4), normal(49, 2).split(keys), normal(49, 2).split(keys)
    (k_pool, table), (v_pool, _) = in_pages(16, *k), in_pages(16, *v)
    used = torch.tensor(keys, dtype=torch.int32) if by == "seqused_k" else ends(*keys)
    name = "page_table" if by == "seqused_k" else "block_table"
    out, _ = fa4gen.flash_attn_varlen_func(
        q, k_pool, v_pool, cu_seqlens_q=ends(*queries), causal=True, **{by: used, name: table}
    )
    for rows, a, b, c in zip(out.split(queries), q.split(queries), k, v, strict=True):
        ref, _ = reference(a[None], b[None], c[None], True, SCALE)
        assert torch.allclose(rows.double(), ref[0], atol=1e-3, rtol=1e-2)
    assert [set(p.features) for p in kernels] == [{"varlen_q", "seqused_k", "pages_16", "pack_gqa"}]


@pytest.mark.parametrize("lengths", [(7, 30), 11])
def test_new_keys_go_into_the_pages_that_the_table_names(kernels: Any, lengths: Any) -> None:
    k, v, new = normal(2, 40, 2), normal(2, 40, 2), normal(2, 3, 2)
    (k_pool, table), (v_pool, _) = in_pages(32, *k), in_pages(32, *v)
    q, used = normal(2, 3, 4), torch.tensor(lengths).expand(2).int()
    given = lengths if type(lengths) is int else used
    out = fa4gen.flash_attn_with_kvcache(
        q, k_pool, v_pool, new, new, cache_seqlens=given, block_table=table, causal=True
    )
    for n, length in enumerate(used.tolist()):
        k[n, length : length + 3] = v[n, length : length + 3] = new[n]
        own = (q[n : n + 1], k[n : n + 1, : length + 3], v[n : n + 1, : length + 3])
        ref, _ = reference(*own, True, SCALE)
        assert torch.allclose(out[n].double(), ref[0], atol=1e-3, rtol=1e-2)
    assert [set(p.features) for p in kernels] == [{"seqused_k", "pages_32", "pack_gqa"}]


def test_pools_of_any_layout_and_full_pages(kernels: Any) -> None:
    """K and V of a page side by side; heads before rows; all pages count without lengths."""
    both = normal(6, 2, 128, 2)
    table = torch.tensor([[4, 1], [0, 5]], dtype=torch.int32)
    q = normal(2, 1, 2)
    for k, v in (both.unbind(1), (t.transpose(1, 2) for t in normal(6, 2, 2, 128).unbind(1))):
        out = fa4gen.flash_attn_with_kvcache(q, k, v, block_table=table)
        for n, pages in enumerate(table.long()):
            own = (q[n : n + 1], k[pages].flatten(0, 1)[None], v[pages].flatten(0, 1)[None])
            ref, _ = reference(*own, False, SCALE)
            assert torch.allclose(out[n].double(), ref[0], atol=1e-3, rtol=1e-2)
    assert {f for p in kernels for f in p.features} == {"pages_128"}


def test_a_long_cache_is_split_and_a_sink_is_not(kernels: Any) -> None:
    q, cache = normal(1, 1, 8), normal(1, 3000, 1)
    fa4gen.flash_attn_with_kvcache(q, cache, cache)
    fa4gen.flash_attn_with_kvcache(q, cache, cache, num_splits=1, pack_gqa=False)
    fa4gen.flash_attn_with_kvcache(q, cache, cache, learnable_sink=torch.zeros(8))
    found = [set(p.features) for p in kernels]
    assert found == [{"split_kv", "pack_gqa"}, set(), {"sinks", "pack_gqa"}]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("FA0802.*numbers of sequences differ", {"cu_seqlens_q": ends(9)}),
        ("FA0802.*`cu_seqlens_q`", {"cu_seqlens_q": [0, 9]}),
        ("FA0803.*`cu_seqlens_q`", {"cu_seqlens_q": ends(4, 5).long()}),
        ("FA0804.*`cu_seqlens_q`", {"cu_seqlens_q": ends(4, 5).to("meta")}),
        ("FA0802.*`num_splits`", {"num_splits": -1}),
        ("FA0802.*one argument", {"page_table": ends(1)[None], "block_table": ends(1)[None]}),
    ],
)
def test_lengths_that_make_no_sense_are_refused(code: str, more: dict[str, Any]) -> None:
    given = {"cu_seqlens_q": ends(4, 5), "cu_seqlens_k": ends(4, 5)} | more
    with pytest.raises(Fa4genError, match=code):
        fa4gen.flash_attn_varlen_func(normal(9, 4), normal(9, 2), normal(9, 2), **given)


def test_the_choice_of_splits_and_packing_goes_by_sizes() -> None:
    assert splits_of(tiles=8, keys=131072, num_sms=132) > 8
    assert splits_of(tiles=512, keys=131072, num_sms=132) == 1
    assert splits_of(tiles=1, keys=300, num_sms=132) == 1
    assert packs(1, 8)
    assert not packs(4096, 8)
    assert not packs(1, 1)
