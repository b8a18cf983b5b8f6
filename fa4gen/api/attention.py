"""`attention`: the call that all other entry points come to."""

from collections.abc import Callable
from typing import Any

import torch

from fa4gen.diag import error
from fa4gen.runtime import launch, operators
from fa4gen.runtime.extras import NOTHING, Extras, Window, extras_of
from fa4gen.runtime.launch import GRID_LIMIT
from fa4gen.runtime.problem import (
    LIMIT,
    POINTER_BITS,
    STRIDE_BITS,
    check_flag,
    check_output,
    check_tensors,
    scale_of,
    takes,
    tma_view,
)

from .again import fits_of
from .gradients import backward
from .session import CURRENT, Plan, Session, kernel_of

Tensor = torch.Tensor
traced: Callable[[], bool] = torch.compiler.is_dynamo_compiling
modes: Callable[[], int] = torch._C._len_torch_dispatch_stack  # FakeTensorMode, make_fx
More = tuple[Window | None, float | None, Tensor | None, Tensor | None]  # as the call gives them
PLAIN: More = (None, None, None, None)
ALL = slice(None)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: Window | None = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    out: Tensor | None = None,
    lse: Tensor | None = None,
    deterministic: bool = False,
) -> Any:
    """Softmax attention, forward: out = softmax(softmax_scale q k^T + mask) v.

    q (batch, seqlen_q, heads, head_dim), k (batch, seqlen_k, heads_k, head_dim) and v (batch,
    seqlen_k, heads_k, head_dim_v): all bfloat16 or all float16, on one CUDA device; heads is a
    multiple of heads_k. Lengths may be any, 0 too.

    causal: query i sees keys up to i + seqlen_k - seqlen_q (aligned bottom-right). A row that sees
    no key is 0, its LSE -inf. softmax_scale: a number above 0; None: 1 / sqrt(head_dim).
    window (left, right): the place of query i among the keys is p = i + seqlen_k - seqlen_q; it
    sees keys p - left to p + right, both included. None: an open end. Negative bounds count from
    the other side: (5, -2) sees keys p - 5 to p - 2. With `causal`, right is at most 0.
    softcap: a scaled score s becomes softcap tanh(s / softcap); None or 0: none.
    alibi_slopes (heads,) or (batch, heads), float32: slope |p - j| is taken off the score of key j,
    after softcap, before masks. sinks (heads,), float32 or 16 bits: exp(sink) joins the sum of each
    row, and its LSE; no value goes with it. A row without keys is 0, its LSE the sink.
    None of these values is compiled in: they may change from call to call.
    out (batch, seqlen_q, heads, head_dim_v), of q's type, and lse (batch, heads, seqlen_q), float32
    (natural logarithm): where to write; None: made here. They must not be inputs of the call.
    deterministic: the gradient of q is the same bits each time, too (all else always is); so it is
    where `torch.use_deterministic_algorithms(True)` says so. Slower; on Hopper, without windows.

    Returns out, or (out, lse) with return_lse.

    Views are read as they lie where TMA can: last dimension contiguous, other strides above 0 and
    multiples of 16 bytes, the first element at a multiple of 16 bytes; else they are copied first
    (an expanded dimension is such a case). The launch is on torch's current stream of the tensors'
    device and may be captured in a CUDA graph, best after a first call that loads the kernel.

    Raises `fa4gen.Fa4genError`: FA0802 to FA0809 for an argument, FA0810 to FA0814 and FA07xx where
    no kernel can be had. Gradients flow to q, k, v and sinks through out and lse; FA0807 where an
    input requires one and the call has `out` or `lse`, and where alibi_slopes requires one.
    """
    if deterministic is not False and _in_order(deterministic, q, k, v, sinks):
        more = (window, softcap, alibi_slopes, sinks)
        made = _with_extras(q, k, v, causal, softmax_scale, out, lse, more, True)
    elif not (window is None is softcap and alibi_slopes is None is sinks):
        more = (window, softcap, alibi_slopes, sinks)
        made = _with_extras(q, k, v, causal, softmax_scale, out, lse, more)
    elif traced() or modes():
        made = _by_operator(q, k, v, causal, softmax_scale, out, lse)
    else:
        if out is not None:  # as `_again` does; here it is a tenth of a microsecond less
            for flag, given, fits, call, default, num_sms, device, _ in CURRENT.get().recent:
                if (
                    flag is causal
                    and given
                    and fits(q, k, v, out, lse)
                    and (
                        softmax_scale is None
                        or (type(softmax_scale) is float and 0 < softmax_scale < 3e38)
                    )
                    and (device < 0 or device == torch.cuda.current_device())
                ):
                    scale = default if softmax_scale is None else softmax_scale
                    try:
                        call(q, k, v, out, lse, scale, num_sms)
                    except ValueError:
                        break
                    return (out, lse) if return_lse else out
        known = _again(CURRENT.get(), q, k, v, causal, softmax_scale, out, lse)
        made = known or _unknown(q, k, v, causal, softmax_scale, out, lse)
    return made if return_lse else made[0]


