"""A modification compiled, run in the emulator, and judged by the value rule."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask

from fa4gen import driver
from fa4gen.bench.runner.modifications import Sizes
from fa4gen.emit.render import render
from fa4gen.emulator import Emulator
from fa4gen.emulator.attention import FLOOR, LSE_LIMIT, MAX, RMS
from fa4gen.emulator.report import Report
from fa4gen.flex.lists import lists_of
from fa4gen.flex.modifiers import Function, Joined, join, within_blocks
from fa4gen.flex.trace import trace_mask_mod, trace_score_mod
from fa4gen.ir.geometry import padded_rows
from fa4gen.options import Options
from fa4gen.runtime.compile import Request, compile_cached

SCHEDULES = Path(__file__).parents[2] / "schedules"
ROWS = {"sm_90a": 128, "sm_100a": 256}  # queries of a tile
FILES = {
    ("sm_90a", True): "fwd_lists_sm90.yaml",
    ("sm_90a", False): "fwd_sm90.yaml",
    ("sm_100a", True): "fwd_lists.yaml",
    ("sm_100a", False): "fwd.yaml",
}
BACKWARD = {
    ("sm_90a", True): "bwd_lists_sm90.yaml",
    ("sm_90a", False): "bwd_to128_sm90.yaml",
    ("sm_100a", True): "bwd_lists.yaml",
    ("sm_100a", False): "bwd.yaml",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run: the emulator's report, and the largest errors beside plain PyTorch's."""

    report: Report
    out: torch.Tensor
    lse: torch.Tensor
    right: bool
    said: str


