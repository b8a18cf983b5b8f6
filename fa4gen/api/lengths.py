"""Calls of sequences with lengths of their own or in pages, of tiles that are packed or split."""

from contextlib import nullcontext
from typing import Any

import torch

from fa4gen.diag import error
from fa4gen.ir.features import ordered, pages_for
from fa4gen.runtime import launch
from fa4gen.runtime.extras import Extras, extras_of
from fa4gen.runtime.launch import GRID_LIMIT
from fa4gen.runtime.problem import (
    LIMIT,
    check_flag,
    check_tensors,
    refuse_gradients,
    scale_of,
    tma_view,
)
from fa4gen.runtime.splits import MOST_SPLITS, TILE_ROWS, packs, splits_of

from .session import CURRENT, kernel_of

Tensor = torch.Tensor
MOST_PAGED = 2**30  # keys: `LONG` of the kernels


def attend(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    more: tuple[Any, Any, Any, Any] = (None, None, None, None),
    *,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_k: Any = None,
    page_table: Any = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    num_splits: int | None = None,
    pack_gqa: bool | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q (batch, seqlen_q, heads, head_dim), or of (1, total, …) with cu_seqlens_q;
    the same for k and v, which are (pages, page_size, …) with page_table (sequences, most pages).
    Lengths and pages are read by the kernel, so that a CUDA graph may change them.

    `more`: window, softcap, slopes and sinks, as `attention` takes them. `num_splits`, `pack_gqa`:
    None leaves the choice to the sizes. Raises FA0802 to FA0807.
    """
    if torch.compiler.is_dynamo_compiling():
        raise error("FA0809", "lengths of sequences are not known to torch.compile yet")
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor) or t.dim() != 4:
            raise error("FA0802", f"`{name}`: wrong kind or dimensions for the lengths given")
    if v.shape[0] != k.shape[0]:
        raise error("FA0802", f"`v` has batch {v.shape[0]}, `k` {k.shape[0]}")
    one = slice(min(1, q.shape[0], k.shape[0]))
    check_tensors(q[one], k[one], v[one])
    refuse_gradients(q=q, k=k, v=v)
    pages, most = ("", k.shape[1]) if page_table is None else pages_of(q, k, page_table)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
    batch = _batch(q, k if page_table is None else page_table, lengths)
    sequences = q if cu_seqlens_q is None else q.expand(batch, *q.shape[1:])
    causal, extras = extras_of(sequences, check_flag("causal", causal), *more)
    number = scale_of(scale, q.shape[3])
    out = q.new_empty((*q.shape[:3], v.shape[3]))
    lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    if not out.numel():
        return out, lse
    if not k.shape[0] * most:
        lse.fill_(float("-inf"))
        return out.zero_(), lse if extras.sinks is None else lse.copy_(extras.sinks[:, None])
    facts, ratio = launch.device_of_tensor(q), q.shape[2] // k.shape[2]
    queries = max_seqlen_q or (
        -(-q.shape[1] // max(batch, 1)) if cu_seqlens_q is not None else q.shape[1]
    )
    packed = packs(queries, ratio) if pack_gqa is None else pack_gqa and ratio > 1
    together = ratio if packed else 1
    tiles = batch * q.shape[2] // together * -(-queries * together // TILE_ROWS)
    keys = max_seqlen_k or (most if cu_seqlens_k is None else 0)  # 0: nobody says
    splits = _splits(num_splits, tiles, keys, facts.num_sms, q.shape[0], extras)
    on = {
        "varlen_q": cu_seqlens_q is not None,
        "varlen_k": cu_seqlens_k is not None,
        "seqused_k": seqused_k is not None,
        pages: bool(pages),
        "split_kv": splits > 1,
        "pack_gqa": packed,
    }
    features = ordered((*extras.features, *(name for name, is_on in on.items() if is_on)))
    kernel = kernel_of(CURRENT.get(), q, v, causal, features, facts)
    q, k, v = (tma_view(t.detach()) for t in (q, k, v))
    if pages or (seqused_k is not None and cu_seqlens_k is None):
        v = _one_sequence(v)
    given: list[Any] = [t for t in (*lengths.values(), page_table) if t is not None]
    if splits > 1:
        rows = splits * q.shape[0]
        given.append(q.new_empty((rows, *out.shape[1:]), dtype=torch.float32))
        given.append(q.new_empty((rows, *lse.shape[1:]), dtype=torch.float32))
    everything = slice(None)
    values = (*extras.values(everything, everything), *given)
    with torch.cuda.device(q.device) if q.is_cuda else nullcontext():
        kernel.function(q, k, v, out, lse, number, kernel.num_sms, *values)
    return out, lse


def pages_of(q: Any, k: Any, table: Any) -> tuple[str, int]:
    """The feature that serves k's pages, and the keys that a sequence has at most. Raises FA0802,
    FA0803, FA0804, FA0809."""
    if not isinstance(table, Tensor) or table.dim() != 2:
        shown = f"{table.dim()}-dimensional" if isinstance(table, Tensor) else type(table).__name__
        raise error("FA0802", f"`page_table` is {shown}, expected a tensor (sequences, most pages)")
    if table.dtype != torch.int32 or (table.shape[1] > 1 and table.stride(1) != 1):
        raise error("FA0803", f"`page_table` is {table.dtype}, expected torch.int32, contiguous")
    if table.device != q.device:
        raise error("FA0804", f"`page_table` is on {table.device}, `q` on {q.device}")
    size, most = k.shape[1], k.shape[1] * table.shape[1]
    feature = pages_for(size)
    if not feature:
        raise error(
            "FA0809",
            f"pages of {size} keys are given, and kernels copy 16 neighbouring keys at a time",
            fix="make pages of 16, 32, 64, … keys: any multiple of 16 is served",
        )
    if most >= MOST_PAGED:
        raise error(
            "FA0802",
            f"`page_table` has room for {most} keys a sequence, expected less than {MOST_PAGED}",
            fix="give it fewer columns",
        )
    return feature, most


def _one_sequence(v: Tensor) -> Tensor:
    """V with whole rows from one batch (or page) to the next, as kernels that end V where a
    sequence does take it."""
    if v.shape[0] > 1 and v.stride(0) % v.stride(1):
        v = tma_view(v.clone(memory_format=torch.contiguous_format))
    rows = v.shape[0] * (v.stride(0) // v.stride(1))
    if rows >= LIMIT:
        raise error(
            "FA0802",
            f"`v` spans {rows} rows, expected less than {LIMIT}",
            fix="give fewer sequences, or pages",
        )
    return v


def _splits(
    asked: int | None, tiles: int, keys: int, num_sms: int, batch: int, extras: Extras
) -> int:
    """As many splits as asked for, or as the sizes suggest; a sink belongs to no split."""
    if asked is None or asked == 0:
        return 1 if extras.sinks is not None else splits_of(tiles, keys, num_sms)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= MOST_SPLITS:
        raise error(
            "FA0802",
            f"`num_splits` is {asked!r}, expected a whole number from 1 to {MOST_SPLITS}",
            fix="leave it out: the sizes of the call decide",
        )
    if asked > 1 and extras.sinks is not None:
        raise error("FA0809", "`num_splits` is given with `sinks`, which no kernel splits")
    return max(1, min(asked, GRID_LIMIT // batch))


def _batch(q: Any, k: Any, lengths: dict[str, Any]) -> int:
    """The number of sequences, on which all agree; `k`: or its table of pages. Raises FA0802 to
    FA0804, FA0809."""
    counts = {}
    for name, t in lengths.items():
        if t is None:
            continue
        _check(name, t, q.device)
        counts[name] = t.numel() - name.startswith("cu_seqlens")
    if lengths["cu_seqlens_q"] is None:
        counts["q"] = q.shape[0]
    if lengths["cu_seqlens_k"] is None:
        counts["page_table" if k.dim() == 2 else "k"] = k.shape[0]
    if len(set(counts.values())) > 1:
        said = ", ".join(f"{n} for `{name}`" for name, n in counts.items())
        raise error("FA0802", f"numbers of sequences differ: {said}")
    batch = next(iter(counts.values()))
    if "q" in counts and batch > GRID_LIMIT:
        raise error(
            "FA0809",
            f"`q` has a batch of {batch}, above {GRID_LIMIT}, with lengths of its own",
            fix="pack the queries: `cu_seqlens_q` takes any number of sequences",
        )
    if q.shape[1] * q.shape[0] * q.shape[2] >= LIMIT:
        raise error("FA0809", f"`q` has {LIMIT} rows or more over all heads, in one call")
    return int(batch)


def _check(name: str, t: Any, device: Any) -> None:
    if not isinstance(t, Tensor) or t.dim() != 1:
        shown = f"{t.dim()}-dimensional" if isinstance(t, Tensor) else type(t).__name__
        raise error("FA0802", f"`{name}` is {shown}, expected a one-dimensional tensor")
    if t.dtype != torch.int32 or (t.numel() > 1 and t.stride(0) != 1):
        raise error("FA0803", f"`{name}` is {t.dtype}, expected torch.int32, contiguous")
    if t.device != device:
        raise error("FA0804", f"`{name}` is on {t.device}, `q` on {device}")
