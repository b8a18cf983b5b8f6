"""FlexAttention: torch's `flex_attention`, with its functions and BlockMasks as they are."""

import weakref
from dataclasses import dataclass, replace
from typing import Any

import torch

from fa4gen.diag import Fa4genError, error
from fa4gen.flex.lists import is_causal, lists_of
from fa4gen.flex.memory import Memory
from fa4gen.flex.modifiers import Function, Joined, join, within_blocks
from fa4gen.flex.recognise import Known, recognise
from fa4gen.ir.features import ordered
from fa4gen.options import Options
from fa4gen.runtime import launch
from fa4gen.runtime.dispatch import find
from fa4gen.runtime.launch import GRID_LIMIT
from fa4gen.runtime.problem import (
    LIMIT,
    Problem,
    check_tensors,
    scale_of,
    tma_view,
)

from . import jit
from .attention import wants_gradient
from .flex_gradients import Differentiable, gradients
from .session import CURRENT, DTYPES

Tensor = torch.Tensor
NO_BLOCKS = 1 << 30  # torch's block size of a mask that leaves nothing out
LISTS = {"attention_forward": "block_list", "attention_backward": "query_list"}
TRANSPOSED = "tensors are (batch, heads, seqlen, head_dim) here"


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: dict[str, Any] | None = None,
) -> Any:
    """Attention with users' functions, as `torch.nn.attention.flex_attention` has it.

    query (batch, heads, seqlen_q, head_dim), key (batch, heads_k, seqlen_k, head_dim) and value
    (batch, heads_k, seqlen_k, head_dim_v): all bfloat16 or all float16, on one CUDA device.
    heads_k is heads, or with enable_gqa a divisor of it.

    score_mod(score, batch, head, q_idx, kv_idx) replaces a scaled score. block_mask is torch's
    BlockMask: only listed blocks count, and in partial ones what its mask_mod lets through. A row
    that sees no key is 0, its LSE -inf. Functions are traced at every call and cached by what they
    compute: other lengths, batches, captured tensors or captured numbers compile nothing.

    scale: a number above 0; None: 1 / sqrt(head_dim). kernel_options: None or empty.

    Returns out (batch, heads, seqlen_q, head_dim_v), or (out, lse) with return_lse; lse (batch,
    heads, seqlen_q) is float32, natural logarithm.

    Gradients flow to query, key and value through out and lse: score_mod is differentiated. A
    captured tensor that requires one is refused (FA0807), captured numbers are constants.

    Raises `fa4gen.Fa4genError`: FA0802 to FA0807 for an argument, FA0809 for kernel_options, FA0820
    for a function that cannot be traced, FA0821 for a tensor that it captures, FA0822 for a
    block_mask that does not fit, FA0810 to FA0814 and FA07xx where no kernel can be had.
    """
    if kernel_options:
        title = f"`kernel_options` asks for {', '.join(sorted(kernel_options))}"
        raise error("FA0809", title, fix="leave it out: schedules decide; `fa4gen.use_schedule`")
    q, k, v = _checked(query, key, value, enable_gqa)
    number = scale_of(scale, q.shape[3])
    facts = launch.device_of_tensor(q)
    asked = _trace(score_mod, _blocks(block_mask, q, k), facts)
    call = _call(asked, q, k, v)

    def run(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return _forward(call, q, k, v, number, facts)

    if not wants_gradient(query, key, value):
        out, lse = run(q, k, v)
        return (out, lse) if return_lse else out
    _check_backward(asked, q, k, v)
    session = CURRENT.get()

    def back(*given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        token = CURRENT.set(session)  # autograd has threads of its own
        try:
            return _backward(asked, number, *given)
        finally:
            CURRENT.reset(token)

    apply: Any = Differentiable.apply
    out, lse = apply(q, k, v, run, back, *asked.tensors)
    return (out, lse) if return_lse else out


def _forward(
    call: "_Call", q: Tensor, k: Tensor, v: Tensor, scale: float, facts: launch.Device
) -> tuple[Tensor, Tensor]:
    b, sq, h, _ = q.shape
    out = q.new_empty((b, h, sq, v.shape[3]))
    lse = torch.empty((b, h, sq), dtype=torch.float32, device=q.device)
    if b and h and sq:
        if k.shape[1]:
            _launch(call, q, k, v, out.transpose(1, 2), lse, scale, facts)
        else:
            out.zero_()
            lse.fill_(float("-inf"))
    return out, lse


def _check_backward(asked: "_Asked", q: Tensor, k: Tensor, v: Tensor) -> None:
    """That there is a kernel for the gradients too, before anybody relies on them."""
    if q.shape[0] * q.shape[2] > GRID_LIMIT:
        title = f"{q.shape[0]} batches of {q.shape[2]} heads: the backward takes {GRID_LIMIT}"
        raise error("FA0809", title, fix="call it for a part of the batch at a time")
    strict = not torch.is_deterministic_algorithms_warn_only_enabled()
    if torch.are_deterministic_algorithms_enabled() and strict:
        title = "deterministic algorithms are asked for, and the backward adds to dQ in any order"
        raise error("FA0809", title, fix="torch.use_deterministic_algorithms(False) for this call")
    find(CURRENT.get().layers(), _problem(asked, q, k, v, "attention_backward"))


def _backward(
    asked: "_Asked",
    scale: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_lse: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    if not (q.numel() and k.numel()):
        dq, dk, dv = (torch.zeros_like(t) for t in (q, k, v))
        return dq, dk, dv
    call = _call(asked, q, k, v, "attention_backward")
    kernel = _kernel(call, q, asked.facts)
    rows = (out.transpose(1, 2), lse, d_out.transpose(1, 2), d_lse)
    return gradients(kernel, scale, call.arguments, q, k, v, *rows)


def _checked(query: Any, key: Any, value: Any, enable_gqa: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The tensors as kernels take them: (batch, seqlen, heads, head_dim)."""
    for name, t in (("query", query), ("key", key), ("value", value)):
        if not isinstance(t, Tensor) or t.dim() != 4:
            found = f"has {t.dim()} dimensions" if isinstance(t, Tensor) else f"is {type(t)}"
            raise error("FA0802", f"`{name}` {found}, expected a tensor of 4", why=TRANSPOSED)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    try:
        check_tensors(q, k, v)
    except Fa4genError as e:
        (found_,) = e.diagnostics
        title = found_.title
        for short, name in (("`q`", "`query`"), ("`k`", "`key`"), ("`v`", "`value`")):
            title = title.replace(short, name)
        raise error(found_.code, title, why=TRANSPOSED) from None
    if not enable_gqa and q.shape[2] != k.shape[2]:
        title = f"`key` has {k.shape[2]} heads, `query` {q.shape[2]}"
        raise error("FA0802", title, fix="enable_gqa=True lets query heads share those of the keys")
    if q.shape[0] * q.shape[1] * q.shape[2] >= LIMIT or max(q.shape[0], q.shape[2]) > 65535:
        raise error("FA0802", f"`query` of shape {tuple(query.shape)} is too large for one grid")
    return q, k, v


def _blocks(mask: Any, q: Tensor, k: Tensor) -> Any:
    """The block mask; None where it leaves nothing out. Raises FA0822."""
    if mask is None:
        return None
    if not hasattr(mask, "kv_indices"):
        title = f"`block_mask` is a {type(mask).__name__}, expected a BlockMask"
        fix = "torch.nn.attention.flex_attention.create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN)"
        raise error("FA0822", title, fix=fix)
    if tuple(mask.BLOCK_SIZE) == (NO_BLOCKS, NO_BLOCKS):
        return None
    lengths, have = tuple(mask.seq_lengths), (q.shape[1], k.shape[1])
    if lengths != have:
        title = f"`block_mask` is for lengths {lengths}, the tensors have {have}"
        raise error("FA0822", title, fix="make one for these lengths with `create_block_mask`")
    outer = tuple(mask.kv_num_blocks.shape[:2])
    for name, has, needs in zip(("batch", "heads"), outer, (q.shape[0], q.shape[2]), strict=True):
        if has not in (1, needs):
            raise error("FA0822", f"`block_mask` has {name} {has}, expected 1 or {needs}")
    if mask.kv_num_blocks.device != q.device:
        title = f"`block_mask` is on {mask.kv_num_blocks.device}, `query` on {q.device}"
        raise error("FA0822", title, fix=f"`block_mask.to({str(q.device)!r})`")
    return mask


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What a call asks of kernels, and what it passes besides the tensors of attention."""

    problem: Problem
    arguments: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """The functions of a call, traced, and its block mask; for the forward and the backward."""

    score: Function | None
    seen: Function | None
    mask: Any
    facts: launch.Device

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What the functions captured, and the lists of blocks."""
        captured = [t for f in (self.score, self.seen) if f for t in f.tensors]
        if self.mask is None:
            return tuple(captured)
        names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
        lists = (getattr(self.mask, name) for name in names)
        return (*captured, *(t for t in lists if t is not None))


def _trace(score_mod: Any, mask: Any, facts: launch.Device) -> _Asked:
    session = CURRENT.get()
    traced: Memory = session.traced or Memory()
    session.traced = traced
    return _Asked(
        score=traced.score_mod(score_mod) if score_mod is not None else None,
        seen=traced.mask_mod(mask.mask_mod) if mask is not None else None,
        mask=mask,
        facts=facts,
    )


def _problem(asked: _Asked, q: Tensor, k: Tensor, v: Tensor, kernel: str) -> Problem:
    """The problem of a forward or backward, as far as it does not depend on the kernel's tiles."""
    plain = Problem(
        target=asked.facts.target,
        dtype=DTYPES[str(q.dtype)],
        head_dim=q.shape[3],
        head_dim_v=v.shape[3],
        causal=False,
        kernel=kernel,
    )
    if asked.mask is None or _is_causal(asked.mask, asked.seen, q.shape[1], k.shape[1]):
        causal = replace(plain, causal=asked.mask is not None)
        return _joined(causal, q, join(asked.score, None), ()).problem
    return _joined(plain, q, join(asked.score, asked.seen), (LISTS[kernel],)).problem


def _call(
    asked: _Asked, q: Tensor, k: Tensor, v: Tensor, kernel: str = "attention_forward"
) -> _Call:
    problem, seen = _problem(asked, q, k, v, kernel), asked.seen
    if LISTS[kernel] not in problem.features:
        return _joined(problem, q, join(asked.score, None), ())
    b, sq, h, _ = q.shape
    candidate = find(CURRENT.get().layers(), problem)
    tile = jit.tile_of(candidate, problem, Options.from_environment())
    by_keys = kernel == "attention_backward"
    lists = lists_of(asked.mask, *tile, b, h, sq, k.shape[1], by_keys=by_keys)
    if lists.table is not None:
        seen = within_blocks(seen, lists.table, asked.mask.BLOCK_SIZE)
    made = _joined(problem, q, join(asked.score, seen), (LISTS[kernel],))
    return replace(made, arguments=(*lists.tensors, *made.arguments))


def _joined(plain: Problem, q: Tensor, joined: Joined, features: tuple[str, ...]) -> _Call:
    """The problem with users' functions, and what they captured as kernels take it."""
    _check_captured(joined, q)
    tensors = [t.detach() for t in joined.tensors]
    tensors = [t.reshape(1) if t.dim() == 0 else t for t in tensors]
    tensors = [t.view(torch.uint8) if t.dtype is torch.bool else t for t in tensors]
    asked = replace(
        plain,
        features=ordered((*features, *joined.modifiers.features)),
        modifiers=joined.modifiers,
    )
    return _Call(problem=asked, arguments=(*joined.numbers, *tensors))


def _check_captured(joined: Joined, q: Tensor) -> None:
    """Tensors that functions close over are read by the kernel. Raises FA0821, FA0807."""
    for t in joined.tensors:
        shown = f"a captured tensor of shape {tuple(t.shape)}"
        if t.device != q.device:
            title = f"{shown} is on {t.device}, `query` on {q.device}"
            fix = f"`.to({str(q.device)!r})` before the function is made"
            raise error("FA0821", title, fix=fix)
        if t.dtype is torch.float64:
            raise error("FA0821", f"{shown} is torch.float64", fix="`.float()`")
        if not t.numel():
            raise error("FA0821", f"{shown} has no elements")
        if t.requires_grad and torch.is_grad_enabled():
            title = f"{shown} requires a gradient, and the backward gives none of it"
            raise error("FA0807", title, fix="call under `torch.no_grad()`, or `.detach()` it")


def _is_causal(mask: Any, seen: Function | None, seqlen_q: int, seqlen_k: int) -> bool:
    """Whether the mask is the schedules' causal one. Its lists are looked at once (this waits for
    the device), and not while a CUDA graph is captured."""
    if seqlen_q != seqlen_k or seen is None or recognise(seen.expression) != Known(causal=True):
        return False
    masks = CURRENT.get().causal_masks
    known = masks.get(id(mask))
    if known and known[0]() is mask and known[1] == _versions(mask):
        return known[2]
    if mask.kv_indices.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    found = is_causal(mask, seqlen_q, seqlen_k)
    place = id(mask)

    def forget(_: object) -> None:
        masks.pop(place, None)

    masks[place] = (weakref.ref(mask, forget), _versions(mask), found)
    return found


def _versions(mask: Any) -> tuple[int, int]:
    """How often the lists were written."""
    return mask.kv_num_blocks._version, mask.kv_indices._version


def _launch(
    call: _Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    facts: launch.Device,
) -> None:
    kernel = _kernel(call, q, facts)
    q, k, v = (tma_view(t.detach()) for t in (q, k, v))
    with launch.on_device(kernel):
        kernel.function(q, k, v, out, lse, scale, kernel.num_sms, *call.arguments)


def _kernel(call: _Call, q: Tensor, facts: launch.Device) -> launch.Kernel:
    """The kernel, from the memory of the session, or looked for and put there."""
    session = CURRENT.get()
    place = (call.problem, q.get_device())
    kernel = session.kernels.get(place)
    if kernel is None:
        kernel = session.kernel(call.problem, q.get_device(), facts.num_sms)
        session.kernels[place] = kernel
    return kernel
