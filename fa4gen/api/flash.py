"""flash-attn's entry points, for code that calls those: what the kernels do not have is refused.

Everything after q, k, v goes by keyword: the order has changed between flash-attn's versions, and a
call by position would change its meaning silently. Arguments of versions 2 to 4 are known.
"""

from collections.abc import Mapping
from typing import Any

import torch

from fa4gen.diag import error

from .attention import Tensor, attention, wants_gradient
from .lengths import attend, pages_of

OPEN = (None, -1)  # an end of a window that is none
ABSENT: Mapping[str, tuple[object, ...]] = {  # arguments, and the values that ask for nothing
    "qv": (None,),
    "gather_kv_indices": (None,),
    "num_splits": (None, 0, 1),
    "score_mod": (None,),
    "score_mod_bwd": (None,),
    "mask_mod": (None,),
    "aux_tensors": (None,),
    "aux_scalars": (None,),
    "block_sparse_tensors": (None,),
    "block_sparse_tensors_bwd": (None,),
    "dropout_p": (0, 0.0),
    "return_attn_probs": (False,),
    "cu_seqlens_q": (None,),
    "cu_seqlens_k": (None,),
    "seqused_q": (None,),
    "seqused_k": (None,),
    "page_table": (None,),
    "block_table": (None,),
    "scheduler_metadata": (None,),
    "seqlen_k_per_split": (None,),
    "rotary_cos": (None,),
    "rotary_sin": (None,),
    "cache_batch_idx": (None,),
    "cache_leftpad": (None,),
}
INDIFFERENT = (  # they change no value of a forward over dense tensors
    "pack_gqa",
    "deterministic",
    "max_seqlen_q",
    "max_seqlen_k",
    "min_seqlen_k",
    "disable_scheduler_metadata",
    "rotary_interleaved",
)


def refuse(function: str, given: Mapping[str, object]) -> None:
    """Raises FA0809 for the first argument that asks for what no kernel does."""
    for name, value in given.items():
        if name in INDIFFERENT:
            continue
        if name not in ABSENT:
            raise TypeError(f"{function}() got an unexpected keyword argument '{name}'")
        if not any(value is nothing or _equal(value, nothing) for nothing in ABSENT[name]):
            raise error(
                "FA0809",
                f"`{name}` is given, and no kernel here does that yet",
                fix=f"leave `{name}` out, or use flash-attn for this call",
            )


