"""Which KV blocks a tile visits, and in which of them keys are masked.

All roles count the same blocks, from one expression. They are visited from the last to the first;
those that only some rows see whole lie at the ends, and loops over them apart. Lists in memory name
first the blocks that are masked, then those that are seen whole.
"""

from collections.abc import Iterable

from fa4gen.ir.program import Call, Define, Segment, Stmt
from fa4gen.ir.schedule import Schedule

from .lengths import most_keys
from .sections import Occurrence
from .splits import shared, split

QUERY_LIST = "query_list"  # blocks of queries that lists in memory name
LISTS = {
    "block_list": "kv_indices, full_kv_indices, n_partial, n_listed, batch, head, m_block",
    QUERY_LIST: "q_indices, full_q_indices, n_partial, n_listed, batch, head, n_tile",
}
PLACED = ("tma_load", "bulk_load", "tma_reduce", "reduce_tile")  # kinds that name a block in memory
SAME_LISTS = (
    "all roles of a CTA read the same block lists: nobody writes them while the kernel runs"
)
WINDOW = ("window_left", "window_right")


def visited(schedule: Schedule, rows: str, keys: int) -> Define:
    """How many blocks (and, with a window, from which one) a tile of `rows` queries visits."""
    if schedule.over == "block_list":
        text = "listed_blocks(kv_num_blocks, full_kv_num_blocks, batch, head, m_block)"
        return Define(name="n_blocks, n_partial, n_listed", text=text)
    tile = f"seqlen_q, seqlen_k, m_block, {rows}, {keys}"
    name, text = "n_blocks", f"kv_blocks(seqlen_k, {keys})"
    if "window" in schedule.features:
        name, text = "first_block, n_blocks", f"kv_blocks_window({tile}, {', '.join(WINDOW)})"
    elif schedule.causal:
        text = f"kv_blocks_causal({tile})"
    return shared(schedule, Define(name=name, text=text))


def begins_late(schedule: Schedule) -> bool:
    """Whether the blocks of a tile may begin behind the first, with `first_block`."""
    return "window" in schedule.features or split(schedule)


def masked(
    schedule: Schedule, row: str, rows: str, keys: int, *, merged: bool
) -> tuple[Define, ...]:
    """How many of them are masked for the `rows` queries from `row` on, where that is not one.

    `merged`: block 0 is an iteration of the loops; else it stands before them, and is masked.
    """
    if schedule.over == "block_list":
        partial = "n_partial" if merged else "cutlass.max(n_partial, Int32(1))"
        return (Define(name="n_masked", text=partial),)
    if "window" in schedule.features:
        args = f"seqlen_q, seqlen_k, {row}, {rows}, first_block, n_blocks, {keys}"
        text = f"masked_blocks_window({args}, {', '.join(WINDOW)})"
        return (Define(name="n_masked, n_whole", text=text),)
    if schedule.causal:
        text = f"masked_blocks_causal(seqlen_q, seqlen_k, {row}, n_blocks, {keys})"
        if split(schedule):  # counted from the split's own last block
            behind = text.replace("n_blocks", "first_block + n_blocks")
            text = f"cutlass.min({behind}, n_blocks)"
        return (Define(name="n_masked", text=text),)
    return ()


def limits(schedule: Schedule) -> tuple[Define, ...]:
    """On the host: no window reaches further than there are keys or queries, so that no sum of
    positions overflows; the causal mask is a window without keys to the right."""
    if "window" not in schedule.features:
        return ()
    bounds = (
        ("-q.shape[1]", most_keys(schedule)),
        (f"-{most_keys(schedule)}", "0" if schedule.causal else "q.shape[1]"),
    )
    return tuple(
        Define(name=name, text=f"cutlass.max(cutlass.min({name}, {most}), {least})")
        for name, (least, most) in zip(WINDOW, bounds, strict=True)
    )


def block_index(schedule: Schedule, o: Occurrence) -> str:
    """Index of an operation's block as an expression; blocks run from the last to the first.

    In a loop, `i` counts iterations from 0: of all blocks (`uniform`), or of those after block 0.
    """
    if schedule.over == "block_list":
        return "block_before" if o.prev else "block"
    first = "first_block + " if begins_late(schedule) else ""
    match o.section:
        case "first":
            return f"({first}n_blocks - 1)"
        case "last":
            return "first_block" if first else "0"
        case _:
            return f"({first}n_blocks - {1 if o.uniform or o.prev else 2} - i)"


def named_blocks(schedule: Schedule, done: Iterable[Occurrence]) -> tuple[Define, ...]:
    """The blocks that the operations of a section work on, looked up in the lists."""
    lists = LISTS.get(schedule.over)
    if lists is None:
        return ()
    found = {}
    for o in done:
        if o.level != "block" or not (o.operation.kind in PLACED or asks(o)):
            continue
        visited = {"first": "0", "last": "n_blocks - 1"}.get(
            o.section, "i" if o.uniform or o.prev else "i + 1"
        )
        name = "block_before" if o.prev else "block"
        found[name] = Define(name=name, text=f"listed_block({lists}, {visited})", span=o.span)
    return tuple(found.values())


def asks(o: Occurrence) -> bool:
    """Whether an operation looks at the indices of keys."""
    return bool(o.operation.options.get("mask") or o.operation.options.get("score"))


def limit(schedule: Schedule) -> str:
    """Keys from here on do not count: none counts in the block that stands for an empty list."""
    if schedule.over in LISTS:
        return "cutlass.select_(n_listed > 0, seqlen_k, Int32(0))"
    return "seqlen_k"


def segments(schedule: Schedule, body: tuple[Stmt, ...], merged: bool) -> tuple[Segment, ...]:
    """One loop; or a masked, an unmasked and (with a window) again a masked one. Block 0, always
    masked, may stand before them (then `merged` is False)."""
    if not body:
        return ()
    before = "" if merged else " - 1"
    if not any(is_mask(s) for s in body):
        return (Segment(name="blocks", trips=f"n_blocks{before}", body=body),)
    plain = tuple(s for s in body if not is_mask(s))
    window = "window" in schedule.features
    counted = schedule.causal or window or schedule.kernel == "attention_backward"
    count = "n_masked" if counted or schedule.over == "block_list" else "1"
    whole = "n_whole" if window else f"n_blocks - {count}"
    loops = [
        Segment(name="masked", trips=f"{count}{before}", body=body),
        Segment(
            name="unmasked",
            start=f"{count}{before}" if _counts(plain) and (merged or count != "1") else "",
            trips=whole,
            body=plain,
        ),
    ]
    if window:
        done = f"{count} + {whole}"
        loops.append(
            Segment(
                name="masked again",
                start=f"{done}{before}",
                trips=f"n_blocks - {count} - {whole}",
                body=body,
            )
        )
    return tuple(loops if merged or count != "1" else loops[1:])


def _counts(body: tuple[Stmt, ...]) -> bool:
    """Whether a loop's body asks for the number of its block."""
    return any(isinstance(s, Call) and s.piece for s in body)


def is_mask(s: Stmt) -> bool:
    """A masking call: absent where every key is visible."""
    return isinstance(s, Call) and s.piece == "mask"
