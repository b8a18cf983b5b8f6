"""The choice of tile scheduler: grid and loop."""

from fa4gen.ir.head import TileScheduler
from fa4gen.ir.schedule import Schedule


def tile_scheduler(schedule: Schedule, rows: int) -> TileScheduler:
    """`rows`: rows of Q in a CTA's tile."""
    blocks = f"(q.shape[1] + {rows - 1}) // {rows}"
    match schedule.scheduler:
        case "single":
            grid = f"({blocks}, q.shape[2], q.shape[0])"
        case "lpt":
            grid = f"(section, {blocks}, q.shape[0] * (q.shape[2] // section))"
        case _:
            grid = f"(cutlass.min(({blocks}) * q.shape[2] * q.shape[0], num_sms), 1, 1)"
    return TileScheduler(kind=schedule.scheduler, rows=rows, grid=grid)
