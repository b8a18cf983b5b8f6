"""What a call asks for beside plain attention: windows, soft-capping, ALiBi, sinks; checked."""

import math
from dataclasses import dataclass
from typing import Any

from fa4gen.diag import error
from fa4gen.ir.features import OPEN, ordered

Window = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """Values of the features of a call; what is None (or 0.0) is not asked for.

    `window`: keys before and behind a query's own place, `OPEN` for all. `slopes` (batch, heads)
    and `sinks` (heads,): float32.
    """

    window: tuple[int, int] | None = None
    softcap: float = 0.0
    slopes: Any = None
    sinks: Any = None

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the features, in their order."""
        asked = {
            "window": self.window is not None,
            "softcap": bool(self.softcap),
            "alibi": self.slopes is not None,
            "sinks": self.sinks is not None,
        }
        return ordered(name for name, on in asked.items() if on)

    def values(self, batch: slice, heads: slice) -> tuple[object, ...]:
        """The kernel's arguments for a part of the batch and of the heads, in their order."""
        return (
            *(self.window or ()),
            *((self.softcap,) if self.softcap else ()),
            *(() if self.slopes is None else (self.slopes[batch, heads],)),
            *(() if self.sinks is None else (self.sinks[heads],)),
        )


NOTHING = Extras()


def extras_of(
    q: Any, causal: bool, window: Any, softcap: Any, slopes: Any, sinks: Any
) -> tuple[bool, Extras]:
    """(whether the kernel's mask is causal, the extras) for q (batch, seqlen, heads, head_dim).

    Without keys to the right a window is causal, whichever argument says so; open to the left, it
    is no more than that. Raises FA0802 for an argument that makes no sense, FA0807 for a tensor
    that requires a gradient.
    """
    left, right = _window(window)
    if causal:
        right = min(right or 0, 0) if right is not None else 0
    bounds = None
    if left is not None or right not in (None, 0):
        bounds = tuple(_bound(b) for b in (left, right))
    batch, heads = q.shape[0], q.shape[2]
    return right is not None and right <= 0, Extras(
        window=bounds,  # type: ignore[arg-type]
        softcap=_softcap(softcap),
        slopes=_slopes(slopes, batch, heads, q.device),
        sinks=_sinks(sinks, heads, q.device),
    )


def _bound(bound: int | None) -> int:
    return OPEN if bound is None else max(-OPEN, min(bound, OPEN))


def _window(window: Any) -> Window:
    if window is None:
        return None, None
    whole = isinstance(window, (tuple, list)) and len(window) == 2
    if not whole or any(isinstance(b, bool) or not isinstance(b, int | None) for b in window):
        raise error(
            "FA0802",
            f"`window` is {window!r}, expected two whole numbers, or None for an open end",
            fix="window=(1023, 0): the query's own key and 1023 before it",
        )
    return window[0], window[1]


def _softcap(softcap: Any) -> float:
    if softcap is None:
        return 0.0
    if isinstance(softcap, (int, float)) and not isinstance(softcap, bool):
        cap = float(softcap)
        if math.isfinite(cap) and cap >= 0:
            return cap
    shown = softcap if isinstance(softcap, (int, float)) else type(softcap).__name__
    raise error(
        "FA0802",
        f"`softcap` is {shown}, expected a finite Python number above 0, or 0 for none",
        fix="for a tensor: `float(softcap)`, once, before the loop",
    )


def _slopes(t: Any, batch: int, heads: int, device: Any) -> Any:
    if t is None:
        return None
    _check("alibi_slopes", t, ((heads,), (batch, heads)), ("torch.float32",), device)
    return t.detach().expand(batch, heads)


def _sinks(t: Any, heads: int, device: Any) -> Any:
    if t is None:
        return None
    known = ("torch.float32", "torch.bfloat16", "torch.float16")
    _check("sinks", t, ((heads,),), known, device)
    return t.detach().float()


def _check(
    name: str, t: Any, shapes: tuple[tuple[int, ...], ...], dtypes: tuple[str, ...], device: Any
) -> None:
    import torch

    if not isinstance(t, torch.Tensor):
        raise error("FA0802", f"`{name}` is a {type(t).__name__}, expected a torch.Tensor")
    if tuple(t.shape) not in shapes:
        wanted = " or ".join(str(s) for s in shapes)
        raise error("FA0802", f"`{name}` has shape {tuple(t.shape)}, expected {wanted}")
    if str(t.dtype) not in dtypes:
        raise error(
            "FA0803",
            f"`{name}` is {t.dtype}, expected {' or '.join(dtypes)}",
            fix=f"`{name}.float()`",
        )
    if t.device != device:
        raise error("FA0804", f"`{name}` is on {t.device}, `q` on {device}")
    if t.requires_grad and torch.is_grad_enabled():
        raise error(
            "FA0807",
            f"`{name}` requires a gradient, and there is no backward yet",
            fix="call it under `torch.no_grad()`, or pass a `.detach()`ed tensor",
        )
