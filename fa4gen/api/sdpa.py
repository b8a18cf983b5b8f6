"""`scaled_dot_product_attention` with the arguments and the meaning of PyTorch's."""

import torch

from fa4gen.diag import error

from .attention import Tensor, attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's function of the same name: tensors (batch, heads, seqlen, head_dim).

    Its causal mask is aligned top-left, unlike `fa4gen.attention`'s: query i sees keys up to i, for
    unequal lengths too. Raises FA0809 for `attn_mask` and dropout, FA0802 for heads that differ
    without enable_gqa, and the errors of `fa4gen.attention`.
    """
    if attn_mask is not None or dropout_p:
        name = "dropout_p" if attn_mask is None else "attn_mask"
        raise error(
            "FA0809",
            f"`{name}` is given, and no kernel here does that yet",
            fix=f"leave `{name}` out, or call torch's function",
        )
    for name, t in (("query", query), ("key", key), ("value", value)):
        if t.dim() != 4:
            raise error(
                "FA0802",
                f"`{name}` has {t.dim()} dimensions, expected 4: (batch, heads, seqlen, head_dim)",
            )
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise error(
            "FA0802",
            f"`key` has {key.shape[1]} heads, `query` {query.shape[1]}",
            fix="pass enable_gqa=True",
        )
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if not is_causal:
        return _heads_first(attention(q, k, v, softmax_scale=scale))
    rows, keys = q.shape[1], k.shape[1]
    if rows <= keys:  # the keys behind the last query are seen by none
        return _heads_first(
            attention(q, k[:, :rows], v[:, :rows], causal=True, softmax_scale=scale)
        )
    square = attention(q[:, :keys], k, v, causal=True, softmax_scale=scale)
    below = attention(q[:, keys:], k, v, softmax_scale=scale)
    return _heads_first(torch.cat([square, below], dim=1))


def _heads_first(out: Tensor) -> Tensor:
    return out.transpose(1, 2)
