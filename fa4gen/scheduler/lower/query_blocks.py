"""Which blocks of queries a tile of keys visits, in ascending order, and in which of them some
query does not see some key.

All roles count the same blocks, from one expression. A window leaves out those before and behind
it. Lists in memory name them for each head: first those that are masked, then the others.
"""

from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule

from .blocks import QUERY_LIST, WINDOW
from .sections import Occurrence

COUNTS = "q_num_blocks, full_q_num_blocks, batch"
OF_A_HEAD = ("alibi", "score_mod", "mask_mod")  # features that ask for the head of a query


def visited(schedule: Schedule, keys: int, rows: int) -> tuple[Define, ...]:
    """`first_block` and `n_blocks` of a tile of `keys` keys, for blocks of `rows` queries."""
    if schedule.over == QUERY_LIST:
        return ()
    tile = f"seqlen_q, seqlen_k, n_tile * {keys}"
    if "window" in schedule.features:
        text = f"query_blocks_window({tile}, {keys}, {rows}, {', '.join(WINDOW)})"
        return (Define(name="first_block, n_blocks", text=text),)
    first = f"first_query_block({tile}, {rows})" if schedule.causal else "Int32(0)"
    return (
        Define(name="first_block", text=first),
        Define(name="n_blocks", text=f"(seqlen_q + {rows - 1}) // {rows} - first_block"),
    )


def visited_by_heads(schedule: Schedule, keys: int, rows: int) -> tuple[Define, ...]:
    """The same, with `n_blocks` of all heads that share the keys together."""
    if schedule.over == QUERY_LIST:
        text = f"listed_of_heads({COUNTS}, head_kv, ratio, n_tile)"
        return (Define(name="n_blocks", text=text),)
    *before, blocks = visited(schedule, keys, rows)
    if before:
        return (*before, Define(name="n_blocks", text=f"({blocks.text}) * ratio"))
    return (blocks, Define(name="n_blocks", text="n_blocks * ratio"))


def of_head(schedule: Schedule, *, loads: bool, masks: bool) -> tuple[Define, ...]:
    """What is known of each head that shares the keys: its number (for those that touch its
    tensors: `loads`), the number of its blocks, and what scores need of it (`masks`)."""
    listed = schedule.over == QUERY_LIST
    asked = any(f in schedule.features for f in OF_A_HEAD)
    found = []
    if loads or listed or (masks and asked):
        found.append(Define(name="head", text="head_kv * ratio + member"))
    if listed:
        text = f"listed_blocks({COUNTS}, head, n_tile)"
        found.append(Define(name="n_blocks, n_partial, n_listed", text=text))
        if masks:
            found.append(Define(name="n_masked", text="n_partial"))
    return tuple(found)


def query_block(schedule: Schedule, o: Occurrence) -> str:
    """Number of an operation's block of queries, which are visited from the first to the last."""
    if schedule.over == QUERY_LIST:
        return "block_before" if o.prev else "block"
    match o.section:
        case "first":
            return "first_block"
        case "last":
            return "(first_block + n_blocks - 1)"
        case _:
            return f"(first_block{'' if o.uniform or o.prev else ' + 1'} + i)"


def masked(schedule: Schedule, keys: int, rows: int) -> tuple[Define, ...]:
    """How many of them, the first ones, are masked; with a window, how many behind are not."""
    if schedule.over == QUERY_LIST:
        return ()
    key = f"n_tile * {keys}"
    tile = f"seqlen_q, seqlen_k, {key}, {keys}, first_block, n_blocks, {rows}"
    if "window" in schedule.features:
        text = f"masked_query_blocks_window({tile}, {', '.join(WINDOW)})"
        return (Define(name="n_masked, n_whole", text=text),)
    if schedule.causal:
        return (Define(name="n_masked", text=f"masked_query_blocks({tile})"),)
    tail = f"cutlass.select_({key} + {keys} > seqlen_k, n_blocks, Int32(0))"
    return (Define(name="n_masked", text=tail),)