def refuse_order(deterministic: object, q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises FA0809 where gradients must be the same bits each time and none are computed."""
    if deterministic and wants_gradient(q, k, v):
        raise error(
            "FA0809",
            "`deterministic` is given, and there are no such gradients for packed lengths",
            fix="leave `deterministic` out; the forward is the same bits each time",
        )


def _equal(value: object, nothing: object) -> bool:
    return isinstance(value, (int, float)) and value == nothing


def extras(
    window_size: tuple[int | None, int | None],
    softcap: float | None,
    alibi_slopes: Tensor | None = None,
    learnable_sink: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of `attention`. FA0809 for a window whose meaning depends on the version."""
    left, right = window_size
    left, right = None if left in OPEN else left, None if right in OPEN else right
    if (left is not None and left < 0) or (right is not None and right < 0):
        raise error(
            "FA0809",
            f"`window_size` is {tuple(window_size)}; below -1, bounds mean an open end in some "
            "versions of flash-attn, and a shifted window in others",
            fix="`fa4gen.attention(window=…)` has shifted windows, and None for an open end",
        )
    return {
        "window": None if left is None and right is None else (left, right),
        "softcap": softcap or None,
        "alibi_slopes": alibi_slopes,
        "sinks": learnable_sink,
    }


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    **more: object,
) -> tuple[Tensor, Tensor | None]:
    """flash-attn's function of the same name: (out, lse), lse None unless return_lse.

    window_size (left, right): None or -1 is an open end. learnable_sink: `sinks` of
    `fa4gen.attention`, which says the rest of shapes, types and errors. Raises FA0809 for
    score_mod, mask_mod, block sparsity, dropout and several splits.
    """
    refuse("flash_attn_func", more)
    given = extras(window_size, softcap, alibi_slopes, learnable_sink)
    given |= {"softmax_scale": softmax_scale, "deterministic": bool(more.get("deterministic"))}
    out, lse = attention(q, k, v, causal=causal, return_lse=True, **given)
    return out, lse if return_lse else None


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    page_table: Tensor | None = None,
    block_table: Tensor | None = None,
    max_seqlen_q: Any = None,
    max_seqlen_k: Any = None,
    num_splits: int | None = None,
    pack_gqa: bool | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (None, None),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_lse: bool = False,
    **more: object,
) -> tuple[Tensor, Tensor | None]:
    """flash-attn's function of the same name, also for dense (batch, seqlen, heads, head_dim).

    With cu_seqlens_q (sequences + 1,), int32, q is (total, heads, head_dim): sequence n has rows
    cu_seqlens_q[n] to cu_seqlens_q[n + 1], which may be none; out is alike, lse (heads, total).
    The same for k, v with cu_seqlens_k. seqused_k (sequences,), int32: only so many keys of each
    sequence count. The kernel reads all three: a CUDA graph may change them. max_seqlen_q,
    max_seqlen_k: sizes to choose tiles and splits by; they change no value. num_splits: CTAs that
    share the keys of a tile (None, 0: by size); pack_gqa: heads of a group in one tile (None: by
    size). page_table (sequences, most pages), int32, or block_table: k and v are pools (pages,
    page_size, heads_k, head_dim), page_size a multiple of 16, and the table has each sequence's
    pages in order, read by the kernel; cu_seqlens_k then only says how many keys there are. The
    rest is as in `flash_attn_func`.
    """
    refuse("flash_attn_varlen_func", more)
    in_turn = bool(more.get("deterministic"))
    given = extras(window_size, softcap, alibi_slopes, learnable_sink)
    lengths = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
    table = _one_of("page_table", page_table, "block_table", block_table)
    if table is not None and cu_seqlens_k is not None:  # as version 2 says lengths
        if seqused_k is None and isinstance(cu_seqlens_k, Tensor):
            lengths["seqused_k"] = cu_seqlens_k.diff()
        lengths["cu_seqlens_k"] = cu_seqlens_k = None
    if all(t is None for t in (*lengths.values(), table)) and not num_splits:
        given |= {"softmax_scale": softmax_scale, "deterministic": in_turn}
        out, lse = attention(q, k, v, causal=causal, return_lse=True, **given)
        return out, lse if return_lse else None
    refuse_order(in_turn, q, k, v)
    if cu_seqlens_q is not None:
        q = q.unsqueeze(0)
    if cu_seqlens_k is not None:
        k, v = k.unsqueeze(0), v.unsqueeze(0)
    out, lse = attend(
        q,
        k,
        v,
        causal,
        softmax_scale,
        (given["window"], given["softcap"], given["alibi_slopes"], given["sinks"]),
        **lengths,
        page_table=table,
        max_seqlen_q=_number(max_seqlen_q),
        max_seqlen_k=_number(max_seqlen_k),
        num_splits=num_splits,
        pack_gqa=pack_gqa,
    )
    if cu_seqlens_q is not None:
        out, lse = out[0], lse[0]
    return out, lse if return_lse else None


def _one_of(name: str, value: Any, other: str, same: Any) -> Any:
    """An argument that has had two names."""
    if value is not None and same is not None:
        raise error("FA0802", f"`{name}` and `{other}` are one argument: give one of them")
    return same if value is None else value


