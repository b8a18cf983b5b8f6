"""flash-attn's entry points, for code that calls those: what the kernels do not have is refused.

Everything after q, k, v goes by keyword: the order has changed between flash-attn's versions, and a
call by position would change its meaning silently. Arguments of versions 2 to 4 are known.
"""

from collections.abc import Mapping
from typing import Any

from fa4gen.diag import error

from .attention import Tensor, attention

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
    score_mod, mask_mod, block sparsity, dropout, several splits.
    """
    refuse("flash_attn_func", more)
    given = extras(window_size, softcap, alibi_slopes, learnable_sink)
    out, lse = attention(
        q, k, v, causal=causal, softmax_scale=softmax_scale, return_lse=True, **given
    )
    return out, lse if return_lse else None


def flash_attn_varlen_func(
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
    """flash-attn's function of the same name, for dense tensors (batch, seqlen, heads, head_dim).

    Packed sequences (`cu_seqlens_*`), used lengths (`seqused_*`) and pages (`page_table`) are
    refused with FA0809 until kernels have them; the rest is as in `flash_attn_func`.
    """
    refuse("flash_attn_varlen_func", more)
    given = extras(window_size, softcap, alibi_slopes, learnable_sink)
    out, lse = attention(
        q, k, v, causal=causal, softmax_scale=softmax_scale, return_lse=True, **given
    )
    return out, lse if return_lse else None


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    *,
    cache_seqlens: int | None = None,
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
    int for all sequences (None: the whole cache). Returns out, or (out, lse) with
    return_softmax_lse. Raises FA0809 for lengths as a tensor, pages, rotary embedding.
    """
    refuse("flash_attn_with_kvcache", more)
    given = extras(window_size, softcap, alibi_slopes, learnable_sink)
    if cache_seqlens is not None and (
        not isinstance(cache_seqlens, int) or isinstance(cache_seqlens, bool)
    ):
        raise error(
            "FA0809",
            "`cache_seqlens` is no int, and no kernel here has one length a sequence yet",
            fix="pass one int if all sequences are as long",
        )
    if (k is None) != (v is None):
        raise error("FA0802", "`k` and `v` are the new keys and values: give both, or neither")
    size = k_cache.shape[1]
    used = size if cache_seqlens is None else cache_seqlens
    end = used + (0 if k is None else k.shape[1])
    if not 0 <= used <= end <= size:
        raise error(
            "FA0802",
            f"`cache_seqlens` is {used}, {end} with the new keys, and the cache has {size}",
            fix="pass the number of keys that are there before this call",
        )
    if k is not None and v is not None:
        k_cache[:, used:end].copy_(k)
        v_cache[:, used:end].copy_(v)
    return attention(
        q,
        k_cache[:, :end],
        v_cache[:, :end],
        causal=causal,
        softmax_scale=softmax_scale,
        return_lse=return_softmax_lse,
        **given,
    )
