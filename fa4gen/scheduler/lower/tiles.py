"""The choice of tile scheduler: what the host computes for it, the grid, the kernel's parameters.

single             one CTA a tile, query blocks first
lpt                one CTA a tile, longest tiles first inside sections of heads that share L2
static_persistent  one CTA an SM, which takes every n-th tile in the order of `single`
lpt_persistent     one CTA an SM, which takes every n-th tile in the order of `lpt`
clc                one CTA an SM, which asks the hardware for tiles of `single` not yet begun
lpt_clc            the same for those of `lpt`
split              one CTA a split of a tile (with `split_kv`, whatever the schedule names)
spt                of a backward: as `lpt`, with the tiles of the last keys first
"""

from dataclasses import replace

from fa4gen.diag import error
from fa4gen.ir.head import TileScheduler
from fa4gen.ir.inputs import Input
from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule
from fa4gen.scheduler.tile_ring import DYNAMIC

from .lengths import most_keys
from .queries import DIVISOR, Queries

PLACE = ("m_block", "head", "batch", "more")  # what roles take from the hardware's answer


def tile_scheduler(schedule: Schedule, at: Queries) -> TileScheduler:
    """`at`: the queries of a CTA's tile."""
    rows, heads = at.rows * at.instances, at.heads
    row_bytes = 2 * (schedule.head_dim + schedule.head_dim_v)
    blocks = ("m_blocks", f"(q.shape[1] + {rows - 1}) // {rows}")
    if at.packed:
        blocks = ("m_blocks", f"(q.shape[1] + {at.of_tile} - 1) // ({at.of_tile})")
    if at.varlen:  # slots of `tile_of_sequence`; the tensors' batch is 1
        blocks = ("m_blocks", f"q.shape[1] // ({at.of_tile}) + cu_seqlens_q.shape[0] - 1")
    section = (
        "section",
        f"l2_section({most_keys(schedule)}, k.shape[2], {at.ratio}, {row_bytes})",
    )
    sections = ("sections", f"{heads} // section")
    tiles = ("tiles", f"m_blocks * {heads} * q.shape[0]")
    persistent = "(cutlass.min(tiles, num_sms), 1, 1)"
    scheduler = schedule.scheduler
    if at.varlen and scheduler in (
        "lpt",
        "lpt_clc",
    ):  # slots of many sequences may be more than grid.y takes
        scheduler = {"lpt": "single", "lpt_clc": "clc"}[scheduler]
    match scheduler:
        case "single" | "clc" as kind:
            return _make(kind, rows, (blocks,), (), f"(m_blocks, {heads}, q.shape[0])")
        case "split":
            count = ("splits", "o_partial.shape[0] // q.shape[0]")
            three = (blocks, ("batches", "q.shape[0]"), count)
            grid = f"(m_blocks, {heads}, batches * splits)"
            return _make("split", rows, three, ("batches", "splits"), grid, ("splits",))
        case "lpt" | "lpt_clc" as kind:
            grid = "(section, m_blocks, q.shape[0] * sections)"
            three = (blocks, section, sections)
            return _make(kind, rows, three, ("m_blocks", "section"), grid, ("sections",))
        case "lpt_persistent" | "lpt_dynamic" as kind:
            host = (blocks, section, sections, tiles)
            numbers = ("tiles", "m_blocks", "section")
            divisors = ("section", "m_blocks", "sections")
            return _make(kind, rows, host, numbers, persistent, divisors)
        case kind:
            plain = (blocks, ("heads", heads), tiles)
            return _make(kind, rows, plain, ("tiles",), persistent, ("m_blocks", "heads"))


def key_tile_scheduler(schedule: Schedule, keys: int) -> TileScheduler:
    """Of a backward: tiles are `keys` keys of one head of K and V; the first ones have most blocks
    if causal."""
    blocks = ("key_tiles", f"(k.shape[1] + {keys - 1}) // {keys}")
    names = ("n_tile", "head_kv", "batch")
    match schedule.scheduler:
        case "single":
            grid = "(key_tiles, k.shape[2], k.shape[0])"
            made = _make("single", keys, (blocks,), (), grid)
        case "lpt" | "spt" as kind:
            # Q, dO, and the sums of dQ
            row_bytes = 2 * (schedule.head_dim + schedule.head_dim_v) + 4 * schedule.head_dim
            rows = "q.shape[1] * (q.shape[2] // k.shape[2])"
            section = ("section", f"l2_section({rows}, k.shape[2], 1, {row_bytes})")
            host = (blocks, section, ("sections", "k.shape[2] // section"))
            grid = "(section, key_tiles, k.shape[0] * sections)"
            numbers = ("section",) if kind == "lpt" else ("key_tiles", "section")
            made = _make(f"keys_{kind}", keys, host, numbers, grid, ("sections",))
        case other:
            raise error(
                "FA0603",
                f"the backward has no tile scheduler `{other}`",
                span=schedule.level_spans.get("tile"),
                fix="write `scheduler: single`, `lpt` or `spt`",
            )
    return replace(made, names=names, unit="keys")


def _make(
    kind: str,
    rows: int,
    launch: tuple[tuple[str, str], ...],
    numbers: tuple[str, ...],
    grid: str,
    divisors: tuple[str, ...] = (),
) -> TileScheduler:
    """A divisor goes to the kernel as the multiplier and shifts that the host works out for it."""
    by = tuple((f"by_{d}", f"{DIVISOR}({d})") for d in divisors)
    return TileScheduler(
        kind=kind,
        rows=rows,
        launch=tuple(Define(name=a, text=b) for a, b in (*launch, *by)),
        parameters=(*((n, "Int32") for n in numbers), *((a, DIVISOR) for a, _ in by)),
        arguments=(*numbers, *(a for a, _ in by)),
        grid=grid,
    )


def claim(schedule: Schedule) -> tuple[Define, ...]:
    """What the role that claims tiles computes at the start of each: the next one, long before its
    use."""
    if schedule.scheduler not in DYNAMIC:
        return ()
    return (Define(name="claimed", text="claim_tile(counter, tiles)"),)


def asked_place(schedule: Schedule, answer: str, *, varlen: bool) -> tuple[str, tuple[str, ...]]:
    """The device function, and its arguments, that makes a tile of the hardware's answer."""
    if schedule.scheduler == "lpt_clc" and not varlen:
        return "read_launch_lpt", (answer, "m_blocks", "section", "by_sections")
    return "read_launch", (answer,)


def counter(schedule: Schedule) -> tuple[Input, ...]:
    """A dynamic scheduler's counter of tiles: a zero, which a launch leaves as it was."""
    if schedule.scheduler not in DYNAMIC:
        return ()
    return (
        Input(name="counter", type="cute.Tensor", example="make_fake_tensor(Int32, (1,), (1,))"),
    )