def _number(value: Any) -> int | None:
    """A length that is known on the host; to read a tensor would wait for the GPU."""
    return value if isinstance(value, int) else None


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: int | Tensor | None = None,
    block_table: Tensor | None = None,
    page_table: Tensor | None = None,
    num_splits: int | None = None,
    pack_gqa: bool | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int | None, int | None] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    learnable_sink: Tensor | None = None,
    return_softmax_lse: bool = False,
    **more: object,
) -> Any:
    """Attention over the first `cache_seqlens` keys of a cache (batch, size, heads_k, head_dim).

    k, v (batch, new, heads_k, head_dim): written behind these first, in place. cache_seqlens: one
    int for all sequences (None: the whole cache), or (batch,), int32, read by the kernel: a CUDA
    graph may change it. block_table (batch, most pages), int32, or page_table: the caches are pools
    (pages, page_size, heads_k, head_dim), page_size a multiple of 16, and the table has each
    sequence's pages in order, also for the new keys; it too is read by the kernel. num_splits,
    pack_gqa: None or 0 leaves the choice to the sizes. Returns out, or (out, lse) with
    return_softmax_lse. Raises FA0809 for rotary embedding.
    """
    refuse("flash_attn_with_kvcache", more)
    given = extras(window_size, softcap, alibi_slopes, learnable_sink)
    if (k is None) != (v is None):
        raise error("FA0802", "`k` and `v` are the new keys and values: give both, or neither")
    values = (given["window"], given["softcap"], given["alibi_slopes"], given["sinks"])
    chosen: dict[str, Any] = {"num_splits": num_splits, "pack_gqa": pack_gqa}
    table = _one_of("block_table", block_table, "page_table", page_table)
    if isinstance(cache_seqlens, Tensor) or table is not None:
        used = _used(q, k_cache, k, cache_seqlens, table)
        chosen |= {"page_table": table, "seqused_k": _appended(k_cache, v_cache, k, v, used, table)}
        out, lse = attend(q, k_cache, v_cache, causal, softmax_scale, values, **chosen)
        return (out, lse) if return_softmax_lse else out
    size = k_cache.shape[1]
    end = _end(k, cache_seqlens, size)
    if k is not None and v is not None:
        k_cache[:, end - k.shape[1] : end].copy_(k)
        v_cache[:, end - k.shape[1] : end].copy_(v)
    keys, seen = k_cache[:, :end], v_cache[:, :end]
    out, lse = attend(q, keys, seen, causal, softmax_scale, values, **chosen)
    return (out, lse) if return_softmax_lse else out


def _end(k: Any, used: Any, size: int) -> int:
    """How many keys there are with the new ones, of a cache that has room for `size`."""
    if used is not None and type(used) is not int:
        raise error(
            "FA0802",
            f"`cache_seqlens` is a {type(used).__name__}, expected an int or a tensor",
            fix="one int for all sequences, or an int32 tensor (batch,)",
        )
    used = size if used is None else used
    end = used + (0 if k is None else k.shape[1])
    if not 0 <= used <= end <= size:
        raise error(
            "FA0802",
            f"`cache_seqlens` is {used}, {end} with the new keys, and the cache has {size}",
            fix="pass the number of keys that are there before this call",
        )
    return int(end)


def _used(q: Any, k_cache: Any, k: Any, used: Any, table: Any) -> Any:
    """Lengths as a tensor; one for all sequences is looked at first. None: all of the pages."""
    room = 0 if table is None else pages_of(q, k_cache, table)[1]
    if isinstance(used, Tensor) or (used is None and k is None):
        return used
    end = _end(k, used, room)
    new = 0 if k is None else k.shape[1]
    return torch.full((q.shape[0],), end - new, dtype=torch.int32, device=q.device)


def _appended(k_cache: Any, v_cache: Any, k: Any, v: Any, lengths: Any, table: Any) -> Any:
    """The lengths with the new keys, which are written behind the old ones; no wait for the GPU.

    What would lie behind the end of the cache is written to its last place.
    """
    if k is None:
        return lengths
    size, new = k_cache.shape[1], k.shape[1]
    most = size if table is None else size * table.shape[1]
    places = lengths.long()[:, None] + torch.arange(new, device=lengths.device)
    places = places.clamp(max=most - 1)
    batch = torch.arange(k.shape[0], device=lengths.device)[:, None]
    if table is not None:
        batch, places = table.long().gather(1, places // size), places % size
    k_cache[batch, places], v_cache[batch, places] = k, v
    return lengths + new
