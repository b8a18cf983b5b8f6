"""Work tiles over the SMs: when the last one is done, by the order that the tile scheduler gives.

Full attention has tiles of one length; causal tiles grow with their row. A grid gives the next tile
to whichever SM is free; a persistent kernel gives every n-th tile to one SM, in advance; a dynamic
one claims the next.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

IN_ADVANCE = ("static_persistent", "lpt_persistent")
OVERLAPPED = (
    *IN_ADVANCE,
    "dynamic",
    "lpt_dynamic",
    "clc",
    "lpt_clc",
)  # the next tile's loads begin before this ends
LONGEST_FIRST = ("lpt", "lpt_persistent", "lpt_dynamic", "lpt_clc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One call: bf16 or fp16, `heads` of Q."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    causal: bool


def blocks_of(problem: Problem, rows: int, keys: int, m_block: int) -> tuple[int, int]:
    """KV blocks of a tile, and how many of them need masks."""
    whole = -(-problem.seqlen_k // keys)
    if not problem.causal:
        return max(whole, 1), 0 if problem.seqlen_k % keys == 0 else 1
    shift = problem.seqlen_k - problem.seqlen_q
    visible = min(problem.seqlen_k, max((m_block + 1) * rows + shift, 0))
    count = max(-(-visible // keys), 1)
    seen_by_all = min(problem.seqlen_k, max(m_block * rows + 1 + shift, 0)) // keys
    return count, min(max(count - seen_by_all, 1), count)


def order(problem: Problem, rows: int, scheduler: str) -> list[int]:
    """The row block of each tile, in the order in which tiles begin (sections of heads that share
    the L2 cache are left out: heads are alike)."""
    m_blocks = -(-problem.seqlen_q // rows)
    heads = problem.batch * problem.heads
    if scheduler in LONGEST_FIRST:
        per_batch = [m for m in reversed(range(m_blocks)) for _ in range(problem.heads)]
        return per_batch * problem.batch
    return list(range(m_blocks)) * heads


def makespan(clocks: Sequence[float], sms: int, scheduler: str) -> float:
    """Clocks until the last tile is done; `clocks` of each tile, in order."""
    if scheduler in IN_ADVANCE:
        return max((sum(clocks[n::sms]) for n in range(min(sms, len(clocks)))), default=0.0)
    free = [0.0] * sms
    for c in clocks:
        heapq.heapreplace(free, free[0] + c)
    return max(free)
