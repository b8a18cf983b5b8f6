"""Sparse blocks of a BlockMask as lists for tiles of a kernel's own size, on the masks' device.

A tile of `rows` queries and `keys` keys is full where all that it covers is, and partial where
some of it is listed. Nothing here waits for the device.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from .modifiers import FULL, LISTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """For each row of tiles (each column, of lists by keys): how many partial and full blocks, and
    which (int32, broadcast over batch and heads). `table`: kinds of the sparse blocks, where tiles
    are not made of whole ones."""

    tensors: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
    table: torch.Tensor | None


def lists_of(
    mask: Any,
    rows: int,
    keys: int,
    batch: int,
    heads: int,
    seqlen_q: int,
    seqlen_k: int,
    *,
    by_keys: bool = False,
) -> Lists:
    """Lists of a torch BlockMask for tiles of `rows` x `keys`: of keys for each tile of queries, or
    (`by_keys`, for the backward) of queries for each tile of keys."""
    block = tuple(mask.BLOCK_SIZE)
    partial = mask.kv_num_blocks, mask.kv_indices
    full = mask.full_kv_num_blocks, mask.full_kv_indices
    table = None
    if by_keys or block != (rows, keys):
        count = -(-seqlen_q // block[0]), -(-seqlen_k // block[1])
        table = LISTED * _dense(*partial, *count)
        if full[0] is not None:
            table = torch.maximum(table, FULL * _dense(*full, *count))
        listed = _tiles(table > 0, block, (rows, keys), (seqlen_q, seqlen_k), outside=False).any
        whole = _tiles(table == FULL, block, (rows, keys), (seqlen_q, seqlen_k), outside=True).all
        seen, all_seen = listed(-1), whole(-1)
        if by_keys:
            seen, all_seen = seen.mT, all_seen.mT
        partial, full = _listed(seen & ~all_seen), _listed(seen & all_seen)
    elif full[0] is None:
        full = torch.zeros_like(partial[0]), partial[1]
    exact = block[0] % rows == 0 and block[1] % keys == 0  # tiles inside of one sparse block
    tensors = tuple(t.to(torch.int32).expand(batch, heads, *t.shape[2:]) for t in (*partial, *full))
    assert len(tensors) == 4
    return Lists(tensors=tensors, table=None if exact else table)


def is_causal(mask: Any, seqlen_q: int, seqlen_k: int) -> bool:
    """Whether the lists leave out no block that a causal mask sees a part of, list none that it
    sees nothing of, and call none full that it does not see whole. Waits for the device."""
    rows, keys = mask.BLOCK_SIZE
    count = -(-seqlen_q // rows), -(-seqlen_k // keys)
    listed = _dense(mask.kv_num_blocks, mask.kv_indices, *count) > 0
    first = torch.arange(count[0], device=listed.device)[:, None] * rows
    key = torch.arange(count[1], device=listed.device) * keys
    whole = torch.zeros_like(listed)
    if mask.full_kv_num_blocks is not None:
        whole = _dense(mask.full_kv_num_blocks, mask.full_kv_indices, *count) > 0
    some = (first + rows).clamp(max=seqlen_q) > key
    wrong = ((listed | whole) != some) | (whole & (first < key + keys - 1))
    return not bool(wrong.any())


def _dense(counts: torch.Tensor, indices: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """1 where a block is listed; what stands behind a row's count means nothing."""
    place = torch.arange(indices.shape[-1], device=indices.device)
    inside = place < counts[:, :, :rows, None]
    where = torch.where(inside, indices[:, :, :rows], columns).long()
    made = torch.zeros(*where.shape[:3], columns + 1, dtype=torch.int8, device=indices.device)
    return made.scatter_(-1, where, 1)[..., :columns]


def _tiles(
    blocks: torch.Tensor,
    size: tuple[int, ...],
    tile: tuple[int, int],
    lengths: tuple[int, int],
    *,
    outside: bool,
) -> torch.Tensor:
    """For each tile, the values of all that it covers, in the last dimension."""
    for n, dim in enumerate((-2, -1)):
        unit = math.gcd(size[n], tile[n])
        parts = blocks.repeat_interleave(size[n] // unit, dim)
        parts = parts.narrow(dim, 0, -(-lengths[n] // unit))
        per = tile[n] // unit
        missing = -parts.shape[dim] % per
        pads = (0, 0, 0, missing) if dim == -2 else (0, missing)
        blocks = torch.nn.functional.pad(parts, pads, value=outside)
    per_q, per_k = (tile[n] // math.gcd(size[n], tile[n]) for n in (0, 1))
    *outer, q, k = blocks.shape
    cut = blocks.view(*outer, q // per_q, per_q, k // per_k, per_k)
    return cut.transpose(-3, -2).flatten(-2)


def _listed(chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks of each row are chosen, and their indices, in ascending order, first."""
    counts = chosen.sum(-1, dtype=torch.int32)
    return counts, chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
