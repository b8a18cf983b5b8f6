"""The arguments of a call: what they ask for, what is wrong with them, views that TMA can take.

Kernels take q (b, sq, h, d), k (b, sk, hk, d), v (b, sk, hk, dv) and o (b, sq, h, dv) with 16-bit
elements, the last dimension contiguous, other strides in multiples of 16 bytes, none of them 0.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa4gen.diag import Fa4genError, error
from fa4gen.dtypes import DTYPES, IO_DTYPES
from fa4gen.ir.expression import UNCHANGED, Modifiers
from fa4gen.ir.features import FEATURES, ordered

LIMIT = 2**31  # lengths and products of sizes are 32-bit integers in the kernels
STRIDE_BITS = 7 | -(1 << 39)  # what a stride (in elements) must not have: TMA, 16 bytes and 2^40
POINTER_BITS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What one kernel is made for; sizes and strides stay open."""

    target: str
    dtype: str  # as schedules write it: 'bf16'
    head_dim: int
    head_dim_v: int
    causal: bool
    features: tuple[str, ...] = ()  # names of `ir.features`, in their order
    kernel: str = "attention_forward"
    modifiers: Modifiers = UNCHANGED  # users' functions, of the features score_mod and mask_mod

    def settings(self) -> dict[str, str]:
        """The same as settings of a schedule."""
        return {
            "dtype": self.dtype,
            "causal": str(self.causal).lower(),
            "head_dim": str(self.head_dim),
            "head_dim_v": str(self.head_dim_v),
            **dict.fromkeys(self.features, "true"),
        }

    def __str__(self) -> str:
        mask = ", ".join(("causal" if self.causal else "full", *self.features))
        of = "" if self.kernel == "attention_forward" else f"{self.kernel}, "
        dims = f"head dims {self.head_dim} and {self.head_dim_v}"
        return f"{of}{self.target}, {self.dtype}, {dims}, {mask}"


def check_tensors(q: Any, k: Any, v: Any) -> None:
    """Kinds, ranks and shapes. Raises `Fa4genError` FA0802, FA0803 or FA0804."""
    import torch

    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, torch.Tensor):
            raise error(
                "FA0802",
                f"`{name}` is a {type(t).__name__}, expected a torch.Tensor",
                fix="pass tensors (batch, seqlen, heads, head_dim)",
            )
        if t.dim() != 4:
            raise error(
                "FA0802",
                f"`{name}` has {t.dim()} dimensions, expected 4: (batch, seqlen, heads, head_dim)",
                fix=f"add the missing dimension: `{name}.unsqueeze(0)` for a single sequence",
            )
        if t.layout is not torch.strided:
            raise error(
                "FA0802", f"`{name}` is {t.layout}, expected dense", fix=f"`{name}.to_dense()`"
            )
    _check_dtypes(q, k, v)
    for name, t in (("k", k), ("v", v)):
        if t.device != q.device:
            raise error(
                "FA0804",
                f"`{name}` is on {t.device}, `q` on {q.device}",
                fix=f"`{name}.to(q.device)`",
            )
    check_shapes(tuple(q.shape), tuple(k.shape), tuple(v.shape))


def refuse_gradients(**tensors: Any) -> None:
    """Raises FA0807 for a tensor whose gradient is wanted, where there is no backward."""
    import torch

    for name, t in tensors.items():
        if t.requires_grad and torch.is_grad_enabled():
            raise error(
                "FA0807",
                f"`{name}` requires a gradient, and there is no backward here yet",
                fix="call it under `torch.no_grad()`, or pass `.detach()`ed tensors",
            )


def _check_dtypes(q: Any, k: Any, v: Any) -> None:
    known = {f"torch.{DTYPES[n].torch}" for n in IO_DTYPES}
    for name, t in (("q", q), ("k", k), ("v", v)):
        if str(t.dtype) not in known:
            raise error(
                "FA0803",
                f"`{name}` is {t.dtype}, expected torch.bfloat16 or torch.float16",
                fix=f"`{name}.to(torch.bfloat16)`",
            )
        if t.dtype != q.dtype:
            raise error(
                "FA0803", f"`{name}` is {t.dtype}, `q` is {q.dtype}", fix=f"`{name}.to(q.dtype)`"
            )


