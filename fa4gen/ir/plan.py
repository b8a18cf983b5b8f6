"""What the compiler decided before any statement exists: where everything lies, and how often."""

from collections.abc import Mapping
from dataclasses import dataclass

from fa4gen.ir.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class SmemPlacement:
    """A buffer in shared memory: bytes of one tile (of one stage and instance), and of all."""

    buffer: str
    tile_bytes: int
    total_bytes: int
    alignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Placements of one schedule on one target.

    `first_warp`: of each role; `stages`: ring depth of each buffer; `columns`/`widths`: first
    tensor memory column of each instance, and columns of one tile; `launch_registers`: what each
    thread starts with, before setmaxnreg.
    """

    schedule: Schedule
    first_warp: Mapping[str, int]
    threads: int
    launch_registers: int
    stages: Mapping[str, int]
    columns: Mapping[str, tuple[int, ...]]
    widths: Mapping[str, int]
    smem: tuple[SmemPlacement, ...]
    smem_bytes: int
    tmem_columns: int
