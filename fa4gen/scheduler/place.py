"""Places everything: warps in the order of roles, ring depths, shared and tensor memory."""

from collections.abc import Mapping
from types import MappingProxyType

from fa4gen.dtypes import resolve
from fa4gen.ir.boxes import boxes
from fa4gen.ir.geometry import padded
from fa4gen.ir.plan import Plan, SmemPlacement
from fa4gen.ir.schedule import Buffer, Schedule, Space
from fa4gen.target import Target, find_target

from .check_roles import THREADS, launch_registers

HEAD_BYTES = 1024  # mbarriers and the tensor memory address, before the first aligned tile
VECTOR_ALIGNMENT = 128  # of rows of 32-bit values, which no swizzle moves
MAX_STAGES = 32  # of a ring left open; more hide nothing (also FA4's bound)


def place(schedule: Schedule) -> Plan:
    """The plan of a schedule whose checks have passed."""
    target = find_target(schedule.target)
    first_warp: dict[str, int] = {}
    warps = 0
    for role in schedule.roles:
        first_warp[role.name] = warps
        warps += role.warps * (schedule.index.count if role.per else 1)
    group = target.warpgroup_warps
    stages = solve_stages(schedule, target)
    smem = smem_placements(schedule, target, stages)
    columns, widths = tmem_columns(schedule)
    return Plan(
        schedule=schedule,
        first_warp=first_warp,
        threads=-(-warps // group) * group * THREADS,
        launch_registers=launch_registers(target, warps),
        stages=stages,
        columns=columns,
        widths=widths,
        smem=smem,
        smem_bytes=smem_bytes(smem),
        tmem_columns=tmem_allocation(target, tmem_end(columns, widths)),
    )


# shared memory -----------------------------------------------------------------------------------


def smem_placements(
    schedule: Schedule, target: Target, stages: Mapping[str, int]
) -> tuple[SmemPlacement, ...]:
    """Buffers with shared memory of their own, swizzled tiles last (they are the aligned ones).

    `stages`: ring depths; a ring left out counts once. A buffer is as large as what overlays it.
    """
    used = {i for o in schedule.operations for i in (*o.reads, *o.writes, *o.updates)}
    own = [b for b in schedule.buffers if b.space is Space.SMEM and not b.overlays]
    found = []
    for buffer in (b for b in own if used & set(b.items)):
        over = [buffer, *(b for b in schedule.buffers if b.overlays == buffer.name)]
        each = schedule.index.count if buffer.per else 1
        size = max(
            -(-tile_bytes(b, schedule) * (schedule.index.count if b.per else 1) // each)
            for b in over
        )
        copies = stages.get(buffer.name, 1) * each
        added = any(
            (o.kind == "tma_reduce" and buffer.name in o.reads)
            or (o.kind == "reduce_tile" and buffer.name in o.writes)
            for o in schedule.operations
        )
        swizzled = added or resolve(buffer.dtype, schedule.dtype).bits == 16
        found.append(
            SmemPlacement(
                buffer=buffer.name,
                tile_bytes=size,
                total_bytes=size * copies,
                alignment=target.smem_alignment if swizzled else VECTOR_ALIGNMENT,
            )
        )
    return tuple(sorted(found, key=lambda p: p.alignment))


def smem_bytes(placements: tuple[SmemPlacement, ...]) -> int:
    """All of a CTA: what lies before the first aligned tile is filled up to the alignment."""
    vectors = sum(p.total_bytes for p in placements if p.alignment == VECTOR_ALIGNMENT)
    tiles = [p for p in placements if p.alignment != VECTOR_ALIGNMENT]
    start = HEAD_BYTES + vectors
    if tiles:
        start = -(-start // tiles[0].alignment) * tiles[0].alignment
    return start + sum(p.total_bytes for p in tiles)


def tile_bytes(buffer: Buffer, schedule: Schedule) -> int:
    """Bytes of one tile; 16-bit tiles are padded to whole MMA steps."""
    rows, cols = (buffer.tile[0], buffer.tile[1]) if len(buffer.tile) > 1 else (1, buffer.tile[0])
    size = resolve(buffer.dtype, schedule.dtype).bits // 8
    if size != 2:
        return rows * cols * size
    return boxes(schedule, buffer).tile_bytes // (schedule.index.count if buffer.per else 1)


def solve_stages(schedule: Schedule, target: Target) -> Mapping[str, int]:
    """Depth of every buffer; rings left open share the largest that fits (at least 1)."""
    fixed = {b.name: b.stages for b in schedule.buffers if b.stages is not None}
    rings = [b.name for b in schedule.buffers if b.stages is None]
    depth = 1
    while rings and depth < MAX_STAGES:
        more = fixed | dict.fromkeys(rings, depth + 1)
        if smem_bytes(smem_placements(schedule, target, more)) > target.smem_bytes:
            break
        depth += 1
    return MappingProxyType(fixed | dict.fromkeys(rings, depth))


# tensor memory -----------------------------------------------------------------------------------


def tmem_columns(schedule: Schedule) -> tuple[Mapping[str, tuple[int, ...]], Mapping[str, int]]:
    """First columns of each instance, and columns of one tile.

    As declared; else at the end of what a buffer overlays; else after everything placed so far.
    """
    columns: dict[str, tuple[int, ...]] = {}
    widths: dict[str, int] = {}
    for buffer in (b for b in schedule.buffers if b.space is Space.TMEM):
        width = padded(buffer.tile[-1]) * resolve(buffer.dtype, schedule.dtype).bits // 32
        count = schedule.index.count if buffer.per else 1
        if buffer.columns is not None:
            first = buffer.columns[:count]
        elif buffer.overlays in columns:
            under = columns[buffer.overlays]
            whole = under[-1] + widths[buffer.overlays] - under[0] if count == 1 else 0
            shift = (whole or widths[buffer.overlays]) - width
            first = tuple(c + shift for c in under[:count])
        else:
            top = tmem_end(columns, widths)
            first = tuple(top + n * width for n in range(count))
        columns[buffer.name], widths[buffer.name] = first, width
    return MappingProxyType(columns), MappingProxyType(widths)


def tmem_end(columns: Mapping[str, tuple[int, ...]], widths: Mapping[str, int]) -> int:
    """The column after the last one used."""
    return max((c + widths[name] for name, first in columns.items() for c in first), default=0)


def tmem_allocation(target: Target, end: int) -> int:
    """Columns to allocate: a power of two; none if none are used."""
    size = target.tmem_min_columns if end else 0
    while size < end:
        size *= 2
    return size
