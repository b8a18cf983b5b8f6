"""Which boxes a 16-bit tile of a schedule lies in: that of all instances together, one below the
other or side by side, and so that each instance's columns of a product begin with a box."""

from .geometry import Boxes
from .schedule import Buffer, Operation, Schedule


def columns_split(schedule: Schedule, op: Operation) -> bool:
    """Whether each instance computes its own columns of a product of all (else its own rows)."""
    if op.kind != "wgmma":
        return False
    if op.options.get("spans"):
        return True
    result = schedule.buffer_of((op.writes or op.updates)[0])
    a = schedule.buffer_of(op.a or "")
    rows = a.tile[-1] if "a" in op.transposed else a.tile[0]
    return bool(op.options.get("sums_over")) and result.tile[0] == rows


def side_by_side(schedule: Schedule, buffer: Buffer) -> bool:
    """Whether the tiles of all instances stand side by side in shared memory: operands of products
    that span them, and gradients that such products have made."""
    if not buffer.per:
        return False
    spanning = [o for o in schedule.operations if o.kind == "wgmma" and o.options.get("spans")]
    results = {i for o in spanning for i in (*o.writes, *o.updates)}
    taken = {i for o in spanning for i in (o.a, o.b)}
    stored = {
        i
        for o in schedule.operations
        if o.kind == "store_gradient" and set(o.reads) & results
        for i in o.writes
    }
    return bool(set(buffer.items) & (taken | stored))


def boxes(schedule: Schedule, buffer: Buffer) -> Boxes:
    """The boxes of a 16-bit tile of two dimensions, of all instances together.

    A tile over another of the same instances has boxes of the same width: each row lies where that
    row lay.
    """
    rows, columns = buffer.tile if len(buffer.tile) > 1 else (1, buffer.tile[0])
    count = schedule.index.count if buffer.per else 1
    if side_by_side(schedule, buffer):
        like = Boxes(rows=rows, columns=columns).width
        return Boxes(rows=rows, columns=columns * count, like=like)
    share = _share(schedule, buffer)
    if share:
        like = Boxes(rows=rows, columns=share).width
        whole = max(columns, share * schedule.index.count)
        return Boxes(rows=rows * count, columns=whole, like=like)
    home = next((b for b in schedule.buffers if b.name == buffer.overlays), None)
    alike = home is not None and home.per is buffer.per and len(home.tile) == 2
    like = boxes(schedule, home).width if home is not None and alike else 0
    return Boxes(rows=rows * count, columns=columns, like=like)


def _share(schedule: Schedule, buffer: Buffer) -> int:
    """Columns of the tile that one instance takes as the B operand of a product; 0: all."""
    shares = (
        schedule.buffer_of((o.writes or o.updates)[0]).tile[1]
        for o in schedule.operations
        if o.kind == "wgmma" and o.b in buffer.items and "b" not in o.transposed
        if columns_split(schedule, o)
    )
    return min(shares, default=0)
