"""Keys and values in pages: where the rows of a block lie, and the TMA boxes that bring them.

A box never crosses a page: it has as many rows as divide both a block and the least page, so that
pages of at least a block's rows take one box a block, smaller ones several, which arrive together.
Each lane of the load role's warp looks up the page of one of these in the table, and copies it.
Behind a sequence's end no page is read: K's boxes are asked of page -1, which TMA fills with zeros,
and V's lie behind the descriptor's rows.
"""

from math import gcd

from fa4gen.ir.features import page_rows
from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule

LANE = "cute.arch.lane_idx()"
DIVISOR = "cute.FastDivmodDivisorV2"


def pages(schedule: Schedule) -> bool:
    """Whether keys and values lie in pages."""
    return page_rows(schedule.features) > 0


def rows_of_box(schedule: Schedule, rows: int) -> int:
    """Rows of a TMA box of K or V, whose blocks have `rows`."""
    return gcd(page_rows(schedule.features), rows) if pages(schedule) else rows


def look_up(page: str, row: str, key: str) -> Define:
    """Binds the page of a key, and its row there."""
    text = f"page_of_key(page_table, batch, {key}, seqlen_k, by_page)"
    return Define(name=f"{page}, {row}", text=text)


def host(schedule: Schedule) -> tuple[Define, ...]:
    """What the host function computes first."""
    return (Define(name="by_page", text=f"{DIVISOR}(k.shape[1])"),) if pages(schedule) else ()


def parameters(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    """What the kernel gets of it; the host function has them under the same names."""
    return (("by_page", DIVISOR),) if pages(schedule) else ()