def run(
    target: str,
    x: Sizes,
    score_mod: Any,
    mask: Any,
    *,
    heads_kv: int = 1,
    head_dim: int = 64,
    seed: int = 0,
) -> Ran:
    """`mask`: a BlockMask, a mask_mod, or None. The reference takes listed blocks alone."""
    if mask is not None and not hasattr(mask, "kv_indices"):
        sizes = x.batch, x.heads, x.seqlen_q, x.seqlen_k
        mask = create_block_mask(mask, *sizes, device="cpu")
    score = trace_score_mod(score_mod) if score_mod else None
    seen: Function | None = None
    lists: tuple[torch.Tensor, ...] = ()
    if mask is not None:
        seen = trace_mask_mod(mask.mask_mod)
        made = lists_of(mask, ROWS[target], 128, x.batch, x.heads, x.seqlen_q, x.seqlen_k)
        lists = made.tensors
        if made.table is not None:
            seen = within_blocks(seen, made.table, mask.BLOCK_SIZE)
    joined = join(score, seen)
    fwd = kernel(target, joined, head_dim, lists=mask is not None, seed=seed)
    g = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(x.batch, n, h, head_dim, generator=g).bfloat16()
        for n, h in ((x.seqlen_q, x.heads), (x.seqlen_k, heads_kv), (x.seqlen_k, heads_kv))
    )
    out = torch.full((x.batch, x.seqlen_q, x.heads, head_dim), math.nan).bfloat16()
    lse = torch.full((x.batch, x.heads, x.seqlen_q), math.nan)
    captured = [t.reshape(1) if t.dim() == 0 else t for t in joined.tensors]
    captured = [t.view(torch.uint8) if t.dtype is torch.bool else t for t in captured]
    report = fwd(q, k, v, out, lse, head_dim**-0.5, 2, *lists, *joined.numbers, *captured)
    exact, exact_lse = reference(x, q.double(), k.double(), v.double(), score_mod, mask)
    plain, _ = reference(x, q, k, v, score_mod, mask)
    (largest, rms), (plain_largest, plain_rms) = distance(out, exact), distance(plain, exact)
    lse_error = distance(lse, exact_lse)[0]
    right = largest <= MAX * plain_largest + FLOOR and rms <= RMS * plain_rms + FLOOR
    return Ran(
        report=report,
        out=out,
        lse=lse,
        right=right and lse_error <= LSE_LIMIT,
        said=f"largest {largest:.2e} (plain {plain_largest:.2e}), rms {rms:.2e} "
        f"(plain {plain_rms:.2e}), LSE {lse_error:.1e}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RanBackward:
    """One run of a backward: the report, and the largest errors beside plain PyTorch's."""

    report: Report
    gradients: tuple[torch.Tensor, ...]
    right: bool
    said: str


def run_backward(
    target: str,
    x: Sizes,
    score_mod: Any,
    mask: Any,
    *,
    heads_kv: int = 1,
    head_dim: int = 64,
    seed: int = 0,
) -> RanBackward:
    """The same for dQ, dK and dV, on the exact output, rounded; also through the LSE."""
    if mask is not None and not hasattr(mask, "kv_indices"):
        sizes = x.batch, x.heads, x.seqlen_q, x.seqlen_k
        mask = create_block_mask(mask, *sizes, device="cpu")
    score = trace_score_mod(score_mod) if score_mod else None
    seen, lists = None, ()
    if mask is not None:
        seen = trace_mask_mod(mask.mask_mod)
        tile = driver.check(SCHEDULES / BACKWARD[target, True]).schedule.tile()
        sizes = x.batch, x.heads, x.seqlen_q, x.seqlen_k
        made = lists_of(mask, *tile, *sizes, by_keys=True)
        lists = made.tensors
        if made.table is not None:
            seen = within_blocks(seen, made.table, mask.BLOCK_SIZE)
    joined = join(score, seen)
    bwd = kernel(target, joined, head_dim, lists=mask is not None, seed=seed, files=BACKWARD)
    g = torch.Generator().manual_seed(seed)
    q, k, v, d_out = (
        torch.randn(x.batch, n, h, head_dim, generator=g).bfloat16()
        for n, h in (
            (x.seqlen_q, x.heads),
            (x.seqlen_k, heads_kv),
            (x.seqlen_k, heads_kv),
            (x.seqlen_q, x.heads),
        )
    )
    d_lse = torch.randn(x.batch, x.heads, x.seqlen_q, generator=g)
    exact = gradients(x, (q, k, v), d_out, d_lse, score_mod, mask, torch.float64)
    plain = gradients(x, (q, k, v), d_out, d_lse, score_mod, mask, torch.bfloat16)
    out, lse = (
        t.detach() for t in reference(x, q.double(), k.double(), v.double(), score_mod, mask)
    )
    made_ = [torch.full_like(t, math.nan) for t in (q, k, v)]
    rows = (x.batch, x.heads, padded_rows(x.seqlen_q))
    spaces = [torch.full(rows, math.nan) for _ in range(2)]
    given = (q, k, v, out.bfloat16().contiguous(), d_out, lse.float(), d_lse)
    captured = [t.reshape(1) if t.dim() == 0 else t for t in joined.tensors]
    captured = [t.view(torch.uint8) if t.dtype is torch.bool else t for t in captured]
    sums = torch.full(q.shape, math.nan)
    report = bwd(
        *given, *made_, *spaces, sums, head_dim**-0.5, 2, *lists, *joined.numbers, *captured
    )
    right, said = True, []
    for name, got, e, p in zip(("dq", "dk", "dv"), made_, exact, plain, strict=True):
        (largest, rms), (plain_largest, plain_rms) = distance(got, e), distance(p, e)
        right &= largest <= MAX * plain_largest + FLOOR and rms <= RMS * plain_rms + FLOOR
        said.append(
            f"{name} {largest:.2e} (plain {plain_largest:.2e}), {rms:.2e} ({plain_rms:.2e})"
        )
    return RanBackward(report=report, gradients=tuple(made_), right=right, said="; ".join(said))


def gradients(
    x: Sizes,
    qkv: tuple[torch.Tensor, ...],
    d_out: torch.Tensor,
    d_lse: torch.Tensor,
    score_mod: Any,
    mask: Any,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, ...]:
    """By autograd through the user's function, in a type; rows that see nothing have none."""
    leaves = [t.to(dtype).requires_grad_() for t in qkv]
    out, lse = reference(x, *leaves, score_mod, mask)
    there = ~lse.isinf()
    total = (out * d_out.to(dtype)).sum() + (lse[there] * d_lse[there].to(dtype)).sum()
    return torch.autograd.grad(total, leaves)


def kernel(
    target: str,
    joined: Joined,
    head_dim: int,
    *,
    lists: bool,
    seed: int,
    files: Mapping[tuple[str, bool], str] = FILES,
) -> Any:
    """Compiled, and loaded into the emulator."""
    settings = {"head_dim": str(head_dim), "head_dim_v": str(head_dim)}
    file = SCHEDULES / files[target, lists]
    checked = driver.check(file, settings=settings, modifiers=joined.modifiers)
    text = render(checked.program).text
    request = Request(name=checked.schedule.name, target=target, text=text)
    made = compile_cached(request, Options.from_environment())
    emulator = Emulator(target=target, seed=seed)
    return emulator.load(made.shared_object, ptx=[made.lines_ptx])["fwd"]


def reference(
    x: Sizes, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any, mask: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """In the tensors' type, by calling the user's functions on whole tensors of indices."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(x.heads // k.shape[1], 1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
    sizes = (x.batch, x.heads, x.seqlen_q, x.seqlen_k)
    places = torch.meshgrid(*(torch.arange(n) for n in sizes), indexing="ij")
    if score_mod:
        scores = score_mod(scores, *places).to(q.dtype)
    if mask is not None:
        hidden = ~seen_by(mask, sizes, places)
        scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    blind = (lse == -math.inf)[..., None]
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return (weights @ v).transpose(1, 2), lse


def seen_by(mask: Any, sizes: tuple[int, ...], places: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """What a BlockMask lets through: full blocks whole, partial ones as its function says."""
    b, h, q, k = places
    rows, keys = mask.BLOCK_SIZE
    shape = (sizes[0], sizes[1], -(-sizes[2] // rows), -(-sizes[3] // keys))
    kinds = torch.zeros(shape, dtype=torch.int8)
    pairs = (
        (1, mask.kv_num_blocks, mask.kv_indices),
        (2, mask.full_kv_num_blocks, mask.full_kv_indices),
    )
    for kind, counts, indices in pairs:
        if counts is None:
            continue
        counts, indices = (t.expand(*shape[:2], *t.shape[2:]) for t in (counts, indices))
        for row in itertools.product(*(range(n) for n in shape[:3])):
            kinds[row][indices[row][: counts[row]].long()] = kind
    found = kinds[b, h, q // rows, k // keys]
    return (found == 2) | ((found == 1) & mask.mask_mod(b, h, q, k))


def distance(got: torch.Tensor, exact: torch.Tensor) -> tuple[float, float]:
    """Largest and root-mean-square error; equal infinities are none."""
    error = (got.double() - exact.double()).abs()
    error = torch.where(got.double() == exact.double(), 0.0, error).nan_to_num(nan=math.inf)
    return error.max().item(), error.square().mean().sqrt().item()
