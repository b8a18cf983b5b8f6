"""What each event of the block loop asks of the units: instructions of a warp, clocks of a unit.

Instructions are counted in the compiled loop of the role where there is one; its operations share
them in proportion to what their shapes ask for (`phases`), unit by unit. What no operation explains
(waits, addresses, arrivals) is the role's overhead. Before anything is compiled the estimate stands
alone.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fa4gen.ir.program import BulkLoad, Call, RoleProgram, TmaLoad, TmaStore, Umma, Wgmma
from fa4gen.ir.schedule import Operation, Schedule

from .counts import Counts
from .pipeline import Event
from .play import Piece, Work, pieces
from .rates import LANES, SUBPARTITIONS, Rates
from .tile import Product, fma_share, products

OUTPUTS = ("lse",)  # written to global memory, without a buffer
ROW_THREADS = 128  # threads of a warpgroup, over which a tile's rows are spread
OVERHEAD = 110.0  # instructions of a loop beside its operations, before it is compiled: our kernels
PACKED = 2  # results of one packed instruction on Blackwell (FFMA2, FMUL2, FADD2)
PIECE = 32.0  # clocks of one piece of a role's work: about what a scheduler gives one warp in a row
CROSSINGS = 4  # accesses to shared memory that wait for each other; more are in flight together
STEP = 16  # depth of one matrix instruction
Instructions = Mapping[str, float]  # of one warp, by unit: mufu, fma, alu, shared


def phases(schedule: Schedule, op: Operation) -> tuple[Instructions, ...]:
    """Instructions of one warp for one execution, in the order in which they depend on each other;
    from shapes alone: one for each result and thread."""
    rows, keys = schedule.buffer_of("s").tile
    scores = rows * keys / ROW_THREADS
    items = [i for i in (*op.writes, *op.updates) if i not in OUTPUTS]
    results = sum(math.prod(schedule.buffer_of(i).tile) for i in items) / ROW_THREADS
    share, degree = fma_share(schedule)
    fma = scores / PACKED * (1 + share * (degree + 3))
    exponentials = {"mufu": scores * (1 - share), "fma": fma, "alu": scores * (0.5 + share)}
    rescale = {"fma": 0.1 * results / PACKED, "alu": 6.0}  # FA4: a tenth of them is left
    known: dict[str, tuple[Instructions, ...]] = {
        "online_softmax": (  # maximum across lanes; scale, exponential and sum
            {"alu": scores + 4, "shared": 4},
            {"fma": 2 * scores + 8, "mufu": scores + 2},
        ),
        "convert": ({"alu": scores / 2},),
        "scale_rows": (rescale if op.options.get("skip_when_unchanged") else {"fma": results},),
        "row_max": ({"alu": scores / 2},),  # three operands at a time
        "rescale_factor": ({"fma": 3, "mufu": 1, "alu": 3},),
        "exp2_convert": (exponentials,),
        "row_sum": ({"fma": scores / PACKED},),
        "read_scale": ({"shared": 1},),
        "probabilities": ({"fma": scores, "mufu": scores},),
        "score_gradients": ({"fma": 2 * scores},),  # less delta, times P
        "share_tile": ({"shared": results / 8},),  # stmatrix: four 8 x 8 tiles at a time
        "stage_sum": ({"shared": results / 4},),  # 16 bytes of each thread at a time
    }
    return known.get(op.kind, ())


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleCost:
    """One role's loop, for one warp of one instance: instructions by unit, and shares of them."""

    instructions: float
    units: Instructions
    operations: Mapping[str, tuple[Instructions, ...]]  # those that the role computes itself
    overhead: float  # instructions that belong to no operation
    serialised: bool = False


def role_cost(schedule: Schedule, role: RoleProgram, counts: Counts | None) -> RoleCost:
    """What a role executes in one iteration of its loop."""
    names = dict.fromkeys(s.operation for s in role.rest if isinstance(s, Call) and not s.piece)
    guessed = {n: phases(schedule, schedule.operation(n)) for n in names}
    loop = counts.loop(role.name) if counts else None
    total = _total(guessed)
    if loop is None:
        own = sum(total.values())
        return RoleCost(
            instructions=own + OVERHEAD, units=total, operations=guessed, overhead=OVERHEAD
        )
    scale = {u: loop.units.get(u, 0) / n if n else 0.0 for u, n in total.items()}
    shares = {
        name: tuple({u: n * scale[u] for u, n in part.items()} for part in parts)
        for name, parts in guessed.items()
    }
    return RoleCost(
        instructions=loop.instructions,
        units=dict(loop.units),
        operations=shares,
        overhead=max(loop.instructions - sum(_total(shares).values()), 0.0),
        serialised=loop.serialised,
    )


def _total(operations: Mapping[str, tuple[Instructions, ...]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for part in (p for parts in operations.values() for p in parts):
        for unit, n in part.items():
            total[unit] = total.get(unit, 0.0) + n
    return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """What events take of the units, and how long by themselves."""

    schedule: Schedule
    rates: Rates
    roles: Mapping[str, RoleCost]

    @property
    def products(self) -> dict[str, Product]:
        """By operation."""
        return {p.name: p for p in products(self.schedule)}

    def of(self, e: Event) -> Work:
        """The pieces of one event; where the checker splits a role's warps into actors, each asks
        the units for its share."""
        share = 1 / e.actors
        return [(least, {u: c * share for u, c in x.items()}) for least, x in self._whole(e)]

    def _whole(self, e: Event) -> Work:
        work: list[Piece] = []
        cost = self.roles[e.role]
        match e.stmt:
            case Call() if e.part == "step" and not e.stmt.piece:
                for part in cost.operations.get(e.stmt.operation, ()):
                    work += self.instructions({u: n * e.share for u, n in part.items()})
            case Wgmma() if e.part == ("step" if cost.serialised else "end"):
                p = self.products[e.stmt.operation]
                work += self._matrix(p, p.k // STEP, self.rates.matrix_latency * cost.serialised)
            case Umma() if e.part == "end":
                p = self.products[e.stmt.operation]
                work += self._matrix(p, e.stmt.k_end - e.stmt.k_first, 0.0)
            case TmaLoad() | BulkLoad() if e.part == "end":
                clocks = e.stmt.tx_bytes / self.rates.l2_bytes
                work += [(self.rates.tma_latency + clocks, {"L2 cache": clocks})]
            case TmaStore() if e.part == "end":
                work += [(self.rates.tma_latency, {})]
        if e.last and e.part == "step":
            work += pieces({"issue slots": cost.overhead}, cost.overhead, PIECE)
        return work

    def instructions(self, part: Instructions) -> list[Piece]:
        """One warp on each scheduler: no faster than one instruction a clock, nor than any unit."""
        r = self.rates
        rates = {"mufu": r.exp2, "fma": r.fma, "alu": r.alu}
        units = {u: n * LANES / (rates[u] / SUBPARTITIONS) for u, n in part.items() if u in rates}
        issued = sum(part.values())
        crossing = r.shuffle_latency * min(part.get("shared", 0.0), CROSSINGS)
        found = pieces({"issue slots": issued, **units}, max(issued, *units.values(), 0.0), PIECE)
        return [*found, (crossing, {})] if crossing else found

    def _matrix(self, p: Product, steps: int, drain: float) -> Work:
        """`steps` instructions of depth 16, in a row; `drain`: each is waited for by itself."""
        share = steps * STEP / p.k
        tensor = p.flop / self.rates.tensor_flop * share
        shared = p.operand_bytes / self.rates.smem_bytes * share
        return [(tensor + drain * steps, {"tensor core": tensor, "shared memory": shared})]