def _in_order(deterministic: bool, *tensors: Any) -> bool:
    """Whether a gradient will be computed, and in a fixed order."""
    return check_flag("deterministic", deterministic) and wants_gradient(*tensors)


def _unknown(
    q: Any, k: Any, v: Any, causal: bool, scale: float | None, out: Any, lse: Any
) -> tuple[Tensor, Tensor]:
    call = _by_operator if _seen_by_torch(q, k, v) else _anew
    return call(q, k, v, causal, scale, out, lse)


def _with_extras(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    out: Any,
    lse: Any,
    more: Any,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    slopes, sinks = more[2:]
    if wants_gradient(slopes):
        raise error(
            "FA0807",
            "`alibi_slopes` requires a gradient, and none is computed of it",
            fix="pass `alibi_slopes.detach()`: q, k, v and sinks have gradients",
        )
    if traced() or modes() or _seen_by_torch(q, k, v) or wants_gradient(sinks):
        return _by_operator(q, k, v, causal, scale, out, lse, more, deterministic)
    return forward(q, k, v, causal, scale, out, lse, more)


def _seen_by_torch(q: Any, k: Any, v: Any) -> bool:
    """Whether autograd, a functorch transform or a tensor subclass wants to see the call."""
    return bool(
        wants_gradient(q, k, v)
        or type(q) is not Tensor
        or type(k) is not Tensor
        or type(v) is not Tensor
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def wants_gradient(*tensors: Any) -> bool:
    """Whether the call is part of a graph that is differentiated."""
    return torch.is_grad_enabled() and any(
        isinstance(t, Tensor) and t.requires_grad for t in tensors
    )


def _by_operator(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    out: Any,
    lse: Any,
    more: More = PLAIN,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    for name, t in (("q", q), ("k", k), ("v", v)):
        if not isinstance(t, Tensor):
            raise error("FA0802", f"`{name}` is a {type(t).__name__}, expected a torch.Tensor")
    window, softcap, slopes, sinks = more
    if not (out is None and lse is None) and wants_gradient(q, k, v, sinks):
        named = {"q": q, "k": k, "v": v, "sinks": sinks}
        name = next(n for n, t in named.items() if wants_gradient(t))
        raise error(
            "FA0807",
            f"`{name}` requires a gradient, and results that are written to have none",
            fix="leave `out` and `lse` out, or call it under `torch.no_grad()`",
        )
    left, right = window or (None, None)
    if out is None and lse is None:
        last = (sinks, True) if deterministic else (sinks,)
        made, rows = torch.ops.fa4gen.forward.default(
            q, k, v, causal, scale, left, right, softcap, slopes, *last
        )
        return made, rows
    if out is None:
        out = q.new_empty((*q.shape[:3], v.shape[3]))
    if lse is None:
        lse = q.new_empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    torch.ops.fa4gen.forward_into.default(
        q, k, v, out, lse, causal, scale, left, right, softcap, slopes, sinks
    )
    return out, lse


def forward(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    out: Any,
    lse: Any,
    more: More = PLAIN,
) -> tuple[Tensor, Tensor]:
    """The call itself, upon tensors of the kernel's device."""
    if more is not PLAIN:
        check_tensors(q, k, v)
        causal, extras = extras_of(q, check_flag("causal", causal), *more)
        return _anew(q, k, v, causal, scale, out, lse, extras)
    made = _again(CURRENT.get(), q, k, v, causal, scale, out, lse)
    return made or _anew(q, k, v, causal, scale, out, lse)


def _again(
    session: Session, q: Any, k: Any, v: Any, causal: Any, scale: Any, out: Any, lse: Any
) -> tuple[Tensor, Tensor] | None:
    """A call like a recent one, or None. Every line here is host time of every call.

    One comparison in C++ covers types, devices, shapes, strides, gradients and torch's transforms;
    the kernel's host code insists on alignment itself.
    """
    given = out is not None
    for flag, with_outputs, fits, call, default, num_sms, device, plan in session.recent:
        if (
            flag is causal
            and with_outputs is given
            and (fits(q, k, v, out, lse) if given else lse is None and fits(q, k, v))
            and (scale is None or (type(scale) is float and 0 < scale < 3e38))
            and (device < 0 or device == torch.cuda.current_device())
        ):
            if not given:
                out = torch.empty_like(q) if plan.out_like_q else q.new_empty(plan.out_shape)
                lse = q.new_empty(plan.lse_shape, dtype=torch.float32)
            try:
                call(q, k, v, out, lse, default if scale is None else scale, num_sms)
            except ValueError:  # another pointer or size than it takes: nothing was launched
                return None
            return out, lse
    return None


def _anew(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float | None,
    out: Any,
    lse: Any,
    extras: Extras = NOTHING,
) -> tuple[Tensor, Tensor]:
    """A call unlike the recent ones. What is not in order goes to `_careful`, which says why.

    Shapes, strides, types and devices decide alike every time they come: `Session.plans` remembers
    the verdict, so that a call like an earlier one is one look-up and what a look-up cannot hold.
    """
    session = CURRENT.get()
    try:
        key = (
            q.shape, q.stride(), q.dtype, q.get_device(),
            k.shape, k.stride(), k.dtype, k.get_device(),
            v.shape, v.stride(), v.dtype, v.get_device(),
            causal, extras.features,
            out is None or (out.shape, out.stride(), out.dtype, out.get_device()),
            lse is None or (lse.shape, lse.stride(), lse.dtype, lse.get_device()),
        )  # fmt: skip
        plan = session.plans.get(key)
        seen = plan is not None
        if plan is None:
            plan = _remember(session, key, q, k, v, causal, extras.features, out, lse)
        pointers = q.data_ptr(), k.data_ptr(), v.data_ptr()
        in_order = (
            plan is not None
            and not (pointers[0] | pointers[1] | pointers[2]) & POINTER_BITS
            and not (q.requires_grad or k.requires_grad or v.requires_grad)
            and (plan.device < 0 or plan.device == torch.cuda.current_device())
            and (scale is None or (type(scale) is float and 0 < scale < 3e38))
            and (out is None or _unshared(out, pointers))
            and (lse is None or not lse.requires_grad)
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        in_order = False  # not tensors, or a kernel that was not needed before
    if not in_order or plan is None:
        return _careful(session, q, k, v, causal, scale, out, lse, extras)
    if (
        extras is NOTHING and seen and (out is None) is (lse is None)
    ):  # a third such call will be recognised
        tensors = (q, k, v) if out is None else (q, k, v, out, lse)
        session.expect(causal, out is not None, fits_of(tensors), plan)
    if out is None:
        out = q.new_empty(plan.out_shape)
    if lse is None:
        lse = q.new_empty(plan.lse_shape, dtype=torch.float32)
    number = plan.scale if scale is None else scale
    plan.call(q, k, v, out, lse, number, plan.num_sms, *extras.values(ALL, ALL))
    return out, lse


def _unshared(out: Any, pointers: tuple[int, int, int]) -> bool:
    """An output that is aligned, wants no gradient, and is no input."""
    pointer = out.data_ptr()
    return not (pointer & POINTER_BITS or out.requires_grad or pointer in pointers)


def _remember(
    session: Session,
    key: tuple[Any, ...],
    q: Any,
    k: Any,
    v: Any,
    causal: Any,
    features: tuple[str, ...],
    out: Any,
    lse: Any,
) -> Plan | None:
    """The plan of calls like this one, kept if they can go straight to their kernel."""
    b, sq, h, d = q.shape
    bk, sk, hk, dk = k.shape
    bv, sv, hv, dv = v.shape
    device = q.get_device()
    devices = device, k.get_device(), v.get_device()
    kernel = session.kernels[q.dtype, k.dtype, v.dtype, d, dk, dv, causal, features, *devices]
    strides = [*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]]
    in_order = (
        b == bk == bv
        and sk == sv
        and hk == hv
        and b * sq * h * sk * hk
        and not h % hk
        and b * sq * h < LIMIT > sk
        and b <= GRID_LIMIT >= h
        and q.stride()[3] == k.stride()[3] == v.stride()[3] == 1
        and all(strides)
        and not any(s & STRIDE_BITS for s in strides)
        and type(causal) is bool
        and (out is None or _good_out(out, q, (b, sq, h, dv)))
        and (lse is None or _good_lse(lse, (b, h, sq), device))
    )
    if not in_order:
        return None
    plan = Plan(
        call=kernel.function,
        num_sms=kernel.num_sms,
        device=device if torch.cuda.device_count() > 1 else -1,  # one GPU is always current
        out_shape=(b, sq, h, dv),
        out_like_q=d == dv and q.is_contiguous(),
        lse_shape=(b, h, sq),
        scale=d**-0.5,
    )
    return session.remember(key, plan)


def _good_out(out: Any, q: Any, shape: tuple[int, ...]) -> bool:
    o0, o1, o2, o3 = out.stride()
    return bool(
        out.shape == shape
        and out.dtype is q.dtype
        and out.get_device() == q.get_device()
        and o3 == 1
        and o0 * o1 * o2
        and not (o0 | o1 | o2) & STRIDE_BITS
    )


def _good_lse(lse: Any, shape: tuple[int, ...], device: int) -> bool:
    l0, l1, l2 = lse.stride()
    return bool(
        lse.shape == shape
        and lse.dtype is torch.float32
        and lse.get_device() == device
        and l2 == 1
        and l0
        and l1
    )


def _careful(
    session: Session,
    q: Any,
    k: Any,
    v: Any,
    causal: Any,
    scale: Any,
    out: Any,
    lse: Any,
    extras: Extras,
) -> tuple[Tensor, Tensor]:
    """What `forward` leaves: faults, first calls, empty and foreign tensors, large grids."""
    check_tensors(q, k, v)
    causal, number = check_flag("causal", causal), scale_of(scale, q.shape[3])
    b, sq, h, _ = q.shape
    dv = v.shape[3]
    if out is not None:
        check_output("out", out, (b, sq, h, dv), q.dtype, q.device)
        for name, t in (("q", q), ("k", k), ("v", v)):
            if out.numel() and out.data_ptr() == t.data_ptr():
                raise error("FA0808", f"`out` is `{name}`, which is still read while it is written")
    if lse is not None:
        check_output("lse", lse, (b, h, sq), torch.float32, q.device)
    facts = launch.device_of_tensor(q)
    kernel = kernel_of(session, q, v, causal, extras.features, facts)
    made = torch.empty((b, sq, h, dv), dtype=q.dtype, device=q.device) if out is None else out
    rows = torch.empty((b, h, sq), dtype=torch.float32, device=q.device) if lse is None else lse
    if not (b and sq and h):
        return made, rows
    if not k.shape[1]:
        rows.fill_(float("-inf"))
        return made.zero_(), rows if extras.sinks is None else rows.copy_(extras.sinks[:, None])
    own = made if takes(made) else torch.empty_like(made, memory_format=torch.contiguous_format)
    own_rows = (
        rows
        if rows.stride(2) == 1
        else torch.empty_like(rows, memory_format=torch.contiguous_format)
    )
    q, k, v = (tma_view(t.detach()) for t in (q, k, v))
    launch.launch(kernel, q, k, v, own, own_rows, number, extras)
    if own is not made:
        made.copy_(own)
    if own_rows is not rows:
        rows.copy_(own_rows)
    return made, rows


LIBRARY = operators.register(forward, backward)
