"""The backward of `flex_attention`, as torch's autograd sees it."""

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from fa4gen.runtime import launch
from fa4gen.runtime.problem import tma_view

from .gradients import workspaces

Tensor = torch.Tensor
Forward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
Backward = Callable[..., tuple[Tensor, Tensor, Tensor]]


class Differentiable(torch.autograd.Function):
    """`forward(q, k, v)` -> (out, lse), differentiable by `backward(q, k, v, out, lse, d_out,
    d_lse)`; `kept`: tensors that both read, and that must not change in between."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        forward: Forward,
        backward: Backward,
        *kept: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Out and LSE."""
        out, lse = forward(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse, *kept)
        ctx.call, ctx.unused = backward, 2 + len(kept)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor, d_lse: Tensor) -> tuple[Any, ...]:
        """Gradients of q, k and v."""
        made = ctx.call(*ctx.saved_tensors[:5], d_out, d_lse)
        return (*made, *[None] * ctx.unused)


def gradients(
    kernel: launch.Kernel,
    scale: float,
    more: tuple[Any, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of tensors (batch, seqlen, heads, head_dim), by one launch; they lie in memory
    heads first. `more`: what the kernel takes besides the tensors of attention."""
    made = [
        torch.empty_like(t.transpose(1, 2), memory_format=torch.contiguous_format)
        for t in (q, k, v)
    ]
    dq, dk, dv = (t.transpose(1, 2) for t in made)
    q, k, v, out, d_out = (tma_view(t.detach()) for t in (q, k, v, out, d_out.to(q.dtype)))
    rows = (lse.detach(), d_lse.detach().float())
    with launch.on_device(kernel):
        kernel.function(
            q, k, v, out, d_out, *rows, dq, dk, dv, *workspaces(q), scale, kernel.num_sms, *more
        )
    return dq, dk, dv