def check_shapes(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> None:
    """Shapes that go together. Raises `Fa4genError` FA0802 naming the argument."""
    places = (("batch", 0), ("seqlen", 1), ("heads", 2))
    for what, i in places[1:]:
        if v[i] != k[i]:
            raise _mismatch("v", what, v[i], f"the {k[i]} of `k`")
    for name, t in (("k", k), ("v", v)):
        if t[0] != q[0]:
            raise _mismatch(name, "batch", t[0], f"the {q[0]} of `q`")
    if k[3] != q[3]:
        raise _mismatch("k", "head_dim", k[3], f"the {q[3]} of `q`")
    if q[2] and (not k[2] or q[2] % k[2]):
        raise _mismatch("k", "heads", k[2], f"a divisor of the {q[2]} heads of `q`")
    for name, t in (("q", q), ("k", k)):
        if t[1] >= LIMIT:
            raise _mismatch(name, "seqlen", t[1], f"less than {LIMIT}")


def _mismatch(name: str, what: str, found: int, expected: str) -> Fa4genError:
    return error(
        "FA0802",
        f"`{name}` has {what} {found}, expected {expected}",
        why="tensors are (batch, seqlen, heads, head_dim)",
        fix=f"mend the {what} of `{name}`; heads-first tensors need `.transpose(1, 2)`",
    )


def scale_of(softmax_scale: object, head_dim: int) -> float:
    """The scale of the scores: 1 / sqrt(head_dim) for None. FA0806 for what is no such number.

    A tensor is refused: to read one would wait for the GPU.
    """
    if softmax_scale is None:
        return float(head_dim**-0.5)
    if isinstance(softmax_scale, (int, float)) and not isinstance(softmax_scale, bool):
        scale = float(softmax_scale)
        if math.isfinite(scale) and scale > 0:
            return scale
    shown = softmax_scale if isinstance(softmax_scale, (int, float)) else type(softmax_scale)
    raise error(
        "FA0806",
        f"`softmax_scale` is {shown}, expected a finite Python number above 0",
        fix="for a tensor: `float(scale)`, once, before the loop",
    )


def check_features(features: Sequence[str]) -> tuple[str, ...]:
    """Names of features, in their order. Raises FA0802 for one that does not exist."""
    for name in features:
        if name not in FEATURES:
            known = ", ".join(FEATURES)
            raise error("FA0802", f"there is no feature `{name}`", fix=f"one of {known}")
    return ordered(features)


def check_flag(name: str, value: object) -> bool:
    """A switch that is True or False. Raises FA0802."""
    if not isinstance(value, bool):
        raise error("FA0802", f"`{name}` is {value!r}, expected True or False", fix=f"{name}=True")
    return value


def check_output(name: str, t: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> None:
    """A tensor to write into. Raises FA0808; every element must be there once."""
    import torch

    if not isinstance(t, torch.Tensor):
        raise error("FA0808", f"`{name}` is a {type(t).__name__}, expected a torch.Tensor")
    for what, found, expected in (
        ("shape", tuple(t.shape), shape),
        ("dtype", t.dtype, dtype),
        ("device", t.device, device),
    ):
        if found != expected:
            raise error("FA0808", f"`{name}` has {what} {found}, expected {expected}")
    if any(n > 1 and s == 0 for n, s in zip(t.shape, t.stride(), strict=True)):
        raise error(
            "FA0808",
            f"`{name}` is expanded: several elements share one place",
            fix=f"pass `torch.empty({list(shape)}, …)`",
        )
    if t.requires_grad and torch.is_grad_enabled():
        raise error("FA0808", f"`{name}` requires a gradient", fix="call under `torch.no_grad()`")


def takes(t: Any) -> bool:
    """Whether TMA takes the tensor as it lies there."""
    *outer, last = t.stride()
    bits = 0
    for s in outer:
        bits |= s
    return bool(
        last == 1 and all(outer) and not bits & STRIDE_BITS and not t.data_ptr() & POINTER_BITS
    )


def tma_view(t: Any) -> Any:
    """The tensor, perhaps with other strides where a dimension has size 1; else a copy."""
    if takes(t):
        return t
    step, strides = 8 * math.ceil(t.shape[-1] / 8), []
    for n, s in zip(reversed(t.shape[:-1]), reversed(t.stride()[:-1]), strict=True):
        strides.append(step if n == 1 else s)
        step = max(step, n * strides[-1])
    view = t.as_strided(t.shape, (*reversed(strides), 1 if t.shape[-1] == 1 else t.stride(-1)))
    return view if takes(view) else _copy(t)


def _copy(t: Any) -> Any:
    import torch

    return t.clone(memory_format=torch.contiguous_format)
