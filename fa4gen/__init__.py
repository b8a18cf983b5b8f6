"""A compiler from pipeline schedules to FlashAttention kernels, and these as PyTorch functions.

Names are loaded when they are first used: `import fa4gen` loads neither torch nor the CuTe DSL.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fa4gen.api.attention import attention
    from fa4gen.api.flash import (
        flash_attn_func,
        flash_attn_varlen_func,
        flash_attn_with_kvcache,
    )
    from fa4gen.api.flex import flex_attention
    from fa4gen.api.sdpa import scaled_dot_product_attention
    from fa4gen.api.session import explain_dispatch, load, use_schedule
    from fa4gen.diag import Fa4genError

HOMES = {
    "attention": "fa4gen.api.attention",
    "flash_attn_func": "fa4gen.api.flash",
    "flash_attn_varlen_func": "fa4gen.api.flash",
    "flash_attn_with_kvcache": "fa4gen.api.flash",
    "flex_attention": "fa4gen.api.flex",
    "scaled_dot_product_attention": "fa4gen.api.sdpa",
    "explain_dispatch": "fa4gen.api.session",
    "load": "fa4gen.api.session",
    "use_schedule": "fa4gen.api.session",
    "Fa4genError": "fa4gen.diag",
}

__all__ = [
    "Fa4genError",
    "attention",
    "explain_dispatch",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
    "flex_attention",
    "load",
    "scaled_dot_product_attention",
    "use_schedule",
]


def __getattr__(name: str) -> Any:
    if name not in HOMES:
        raise AttributeError(f"module 'fa4gen' has no attribute '{name}'")
    found = getattr(import_module(HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *HOMES})
