"""The KV blocks of a tile, shared out among several CTAs (`split_kv`).

Each split visits neighbouring blocks as if they were all that there is, and writes its output (over
its own row sums) and LSE in float32; a second kernel weighs them by these. A split without a block
of its own visits one behind the last, which is wholly masked. Splits are part of the grid, whatever
tile scheduler the schedule names: with few tiles the order of tiles matters little.
"""

from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule

SPLIT = "split_kv"
FRAME = "split.j2"  # the frame of a file with the second kernel


def split(schedule: Schedule) -> bool:
    """Whether tiles are shared out."""
    return SPLIT in schedule.features


def shared(schedule: Schedule, visited: Define) -> Define:
    """The blocks of a split, of those that a tile visits."""
    if not split(schedule):
        return visited
    whole = f"*{visited.text}" if "first_block" in visited.name else f"0, {visited.text}"
    return Define(name="first_block, n_blocks", text=f"share_of_blocks({whole}, split, splits)")
