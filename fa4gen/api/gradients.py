"""The backward of `attention`: gradients of q, k, v and of the sinks from those of the output and
its LSE."""

from contextlib import nullcontext
from typing import Any

import torch

from fa4gen.diag import error
from fa4gen.ir.geometry import padded_rows
from fa4gen.runtime import launch
from fa4gen.runtime.extras import extras_of
from fa4gen.runtime.launch import GRID_LIMIT
from fa4gen.runtime.problem import Problem, check_shapes, scale_of, tma_view

from .session import CURRENT, Session

Tensor = torch.Tensor
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
BLOCK = 64  # queries of a block, or more, in all schedules
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}


def backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor,
    causal: bool,
    scale: float | None,
    window: Any = None,
    softcap: float | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    deterministic: bool = False,
) -> Gradients:
    """(dq, dk, dv, d_sinks), of the types and shapes of q, k, v and the sinks, contiguous; without
    sinks d_sinks is empty.

    `out` and `lse` are what `attention` returned for q, k, v and the arguments behind; `d_out` and
    `d_lse` their gradients. Rows that see no key, and keys that no row sees, have gradients of
    exactly 0. `deterministic`, or torch's mode of that name: dq is the same bits each time. Raises
    `Fa4genError`: FA0804, FA0805 for a device or problem without kernels, FA081x, FA07xx.
    """
    check_shapes(tuple(q.shape), tuple(k.shape), tuple(v.shape))
    number = scale_of(scale, q.shape[3])
    facts = launch.device_of_tensor(q)
    # a sink is in the LSE, and so in every probability: to the kernels it is nothing of its own
    causal, extras = extras_of(q, causal, window, softcap, alibi_slopes, None)
    dq, dk, dv = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    d_sinks = torch.zeros_like(sinks) if sinks is not None else q.new_empty(0)
    if not (q.numel() and k.numel()):
        if sinks is not None and lse.numel():
            d_sinks = sink_gradient(sinks, lse, -d_lse.float())
        return dq.zero_(), dk.zero_(), dv.zero_(), d_sinks
    if q.shape[2] > GRID_LIMIT:
        raise error("FA0809", f"{q.shape[2]} heads, the backward takes up to {GRID_LIMIT}")
    in_turn = deterministic or _asked_of_torch()
    features = (*extras.features, *(("deterministic",) if in_turn else ()))
    kernel = _kernel(CURRENT.get(), q, v, causal, features, facts)
    q, k, v, out, d_out = (tma_view(t.detach()) for t in (q, k, v, out, d_out.to(q.dtype)))
    given = (q, k, v, out, d_out, lse.detach(), d_lse.detach().float())
    step = max(1, GRID_LIMIT // q.shape[2])  # batches in one launch: grids end at 65535
    elsewhere = kernel.device >= 0 and torch.cuda.current_device() != kernel.device
    with torch.cuda.device(kernel.device) if elsewhere else nullcontext():
        for first in range(0, q.shape[0], step):
            part = slice(first, first + step)
            made = tuple(t[part] for t in (*given, dq, dk, dv))
            spaces = workspaces(made[0])
            more = (*extras.values(part, slice(None)), *(_turns(spaces[0]) if in_turn else ()))
            kernel.function(*made, *spaces, number, kernel.num_sms, *more)
            if sinks is not None:
                delta = spaces[1][:, :, : q.shape[1]]
                d_sinks += sink_gradient(sinks, given[5][part], delta)
    return dq, dk, dv, d_sinks


def _asked_of_torch() -> bool:
    """Whether torch's mode asks for it; a warning would do no more than what is done without."""
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.are_deterministic_algorithms_enabled() and not warns


def _turns(lse_rows: Tensor) -> tuple[Tensor, ...]:
    """How many tiles of keys have added to each block of dQ (there are fewer blocks than rows)."""
    batch, heads, rows = lse_rows.shape
    return (lse_rows.new_zeros((batch, heads, rows // BLOCK), dtype=torch.int32),)


def sink_gradient(sinks: Tensor, lse: Tensor, delta: Tensor) -> Tensor:
    """The gradient (heads,) of the sinks (heads,), of their type.

    lse, delta (batch, heads, rows), float32: delta = rowsum(O dO) - dLSE. A sink has no value, so
    that its probability exp(sink - lse), of each row, is changed by -delta alone. Where all is -inf
    (no key, a sink of -inf), nothing depends on the sink.
    """
    share = torch.exp(sinks.detach().float()[:, None] - lse).nan_to_num(nan=0.0)
    return (-share * delta).sum((0, 2)).to(sinks.dtype)


def workspaces(q: Tensor) -> tuple[Tensor, ...]:
    """Row values and float32 sums of dQ, which the kernels write before they read."""
    batch, length, heads, _ = q.shape
    rows = (batch, heads, padded_rows(length))
    lse_rows, delta_rows = (q.new_empty(rows, dtype=torch.float32) for _ in range(2))
    return lse_rows, delta_rows, q.new_empty(q.shape, dtype=torch.float32)


def _kernel(
    session: Session,
    q: Tensor,
    v: Tensor,
    causal: bool,
    features: tuple[str, ...],
    facts: launch.Device,
) -> launch.Kernel:
    """The kernel, from the memory of the session, or looked for and put there."""
    d, dv, device = q.shape[3], v.shape[3], q.get_device()
    key = ("backward", q.dtype, d, dv, causal, features, device)
    kernels = session.kernels  # a new one if layers change meanwhile
    if key not in kernels:
        problem = Problem(
            target=facts.target,
            dtype=DTYPES[q.dtype],
            head_dim=d,
            head_dim_v=dv,
            causal=causal,
            features=features,
            kernel="attention_backward",
        )
        kernels[key] = session.kernel(problem, device, facts.num_sms)
    return kernels[key]
