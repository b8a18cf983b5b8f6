"""Attention in float64, and the rule by which a kernel's values are right.

Tensors are (batch, seqlen, heads, head_dim); LSE is (batch, heads, seqlen_q), natural logarithm.
A causal mask is aligned bottom-right. A row that sees no key has output 0 and LSE -inf, and gives
no gradient.

A result is right if, against float64 on the stored inputs, its largest error is at most `MAX`
times that of plain PyTorch in the stored type plus `FLOOR`, its root-mean-square error at most
`RMS` times (gradients: `GRADIENT` times both), and it holds no NaN or infinity of its own.
docs/values.md says how this compares with PyTorch's fused attention, and why.
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Rows = tuple[int, slice]

MAX, RMS, GRADIENT, FLOOR, LSE_LIMIT = 1.5, 1.1, 2.0, 1e-5, 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionProblem:
    """Shapes and mask of one call; `dtype` is torch's name. `spread` multiplies the queries: with
    large scores the running maximum moves far, so that outputs are rescaled on the way.

    `window` (left, right): a query sees that many keys before and behind its own place, None: all.
    `softcap`: a bound of the scores, 0: none. `alibi`, `sinks`: with `slopes` and `sinks` of these.
    `lengths_q`, `lengths_k`: sequences of these lengths lie one behind the other in a batch of one,
    and `seqlen_q`, `seqlen_k` are the sums. `used_k`: how many keys of each sequence are there.
    `page_size`: keys and values lie in pages of so many rows (0: they do not), see `pages`.
    `blocks`: a tile of these (queries, keys) sees what `listed` lists for it; `by_keys`: the lists
    are those of tiles of keys.
    `member`: which sequence of a batch this is, where it stands for one.
    """

    batch: int = 1
    heads: int = 1
    heads_kv: int = 1
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    head_dim_v: int
    causal: bool = False
    window: tuple[int | None, int | None] | None = None
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    lengths_q: tuple[int, ...] | None = None
    lengths_k: tuple[int, ...] | None = None
    used_k: tuple[int, ...] | None = None
    page_size: int = 0
    blocks: tuple[int, int] | None = None
    by_keys: bool = False
    member: int = 0
    dtype: str = "bfloat16"
    spread: float = 1.0

    @property
    def scale(self) -> float:
        """1 / sqrt(head_dim)."""
        return float(self.head_dim**-0.5)

    @property
    def batch_q(self) -> int:
        """Batch of the tensors q and out."""
        return self.batch if self.lengths_q is None else 1

    @property
    def batch_k(self) -> int:
        """Batch of the tensors k and v."""
        return self.batch if self.lengths_k is None else 1


@dataclass(frozen=True, slots=True)
class Inputs:
    """Random normal tensors, in the problem's type."""

    q: "torch.Tensor"
    k: "torch.Tensor"
    v: "torch.Tensor"
    d_out: "torch.Tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How far a tensor is from float64, beside plain PyTorch's distance."""

    name: str
    max_error: float
    rms_error: float
    plain_max_error: float
    plain_rms_error: float
    right: bool

    def __str__(self) -> str:
        word = "right" if self.right else "WRONG"
        return (
            f"{self.name} {word}: largest error {self.max_error:.2e} "
            f"(plain {self.plain_max_error:.2e}), rms {self.rms_error:.2e} "
            f"(plain {self.plain_rms_error:.2e})"
        )


def make_inputs(problem: AttentionProblem, seed: int) -> Inputs:
    """q, k, v and an output gradient, from a generator of their own."""
    import torch

    p, generator = problem, torch.Generator().manual_seed(seed)

    def normal(batch: int, *shape: int, factor: float = 1.0) -> "torch.Tensor":
        made = torch.randn(batch, *shape, generator=generator) * factor
        return made.to(getattr(torch, p.dtype))

    made = Inputs(
        normal(p.batch_q, p.seqlen_q, p.heads, p.head_dim, factor=p.spread),
        normal(p.batch_k, p.seqlen_k, p.heads_kv, p.head_dim),
        normal(p.batch_k, p.seqlen_k, p.heads_kv, p.head_dim_v),
        normal(p.batch_q, p.seqlen_q, p.heads, p.head_dim_v),
    )
    if p.used_k is not None:  # what is not there may be anything
        there = torch.zeros(made.k.shape[:2], dtype=torch.bool)
        for _, _, rows in members(p):
            there[rows] = True
        for t in (made.k, made.v):
            t[~there] = float("nan")
    return made


def attend(
    problem: AttentionProblem, q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Output and LSE, computed in the tensors' own type, step by step."""
    import torch

    if (problem.lengths_q, problem.lengths_k, problem.used_k) == (None, None, None):
        return _attend_all(problem, q, k, v)
    out = torch.zeros(*q.shape[:3], problem.head_dim_v, dtype=q.dtype)
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("-inf"), dtype=q.dtype)
    for one, mine, theirs in members(problem):
        if one.seqlen_q:
            made, rows = _attend_all(one, q[mine][None], k[theirs][None], v[theirs][None])
            out[mine], lse[mine[0], :, mine[1]] = made[0], rows[0]
    return out, lse


