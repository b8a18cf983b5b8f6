"""`torch.library` operators: what torch.compile, torch.export and dispatch modes see of a call.

    fa4gen::forward(q, k, v, causal, softmax_scale, …) -> (out, lse)
    fa4gen::forward_into(q, k, v, out!, lse!, causal, softmax_scale, …) -> ()

Behind these, each may be left out: window_left, window_right, softcap, alibi_slopes, sinks; and
deterministic, which only the backward looks at.

    fa4gen::backward(q, k, v, out, lse, d_out, d_lse, causal, softmax_scale, …)
        -> (dq, dk, dv, d_sinks)

`forward` is differentiable by `backward`, in q, k, v and sinks, through both of its results. They
are registered by `Library.impl`, which costs less than `custom_op` in host time a call.
"""

from collections.abc import Callable
from typing import Any

import torch

from fa4gen.diag import error

Backward = Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
Forward = Callable[..., tuple[torch.Tensor, torch.Tensor]]
MORE = (
    "bool causal, float? softmax_scale, SymInt? window_left=None, SymInt? window_right=None, "
    "float? softcap=None, Tensor? alibi_slopes=None, Tensor? sinks=None, bool deterministic=False"
)
RETURNS = f"(Tensor q, Tensor k, Tensor v, {MORE}) -> (Tensor, Tensor)"
WRITES = f"(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!) lse, {MORE}) -> ()"
GRADIENTS = (
    "(Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor d_out, Tensor d_lse, "
    f"{MORE}) -> (Tensor, Tensor, Tensor, Tensor)"
)
CAUSAL, SLOPES, SINKS, ORDER = 3, 8, 9, 10  # places among the arguments of `forward`
PLAIN = 9  # arguments of `backward` before those that may be left out


def register(forward: Forward, backward: Backward) -> Any:
    """Defines the operators; keep the library. They call `forward(q, k, v, causal, scale, out,
    lse)`, with (window, softcap, alibi_slopes, sinks) behind these if there is any."""

    def run(q: Any, k: Any, v: Any, causal: bool, scale: Any, *more: Any) -> Any:
        return forward(q, k, v, causal, scale, None, None, *(_more(*more) if more else ()))

    def run_into(
        q: Any, k: Any, v: Any, out: Any, lse: Any, causal: bool, scale: Any, *more: Any
    ) -> None:
        forward(q, k, v, causal, scale, out, lse, *(_more(*more) if more else ()))

    def run_backward(*given: Any) -> Any:
        plain, more = given[:PLAIN], given[PLAIN:]
        values = next(iter(_more(*more)), (None, None, None, None))
        return backward(*plain, *values, *more[ORDER - CAUSAL - 2 :])

    library: Any = torch.library.Library("fa4gen", "DEF")  # type: ignore[no-untyped-call]
    for name, schema, call, fake in (
        ("forward", RETURNS, run, _fake),
        ("forward_into", WRITES, run_into, _fake_into),
        ("backward", GRADIENTS, run_backward, _fake_gradients),
    ):
        library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
        library.impl(name, call, "CompositeExplicitAutograd")
        torch.library.register_fake(f"fa4gen::{name}", fake, lib=library)
    torch.library.register_autograd(
        "fa4gen::forward", _differentiate, setup_context=_keep, lib=library
    )
    return library


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
    """What the backward needs of a call: slopes and sinks are tensors, the rest are values."""
    ctx.count, ctx.values, ctx.order = len(inputs), inputs[CAUSAL:SLOPES], inputs[ORDER:]
    ctx.save_for_backward(*inputs[:CAUSAL], *output, *inputs[SLOPES:ORDER])


def _differentiate(ctx: Any, d_out: Any, d_lse: Any) -> tuple[Any, ...]:
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    *made, d_sinks = torch.ops.fa4gen.backward.default(
        q, k, v, out, lse, d_out, d_lse, *ctx.values, *tensors, *ctx.order
    )
    found = [*made, *[None] * (ctx.count - len(made))]
    if ctx.needs_input_grad[SINKS:ORDER] == (True,):
        found[SINKS] = d_sinks
    return tuple(found)


def _fake_gradients(
    q: Any,
    k: Any,
    v: Any,
    _out: Any,
    _lse: Any,
    _d_out: Any,
    _d_lse: Any,
    _causal: bool,
    _scale: Any,
    _left: Any = None,
    _right: Any = None,
    _softcap: Any = None,
    _slopes: Any = None,
    sinks: Any = None,
    _deterministic: bool = False,
) -> tuple[torch.Tensor, ...]:
    made = [q.new_empty(t.shape) for t in (q, k, v)]
    return (*made, q.new_empty(0) if sinks is None else torch.empty_like(sinks))


def _more(
    left: Any = None,
    right: Any = None,
    softcap: Any = None,
    slopes: Any = None,
    sinks: Any = None,
    _deterministic: bool = False,
) -> tuple[Any, ...]:
    window = None if left is None and right is None else (left, right)
    given = any(x is not None for x in (window, softcap, slopes, sinks))
    return ((window, softcap, slopes, sinks),) if given else ()


def _fake(
    q: Any, k: Any, v: Any, _causal: bool, _scale: Any, *_more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shapes and types of the result; what sizes must fulfil is checked now, or at run time."""
    _check(q, k, v)
    batch, length, heads, _ = q.shape
    out = q.new_empty((batch, length, heads, v.shape[3]))
    return out, q.new_empty((batch, heads, length), dtype=torch.float32)


def _fake_into(q: Any, k: Any, v: Any, *_more: Any) -> None:
    _check(q, k, v)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 4:
            raise error(
                "FA0802",
                f"`{name}` has {t.dim()} dimensions, expected 4: (batch, seqlen, heads, head_dim)",
            )
        if t.dtype not in (torch.bfloat16, torch.float16) or t.dtype != q.dtype:
            raise error(
                "FA0803", f"`{name}` is {t.dtype}, `q` is {q.dtype}, expected 16 bits alike"
            )
    check: Any = torch._check
    check(k.shape[0] == q.shape[0], lambda: "`k` has another batch than `q`")
    check(v.shape[0] == q.shape[0], lambda: "`v` has another batch than `q`")
    check(k.shape[1] == v.shape[1], lambda: "`v` has another seqlen than `k`")
    check(k.shape[2] == v.shape[2], lambda: "`v` has other heads than `k`")
    check(k.shape[3] == q.shape[3], lambda: "`k` has another head_dim than `q`")
