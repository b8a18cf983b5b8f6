"""Storage as the hazard checks see it: regions that no two buffers share in part, and who touches
which.

A buffer of shared memory or registers is one region (with all that overlays it); tensor memory is
cut at every edge of a buffer or part, so that buffers whose columns overlap share exactly the
overlap. Where a buffer with instances and one without share storage, the regions have instances,
and what has none touches those of all.
"""

from dataclasses import dataclass
from itertools import pairwise

from fa4gen.ir.ops import KINDS, Unit, rank_of
from fa4gen.ir.program import Access, Region, Relative
from fa4gen.ir.schedule import Buffer, Operation, Schedule, Space

from .sections import Occurrence

PARTS = 16  # more than any buffer has; keeps the order of parts inside an operation's rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Regions of the kernel, and the pieces of each buffer (and part) in them."""

    regions: tuple[Region, ...]
    pieces: dict[tuple[str, int | None], tuple[str, ...]]  # (buffer, part) -> regions
    tile_level: frozenset[str]  # buffers whose version is the tile
    shared: frozenset[str]  # buffers without instances that touch those of others


def storage(
    schedule: Schedule,
    stages: dict[str, int],
    columns: dict[str, tuple[int, ...]],
    widths: dict[str, int],
) -> Storage:
    """`columns`: first tensor memory column of each instance; `widths`: columns of each tile."""
    regions: dict[str, Region] = {}
    pieces: dict[tuple[str, int | None], tuple[str, ...]] = {}
    instances = schedule.index.count
    for buffer in schedule.buffers:
        if buffer.space is Space.TMEM:
            continue
        home = _home(schedule, buffer)
        regions[home.name] = Region(
            name=home.name,
            space=home.space.value,
            stages=stages[home.name],
            instances=instances if _has_instances(schedule, home) else 1,
            what=home.name,
        )
        for part in _parts(buffer):
            pieces[buffer.name, part] = (home.name,)
    tmem = [b for b in schedule.buffers if b.space is Space.TMEM]
    spans = {
        (b.name, part): (columns[of.name][0] + low, columns[of.name][0] + high)
        for b in tmem
        for of in (_place(schedule, b),)
        for part, low, high in _extents(b, widths[of.name])
    }
    cuts = sorted({edge for span in spans.values() for edge in span})
    for low, high in pairwise(cuts):
        inside = [k for k, (a, b) in spans.items() if a <= low and high <= b]
        if not inside:
            continue
        name = f"tmem_{low}_{high}"
        owners = sorted({k[0] for k in inside})
        regions[name] = Region(
            name=name,
            space="tmem",
            instances=instances,
            what=f"columns {low}-{high - 1} ({' over '.join(owners)})",
        )
        for key in inside:
            pieces[key] = (*pieces.get(key, ()), name)
    return Storage(
        regions=tuple(regions.values()),
        pieces=pieces,
        tile_level=frozenset(_tile_level(schedule)),
        shared=frozenset(
            b.name
            for b in schedule.buffers
            if not b.per and _has_instances(schedule, _home(schedule, b))
        ),
    )


def accesses(schedule: Schedule, storage: Storage, o: Occurrence) -> tuple[Access, ...]:
    """What an operation touches, with versions and ranks; a first rescaling touches nothing."""
    op = o.operation
    computed = _computed(schedule, op)
    rank = rank_of(op.kind, computed=computed, afresh=bool(op.writes)) * PARTS + (o.part or 0)
    out: list[Access] = []
    for items, write in ((op.reads, False), (op.writes, True), (op.updates, True)):
        for item in items:
            try:
                buffer = schedule.buffer_of(item)
            except KeyError:
                continue  # the LSE: global memory
            out += _touch(schedule, storage, buffer, item, o, write=write, rank=rank)
    return tuple(dict.fromkeys(out))


def _computed(schedule: Schedule, operation: Operation) -> bool:
    """Whether a product takes an operand that an operation of ours has made."""
    loaded = {
        i for o in schedule.operations if KINDS[o.kind].unit is Unit.TMA_LOAD for i in o.writes
    }
    return not {operation.a, operation.b} <= loaded


def _touch(
    schedule: Schedule,
    storage: Storage,
    buffer: Buffer,
    item: str,
    o: Occurrence,
    *,
    write: bool,
    rank: int,
) -> list[Access]:
    part = o.part if len(buffer.parts) > 1 else None
    tile = buffer.name in storage.tile_level
    items = buffer.items
    who: list[int | Relative | None] = [o.instance if buffer.per else None]
    options = o.operation.options
    summed = not write and bool(options.get("sums_over") or options.get("spans"))
    everyone = buffer.per and (o.instance is None or summed)  # one load (product) for all
    if everyone or buffer.name in storage.shared:
        who = list(range(schedule.index.count))
    return [
        Access(
            region=region,
            instance=instance,
            write=write,
            rank=rank,
            a=0 if tile else len(items),
            b=items.index(item) if len(items) > 1 else 0,
        )
        for region in storage.pieces[buffer.name, part]
        for instance in who
    ]


def _home(schedule: Schedule, buffer: Buffer) -> Buffer:
    """The buffer whose storage this one uses."""
    while buffer.overlays:
        buffer = schedule.buffer_of(buffer.overlays)
    return buffer


def _has_instances(schedule: Schedule, home: Buffer) -> bool:
    """Whether anybody who uses a buffer's storage has instances."""
    return home.per or any(b.per and b.overlays == home.name for b in schedule.buffers)


def _place(schedule: Schedule, buffer: Buffer) -> Buffer:
    """The buffer whose columns one takes of each instance: without instances, all of them."""
    home = _home(schedule, buffer)
    return home if home.per and not buffer.per else buffer


def _parts(buffer: Buffer) -> tuple[int | None, ...]:
    return (None, *range(len(buffer.parts))) if len(buffer.parts) > 1 else (None,)


def _extents(buffer: Buffer, width: int) -> list[tuple[int | None, int, int]]:
    """(part, first column, end) relative to the tile; `None` is the whole."""
    out: list[tuple[int | None, int, int]] = [(None, 0, width)]
    total, low = sum(buffer.parts), 0
    for n, part in enumerate(buffer.parts if len(buffer.parts) > 1 else ()):
        high = low + part * width // total
        out.append((n, low, high))
        low = high
    return out


def _tile_level(schedule: Schedule) -> set[str]:
    """Buffers that no operation of the block loop writes."""
    block = {
        item
        for steps in schedule.steps
        for step in steps.block
        for item in (
            *schedule.operation(step.operation).writes,
            *schedule.operation(step.operation).updates,
        )
    }
    return {b.name for b in schedule.buffers if not block & set(b.items)}


def is_mma(o: Occurrence) -> bool:
    """Whether the operation is a matrix product."""
    return KINDS[o.operation.kind].product