def _attend_all(
    problem: AttentionProblem, q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """The same where every sequence is a row of the tensors' batch."""
    scores, v = _scores(problem, q, k, v)
    lse = scores.logsumexp(-1)
    blind = (lse == float("-inf"))[..., None]
    weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
    return (weights[..., : problem.seqlen_k] @ v).transpose(1, 2), lse


def fuse(
    problem: AttentionProblem, q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor"
) -> "torch.Tensor":
    """The output with the roundings of PyTorch's fused kernels: of exponentials relative to the
    row's own maximum, and of the result."""
    scores, values = _scores(problem, q.double(), k.double(), v.double())
    weights = (scores - scores.amax(-1, keepdim=True)).exp().nan_to_num(0.0)
    total = weights.sum(-1, keepdim=True)
    rounded = weights[..., : problem.seqlen_k].to(q.dtype).double()
    return (rounded @ values / total).nan_to_num(0.0).to(q.dtype).transpose(1, 2)


def _scores(
    problem: AttentionProblem, q: "torch.Tensor", k: "torch.Tensor", v: "torch.Tensor"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """Masked scores (batch, heads, seqlen_q, keys and the sink), and values for each head."""
    import torch

    ratio = problem.heads // problem.heads_kv
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(ratio, 1) for t in (k, v))
    scores = (q @ k.transpose(-1, -2)) * problem.scale
    scores = modified(problem, scores).masked_fill(hidden_keys(problem), float("-inf"))
    if problem.sinks:
        sink = sinks(problem).to(q.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat((scores, sink), -1)
    return scores, v


def members(problem: AttentionProblem) -> "list[tuple[AttentionProblem, Rows, Rows]]":
    """Each sequence as a problem of its own, and where its queries and keys lie: (batch, rows)."""
    p, found = problem, []
    q_starts, k_starts = ((0, *accumulate(x)) if x else None for x in (p.lengths_q, p.lengths_k))
    for b in range(p.batch):
        sq = p.lengths_q[b] if p.lengths_q else p.seqlen_q
        sk = p.lengths_k[b] if p.lengths_k else p.seqlen_k
        sk = min(sk, p.used_k[b]) if p.used_k else sk
        mine = (0, slice(q_starts[b], q_starts[b] + sq)) if q_starts else (b, slice(0, sq))
        theirs = (0, slice(k_starts[b], k_starts[b] + sk)) if k_starts else (b, slice(0, sk))
        sizes = {"batch": 1, "seqlen_q": sq, "seqlen_k": sk, "member": b}
        none = dict.fromkeys(("lengths_q", "lengths_k", "used_k"))
        found.append((replace(p, **sizes, **none), mine, theirs))  # type: ignore[arg-type]
    return found


def modified(problem: AttentionProblem, scores: "torch.Tensor") -> "torch.Tensor":
    """Scores capped, then biased by distance; rounded to their own type only at the end."""
    import torch

    exact = scores if scores.dtype == torch.float64 else scores.float()
    if problem.softcap:
        exact = problem.softcap * (exact / problem.softcap).tanh()
    if problem.alibi:
        exact = exact - slopes(problem)[..., None, None] * distances(problem).abs()
    return exact.to(scores.dtype)


def hidden_keys(problem: AttentionProblem) -> "torch.Tensor":
    """(seqlen_q, seqlen_k), with lists (batch, heads, seqlen_q, seqlen_k): which keys a query does
    not see; masks are aligned bottom-right."""
    import torch

    left, right = problem.window or (None, None)
    if problem.causal:
        right = min(right or 0, 0)
    distance = distances(problem)
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    if left is not None:
        hidden |= distance < -left
    if right is not None:
        hidden |= distance > right
    if problem.blocks is None:
        return hidden
    rows, keys = (
        n.repeat_interleave(s) for n, s in zip(_grid(problem), problem.blocks, strict=True)
    )
    seen = listed(problem)[:, :, rows[: problem.seqlen_q]][..., keys[: problem.seqlen_k]] > 0
    return hidden | ~seen


def listed(problem: AttentionProblem) -> "torch.Tensor":
    """Which blocks of keys are listed for a block of queries: 0 not, 1 masked, 2 seen whole.
    Half of them are; (batch, heads, blocks of queries, blocks of keys), int8."""
    import torch

    shape = (problem.batch, problem.heads, *(len(n) for n in _grid(problem)))
    generator = torch.Generator().manual_seed(problem.seqlen_q + problem.seqlen_k)
    drawn = torch.randint(4, shape, generator=generator, dtype=torch.int8)
    return (drawn - 1).clamp(min=0)


def _grid(problem: AttentionProblem) -> "tuple[torch.Tensor, torch.Tensor]":
    """Numbers of the blocks of queries, and of keys."""
    import torch

    assert problem.blocks is not None
    rows, keys = problem.blocks
    return torch.arange(-(-problem.seqlen_q // rows)), torch.arange(-(-problem.seqlen_k // keys))


def distances(problem: AttentionProblem) -> "torch.Tensor":
    """(seqlen_q, seqlen_k): how far a key lies behind the query's own place."""
    import torch

    place = torch.arange(problem.seqlen_q)[:, None] + problem.seqlen_k - problem.seqlen_q
    return torch.arange(problem.seqlen_k)[None, :] - place


def slopes(problem: AttentionProblem) -> "torch.Tensor":
    """ALiBi's slope of each head, another in each batch: (batch, heads), float32."""
    import torch

    heads = 2.0 ** -(8.0 * (torch.arange(problem.heads) + 1) / problem.heads)
    members = problem.member + torch.arange(problem.batch)
    return (heads[None, :] * (1 + 0.5 * members[:, None])).float()


def sinks(problem: AttentionProblem) -> "torch.Tensor":
    """A logit of each head, some above and some below the scores: (heads,), float32."""
    import torch

    return 3.0 * torch.cos(torch.arange(problem.heads).float() + problem.head_dim)


def judge_forward(
    problem: AttentionProblem, inputs: Inputs, out: "torch.Tensor", lse: "torch.Tensor | None"
) -> list[Verdict]:
    """The verdicts on an output and, if given, on an LSE."""
    qkv = (inputs.q, inputs.k, inputs.v)
    exact, exact_lse = attend(problem, *(t.double() for t in qkv))
    plain, _ = attend(problem, *qkv)
    verdicts = [_judge("out", out, exact, plain, MAX, RMS)]
    if lse is not None:
        error, rms = _distance(lse, exact_lse)
        verdicts.append(
            Verdict(
                name="lse",
                max_error=error,
                rms_error=rms,
                plain_max_error=LSE_LIMIT,
                plain_rms_error=LSE_LIMIT,
                right=error <= LSE_LIMIT,
            )
        )
    return verdicts


def judge_fused(problem: AttentionProblem, inputs: Inputs, out: "torch.Tensor") -> Verdict:
    """A stricter verdict: beside the fused kernels' roundings, of kernels with the same ones."""
    qkv = (inputs.q, inputs.k, inputs.v)
    exact, _ = attend(problem, *(t.double() for t in qkv))
    return _judge("out, beside fused,", out, exact, fuse(problem, *qkv), MAX, RMS)


def exact_forward(problem: AttentionProblem, inputs: Inputs) -> "tuple[torch.Tensor, torch.Tensor]":
    """Output rounded to the problem's type, and LSE in float32: what a backward pass is given."""
    out, lse = attend(problem, *(t.double() for t in (inputs.q, inputs.k, inputs.v)))
    return out.to(inputs.q.dtype), lse.float()


def judge_backward(
    problem: AttentionProblem,
    inputs: Inputs,
    gradients: "tuple[torch.Tensor, ...]",
    *,
    max_factor: float = GRADIENT,
    rms_factor: float = GRADIENT,
) -> list[Verdict]:
    """The verdicts on dQ, dK, dV."""
    exact = _gradients(problem, inputs, double=True)
    plain = _gradients(problem, inputs, double=False)
    triples = zip(("dq", "dk", "dv"), gradients, exact, plain, strict=True)
    return [_judge(name, g, e, p, max_factor, rms_factor) for name, g, e, p in triples]


def _gradients(
    problem: AttentionProblem, inputs: Inputs, *, double: bool
) -> "tuple[torch.Tensor, ...]":
    import torch

    leaves = [t.double() if double else t.clone() for t in (inputs.q, inputs.k, inputs.v)]
    for leaf in leaves:
        leaf.requires_grad_()
    out, _ = attend(problem, *leaves)
    return torch.autograd.grad(out, leaves, inputs.d_out.to(out.dtype))


def _judge(
    name: str,
    got: "torch.Tensor",
    exact: "torch.Tensor",
    plain: "torch.Tensor",
    max_factor: float,
    rms_factor: float,
) -> Verdict:
    error, rms = _distance(got, exact)
    plain_error, plain_rms = _distance(plain, exact)
    right = error <= max_factor * plain_error + FLOOR and rms <= rms_factor * plain_rms + FLOOR
    return Verdict(
        name=name,
        max_error=error,
        rms_error=rms,
        plain_max_error=plain_error,
        plain_rms_error=plain_rms,
        right=right,
    )


def _distance(got: "torch.Tensor", exact: "torch.Tensor") -> tuple[float, float]:
    """Largest and root-mean-square error; infinite where only one of both is finite, or NaN."""
    import torch

    error = (got.double() - exact.double()).abs()
    error = torch.where(got.double() == exact.double(), 0.0, error)  # equal infinities
    error = error.nan_to_num(nan=float("inf"))
    if not error.numel():
        return 0.0, 0.0
    return error.max().item(), error.square().mean().sqrt().item()
