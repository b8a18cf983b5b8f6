"""Turns across CTAs: with `turns`, key tiles add to a block's dQ one after the other, in a fixed
order, so that its bits are the same each time.

A counter in global memory says for each (batch, head, block of queries) how many have added. A
tile's turn is its rank among those that visit the block. What is looked at here is what is
printed: the order in which CTAs claim tiles, that of the turns, and who visits which block.
"""

from collections.abc import Iterator
from dataclasses import replace

from fa4gen.diag import Diagnostic
from fa4gen.ir.schedule import Operation, Schedule

from .semaphores import Accumulation, check_semaphores

CLAIMS = {"single": "ascending", "lpt": "ascending", "spt": "descending"}  # tiles of one head
TILES = 4  # of keys, in the instances that are looked at; more repeat the same edges
LENGTHS = range(1, 3 * TILES, 2)  # of queries, in halves of a tile of keys


def ordered(schedule: Schedule) -> Operation | None:
    """The operation that adds in turn; None where sums are made in any order."""
    return next((o for o in schedule.operations if o.options.get("turns")), None)


def check(schedule: Schedule) -> Iterator[Diagnostic]:
    """FA0323, FA0324: turns for which some CTA would wait for ever, or that nobody takes."""
    op = ordered(schedule)
    if op is None:
        return
    if "window" in schedule.features or schedule.over != "query_blocks":
        yield Diagnostic(
            code="FA0324",
            title=f"`{op.name}` adds in turn, and the ranks are those of the full and causal masks",
            span=op.span,
            why="a window or a list leaves out tiles that have a rank: it is awaited for ever",
            fix="take `turns` away",
        )
        return
    for queries in LENGTHS:
        found = next(check_semaphores(accumulation(schedule, op, queries)), None)
        if found is not None:
            yield replace(found, span=op.span, fix=_fix(schedule, op) or found.fix)
            return


def accumulation(schedule: Schedule, op: Operation, queries: int) -> Accumulation:
    """Who adds to which block: `TILES` tiles of two keys, so many queries, in blocks of one.

    A causal tile visits the blocks from the first that sees one of its keys on, and at least the
    last one (`first_query_block`): the visitors of a block are all tiles up to some last one.
    """
    keys, shift = 2, 2 * TILES - queries
    first = [0] * TILES
    if schedule.causal:
        first = [min(max(n * keys - shift, 0), queries - 1) for n in range(TILES)]
    claimed = list(range(TILES))
    if CLAIMS[schedule.scheduler] == "descending":
        claimed.reverse()
    visits = [tuple(range(first[n], queries)) for n in claimed]
    rising = op.options["turns"] == "ascending"
    ranks = {
        m: [claimed.index(n) for n in sorted(range(TILES), reverse=not rising) if first[n] <= m]
        for m in range(queries)
    }
    return Accumulation(visits=visits, ranks={m: r for m, r in ranks.items() if r})


def _fix(schedule: Schedule, op: Operation) -> str:
    claims = CLAIMS[schedule.scheduler]
    if claims == op.options["turns"]:
        return ""
    other = next(s for s, order in CLAIMS.items() if order == op.options["turns"])
    return f"write `turns: {claims}`, or `scheduler: {other}` for the tiles"
