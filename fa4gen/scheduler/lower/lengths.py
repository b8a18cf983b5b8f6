"""Where the rows of a tile lie: in tensors of one length, or between bounds that memory holds.

A sequence of its own bounds is read and written through a TMA descriptor that ends where it ends
(`bounded_map`): what lies behind comes as zeros, and is never written. So no tile sees or touches
a neighbour's rows, whatever they hold.
"""

from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule

from .splits import split

ENDS = {"q": {"varlen_q"}, "k": {"varlen_k", "seqused_k"}}


def own_ends(schedule: Schedule, side: str) -> bool:
    """Whether memory holds where sequences of queries (q) or of keys (k) end."""
    return bool(ENDS[side] & schedule.features)


def key_coordinates(schedule: Schedule, column: str, row: str) -> tuple[str, ...]:
    """TMA coordinates of a box of K or V whose first row is `row` of the sequence."""
    if not own_ends(schedule, "k"):
        return (column, row, "head_kv", "batch")
    batch = "0" if "varlen_k" in schedule.features else "batch"
    return (column, f"k_skip + {row}", "head_kv", "k_end", batch)


def extents(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    """What the kernel gets of the tensors' lengths: parameter and argument. Where a tile finds out
    how long its sequence is, the tensor's length has another name."""
    own_q = own_ends(schedule, "q")
    own_k = own_q or own_ends(schedule, "k")
    return (
        ("rows_q" if own_q else "seqlen_q", "q.shape[1]"),
        ("rows_k" if own_k else "seqlen_k", "k.shape[1]"),
    )


def tile_lengths(schedule: Schedule, rows: str) -> tuple[Define, ...]:
    """The sequence of a tile of `rows` queries, and the lengths and ends of both sides."""
    return tuple(
        Define(name=a, text=b) for a, b in (*_of_queries(schedule, rows), *_of_keys(schedule, rows))
    )


def _of_queries(schedule: Schedule, rows: str) -> list[tuple[str, str]]:
    if not own_ends(schedule, "q"):
        return []
    return [
        ("batch, m_block", f"tile_of_sequence(cu_seqlens_q, m_block, {rows})"),
        ("q_start, seqlen_q", "sequence(cu_seqlens_q, batch)"),
        ("q_skip, q_end", "rows_q - seqlen_q, q_start + seqlen_q"),
    ]


def _of_keys(schedule: Schedule, rows: str) -> list[tuple[str, str]]:
    """A tile without rows visits no keys."""
    start, length, found = "Int32(0)", "rows_k", []
    if "varlen_k" in schedule.features:
        found.append(("k_start, keys", "sequence(cu_seqlens_k, batch)"))
        start, length = "k_start", "keys"
    if "seqused_k" in schedule.features:
        length = f"used_keys(seqused_k, batch, {length})"
    if own_ends(schedule, "q"):
        length = f"cutlass.select_(m_block * ({rows}) < seqlen_q, {length}, Int32(0))"
    if length != "rows_k":
        found.append(("seqlen_k", length))
    if own_ends(schedule, "k"):
        found.append(("k_skip, k_end", f"rows_k - seqlen_k, {start} + seqlen_k"))
    return found


def out_of(schedule: Schedule) -> tuple[str, str, str]:
    """Where rows are written otherwise than by TMA: the tensors of O (of splits) and of the LSE,
    from a sequence's first row on, and the batch index there."""
    o, lse, batch = "o", "lse", "batch"
    if split(schedule):
        o, lse, batch = "o_partial", "lse_partial", "partial"
    if not own_ends(schedule, "q"):
        return o, lse, batch
    o, lse = (
        f"cute.domain_offset(({at}), {t})"
        for t, at in ((o, "0, q_start, 0, 0"), (lse, "0, 0, q_start"))
    )
    return o, lse, batch if split(schedule) else "0"


def partial(schedule: Schedule) -> Define:
    """The place of a split's output and LSE, where a batch index stands else."""
    batch = "0" if own_ends(schedule, "q") else "batch"
    return Define(name="partial", text=f"split * batches + {batch}")


def batches(schedule: Schedule) -> tuple[str, str]:
    """The batch of q and of k that `launch` is compiled for: one where sequences are packed."""
    packed = [f"varlen_{side}" in schedule.features for side in "qk"]
    return ("1" if packed[0] else "b", "1" if packed[1] else "b")
