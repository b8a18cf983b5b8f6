"""A backend of Hugging Face transformers: `register()`, then `attn_implementation="fa4gen"`.

Needs the extra `fa4gen[transformers]`. Models run in bfloat16 or float16.
What the kernels do not have is refused by name: padding, packed sequences, sliding windows,
softcap, sinks, dropout, caches of fixed size.
"""

from collections.abc import Callable
from typing import Any

from fa4gen.api.attention import Tensor, attention
from fa4gen.diag import Fa4genError, error

NAME = "fa4gen"


def register() -> str:
    """Makes the backend known; returns its name. ImportError without transformers."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, forward)
    AttentionMaskInterface.register(NAME, mask)
    return NAME


def forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_more: object,
) -> tuple[Tensor, None]:
    """Attention of (batch, heads, seqlen, head_dim); returns (batch, seqlen, heads, head_dim).

    Raises FA0809 for what the kernels do not have, and the errors of `fa4gen.attention`.
    """
    asked = {
        "attention_mask": attention_mask is not None,
        "dropout": bool(dropout),
        "sliding_window": sliding_window is not None and sliding_window < key.shape[2],
        "softcap": bool(softcap),
        "s_aux": s_aux is not None,
    }
    for name, given in asked.items():
        if given:
            raise _lacks(f"the model gives `{name}`")
    causal = bool(module.is_causal if is_causal is None else is_causal)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    return attention(q, k, v, causal=causal, softmax_scale=scaling), None


def mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    **_more: object,
) -> None:
    """No mask tensor: it is the kernel's own causal or full mask. FA0809 for any other."""
    from transformers import masking_utils

    del batch_size
    plain = {None, masking_utils.causal_mask_function}
    plain.add(getattr(masking_utils, "bidirectional_mask_function", None))
    if mask_function not in plain:
        raise _lacks("the model's mask is neither causal nor full (a window, packed sequences)")
    if attention_mask is not None and not bool(attention_mask.all()):
        raise _lacks("`attention_mask` has padding")
    behind = int(kv_offset) + kv_length - int(q_offset) - q_length
    if mask_function is masking_utils.causal_mask_function and behind:
        raise _lacks("keys lie behind the last query (a cache of fixed size)")


def _lacks(what: str) -> Fa4genError:
    return error(
        "FA0809",
        f"{what}, and no kernel here does that yet",
        fix='load this model with attn_implementation="sdpa"',
    )
