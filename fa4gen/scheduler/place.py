"""Places everything: warps in the order of roles, ring depths, shared memory, tensor memory columns."""

from collections.abc import Mapping

from fa4gen.diag import error
from fa4gen.ir.plan import Plan, SmemPlacement
from fa4gen.ir.schedule import Buffer, Schedule, Space

SMEM_BYTES = (
    232448  # 227 KiB a CTA may use (CUDA programming guide, compute capability 9.0 and 10.0)
)
HEAD_BYTES = 1024  # mbarriers and the tensor memory address, before the first aligned tile
TILE_ALIGNMENT = (
    1024  # a 128-byte swizzle repeats every 8 rows of 128 bytes (PTX ISA, swizzling modes)
)
REGISTERS = 65536  # 32-bit registers of an SM
TMEM_COLUMNS = 512
BYTES = {"io": 2, "bf16": 2, "fp16": 2, "f32": 4}
SWIZZLE_COLUMNS = 64  # elements of 16 bits in a 128-byte row


def place(schedule: Schedule) -> Plan:
    """The plan of a schedule whose static checks have passed.

    Raises FA0401 if one stage of every ring does not fit in shared memory.
    """
    first_warp: dict[str, int] = {}
    warps = 0
    for role in schedule.roles:
        first_warp[role.name] = warps
        warps += role.warps * (schedule.index.count if role.per else 1)
    threads = -(-warps // 4) * 128
    fixed = {b.name: b.stages for b in schedule.buffers if b.stages is not None}
    stages = dict(fixed) | _solve(schedule, fixed)
    smem = tuple(_placement(b, stages[b.name], schedule) for b in _owners(schedule))
    columns, widths, top = _columns(schedule)
    return Plan(
        schedule=schedule,
        first_warp=first_warp,
        threads=threads,
        launch_registers=REGISTERS // threads // 8 * 8,
        stages=stages,
        columns=columns,
        widths=widths,
        smem=smem,
        smem_bytes=HEAD_BYTES + sum(p.total_bytes for p in smem),
        tmem_columns=_allocation(top),
    )


def tile_bytes(buffer: Buffer) -> int:
    """Bytes of one tile in shared memory; rows of 16-bit tiles are padded to whole swizzle rows."""
    rows, cols = (buffer.tile[0], buffer.tile[1]) if len(buffer.tile) > 1 else (1, buffer.tile[0])
    size = BYTES[buffer.dtype]
    if size == 2:
        cols = -(-cols // SWIZZLE_COLUMNS) * SWIZZLE_COLUMNS
    return rows * cols * size


def _owners(schedule: Schedule) -> list[Buffer]:
    """Buffers with shared memory of their own, 16-bit tiles last (they are the aligned ones)."""
    own = [b for b in schedule.buffers if b.space is Space.SMEM and not b.overlays]
    used = {i for o in schedule.operations for i in (*o.reads, *o.writes, *o.updates)}
    return sorted((b for b in own if used & set(b.items)), key=lambda b: BYTES[b.dtype] == 2)


def _placement(buffer: Buffer, stages: int, schedule: Schedule) -> SmemPlacement:
    over = [
        buffer,
        *(b for b in schedule.buffers if b.overlays == buffer.name and b.space is Space.SMEM),
    ]
    size = max(tile_bytes(b) for b in over)
    instances = schedule.index.count if buffer.per else 1
    alignment = TILE_ALIGNMENT if BYTES[buffer.dtype] == 2 else 128
    return SmemPlacement(
        buffer=buffer.name,
        tile_bytes=size,
        total_bytes=size * stages * instances,
        alignment=alignment,
    )


def _solve(schedule: Schedule, fixed: Mapping[str, int]) -> dict[str, int]:
    """Equal depth for every ring left open: the largest that fits."""
    rings = [b for b in schedule.buffers if b.stages is None]
    if not rings:
        return {}
    taken = HEAD_BYTES + sum(
        _placement(b, fixed[b.name], schedule).total_bytes
        for b in _owners(schedule)
        if b.name in fixed
    )
    each = sum(_placement(b, 1, schedule).total_bytes for b in rings)
    depth = (SMEM_BYTES - taken) // each
    if depth < 1:
        raise error(
            "FA0401",
            f"one stage of {', '.join(f'`{b.name}`' for b in rings)} needs {each} bytes of shared "
            f"memory beside {taken}; a CTA has {SMEM_BYTES}",
            span=rings[0].span,
            fix="take smaller tiles or fewer query tiles",
        )
    return {b.name: depth for b in rings}


def _columns(schedule: Schedule) -> tuple[dict[str, tuple[int, ...]], dict[str, int], int]:
    """Tensor memory columns: as declared, else after everything placed so far."""
    columns: dict[str, tuple[int, ...]] = {}
    widths: dict[str, int] = {}
    top = 0
    for buffer in (b for b in schedule.buffers if b.space is Space.TMEM):
        width = buffer.tile[1] * BYTES[buffer.dtype] // 4
        widths[buffer.name] = width
        count = schedule.index.count if buffer.per else 1
        if buffer.columns is not None:
            columns[buffer.name] = buffer.columns[:count]
        elif buffer.overlays and buffer.overlays in columns:
            home = columns[buffer.overlays]
            shift = widths[buffer.overlays] - width
            columns[buffer.name] = tuple(c + shift for c in home)
        else:
            columns[buffer.name] = tuple(top + n * width for n in range(count))
        top = max(top, *(c + width for c in columns[buffer.name]))
    return columns, widths, top


def _allocation(top: int) -> int:
    """tcgen05.alloc takes a power of two of at least 32 columns."""
    if not top:
        return 0
    size = 32
    while size < top:
        size *= 2
    return size
