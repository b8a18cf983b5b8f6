"""Where the rows of a tile lie: in tensors of one length, or between bounds that memory holds.

What lies behind a sequence may be anything, a neighbour's rows or NaN. O is written, and V read,
through TMA descriptors that end where the sequence does (`ending_map`, `ended_map`): rows behind it
are not written, and come as zeros, since a probability of 0 times a NaN would be one. Rows of Q
behind it make rows that nobody stores, and scores of keys behind it are masked: both are read as
they lie.
"""

from dataclasses import dataclass

from fa4gen.ir.features import PAGES
from fa4gen.ir.geometry import Boxes
from fa4gen.ir.program import Box, Define
from fa4gen.ir.schedule import Schedule

from .pages import LANE, look_up, pages, rows_of_box
from .splits import split

ENDS = {"q": {"varlen_q"}, "k": {"varlen_k", "seqused_k", *PAGES}}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyBoxes:
    """The copies of a block, what is looked up `before` them, how many `lanes` share them."""

    boxes: tuple[Box, ...]
    before: tuple[Define, ...] = ()
    lanes: int = 0


def own_ends(schedule: Schedule, side: str) -> bool:
    """Whether memory holds where sequences of queries (q) or of keys (k) end."""
    return bool(ENDS[side] & schedule.features)


def ended(schedule: Schedule, *, values: bool) -> str:
    """The kind of descriptor that K or V is read through (`ir.head.TensorMap.ends`)."""
    return "ended" if values and own_ends(schedule, "k") else ""


def key_boxes(
    schedule: Schedule, item: str, base: str, boxes: Boxes, row: str, *, values: bool
) -> KeyBoxes:
    """The TMA boxes of a block of K or V whose first row is `row` of the sequence. `base`: of its
    slot in shared memory."""
    columns = [str(n * boxes.width) for n in range(boxes.count)]
    bases = [f"{base} + {n * boxes.elements}" for n in range(boxes.count)]
    if not pages(schedule):
        places = (_coordinates(schedule, c, row, values=values) for c in columns)
        copies = (Box(smem=b, coords=at) for b, at in zip(bases, places, strict=True))
        return KeyBoxes(boxes=tuple(copies))
    rows = rows_of_box(schedule, boxes.rows)
    lanes = boxes.rows // rows if rows < boxes.rows else 0
    if lanes:
        row = f"{row} + {LANE} * {rows}"
        bases = [f"{b} + {LANE} * {rows * boxes.width}" for b in bases]
    page, inside = f"{item}_page", f"{item}_row"
    found = look_up(page, inside, row)
    place: tuple[str, ...] = (inside, "head_kv", page)
    if values:
        end = f"{page} * v_rows + {inside} + seqlen_k - ({row})"
        place = (f"v_skip + {row}", "head_kv", end, "LONG")
    copies = (Box(smem=b, coords=(c, *place)) for b, c in zip(bases, columns, strict=True))
    return KeyBoxes(boxes=tuple(copies), before=(found,), lanes=lanes)


def _coordinates(schedule: Schedule, column: str, row: str, *, values: bool) -> tuple[str, ...]:
    if ended(schedule, values=values):
        return (column, f"v_skip + {row}", "head_kv", "v_end", "LONG")
    if "varlen_k" in schedule.features:
        return (column, f"k_start + {row}", "head_kv", "0")
    return (column, row, "head_kv", "batch")


def extents(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    """What the kernel gets of the tensors' lengths: parameter and argument. Where a tile finds out
    how long its sequence is, the tensor's length has another name."""
    own_q = own_ends(schedule, "q")
    own_k = own_q or own_ends(schedule, "k")
    return (
        ("rows_q" if own_q else "seqlen_q", "q.shape[1]"),
        ("rows_k" if own_k else "seqlen_k", most_keys(schedule)),
        *(() if "varlen_k" in schedule.features or not own_ends(schedule, "k") else (_V_ROWS,)),
    )


def most_keys(schedule: Schedule) -> str:
    """In the host function: how many keys a sequence has at most."""
    return "k.shape[1] * page_table.shape[1]" if pages(schedule) else "k.shape[1]"


_V_ROWS = ("v_rows", "Int32(v.stride[0] // v.stride[1])")  # from one batch (page) of V to the next


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
        ("o_skip, o_end", "rows_q - seqlen_q, q_start + seqlen_q"),
    ]


def _of_keys(schedule: Schedule, rows: str) -> list[tuple[str, str]]:
    """A tile without rows visits no keys."""
    start, length, found = "batch * v_rows", "rows_k", []
    if "varlen_k" in schedule.features:
        found.append(("k_start, keys", "sequence(cu_seqlens_k, batch)"))
        start, length = "k_start", "keys"
    if "seqused_k" in schedule.features:
        length = f"used_keys(seqused_k, batch, {length})"
    if own_ends(schedule, "q"):
        length = f"cutlass.select_(m_block * ({rows}) < seqlen_q, {length}, Int32(0))"
    if own_ends(schedule, "q") or own_ends(schedule, "k"):
        found.append(("seqlen_k", length))
    if pages(schedule):
        found.append(("v_skip", "LONG - seqlen_k"))
    elif own_ends(schedule, "k"):
        found.append(("v_skip, v_end", f"LONG - seqlen_k, {start} + seqlen_k"))
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
    """The batch of q and of k that `launch` is compiled for: one where sequences are packed, any
    number of pages."""
    packed = [f"varlen_{side}" in schedule.features for side in "qk"]
    of_k = "cute.sym_int()" if pages(schedule) else "1" if packed[1] else "b"
    return ("1" if packed[0] else "b", of_k)
