"""What each event of the block loop asks of the units: instructions of a warp, clocks of a unit.

Instructions are counted in the compiled loop of the role where there is one; its operations share
them in proportion to what their shapes ask for (`phases`), unit by unit. What no operation explains
(waits, addresses, arrivals) is the role's overhead. Before anything is compiled the estimate stands
alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fa4gen.ir.geometry import padded
from fa4gen.ir.program import Call, RoleProgram, TmaLoad, TmaStore, Umma, Wgmma
from fa4gen.ir.schedule import Operation, Schedule

from .counts import Counts
from .pipeline import Event
from .play import Piece, Work, pieces
from .rates import LANES, SUBPARTITIONS, Rates
from .tile import Product, fma_share, products

ROW_THREADS = 128  # threads of a warpgroup, over which a tile's rows are spread
OVERHEAD = 110.0  # instructions of a loop beside its operations, before it is compiled: our kernels
PACKED = 2  # results of one packed instruction on Blackwell (FFMA2, FMUL2, FADD2)
PIECE = 32.0  # clocks of one piece of a role's work: about what a scheduler gives one warp in a row
STEP = 16  # depth of one matrix instruction
Instructions = Mapping[str, float]  # of one warp, by unit: mufu, fma, alu, shared


def phases(schedule: Schedule, op: Operation) -> tuple[Instructions, ...]:
    """Instructions of one warp for one execution, in the order in which they depend on each other;
    from shapes alone: one for each result and thread."""
    rows, keys = schedule.buffer_of("s").tile
    scores = rows * keys / ROW_THREADS
    outputs = rows * padded(schedule.head_dim_v) / ROW_THREADS
    share, degree = fma_share(schedule)
    match op.kind:
        case "online_softmax":  # maximum across lanes; scale, exponential and sum
            return ({"alu": scores + 4, "shared": 4}, {"fma": 2 * scores + 8, "mufu": scores + 2})
        case "convert":
            return ({"alu": scores / 2},)
        case "scale_rows" if op.options.get("skip_when_unchanged"):
            return ({"fma": 0.1 * outputs / PACKED, "alu": 6},)  # FA4: a tenth of them is left
        case "scale_rows":
            return ({"fma": outputs},)
        case "row_max":  # three operands at a time
            return ({"alu": scores / 2},)
        case "rescale_factor":
            return ({"fma": 3, "mufu": 1, "alu": 3},)
        case "exp2_convert":
            polynomial = scores * share * (degree + 3) / PACKED
            fma = scores / PACKED + polynomial
            alu = scores / 2 + scores * share
            return ({"mufu": scores * (1 - share), "fma": fma, "alu": alu},)
        case "row_sum":
            return ({"fma": scores / PACKED},)
        case "read_scale":
            return ({"shared": 1},)
    return ()


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
            case TmaLoad() if e.part == "end":
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
        crossing = part.get("shared", 0.0) * r.shuffle_latency
        found = pieces({"issue slots": issued, **units}, max(issued, *units.values(), 0.0), PIECE)
        return [*found, (crossing, {})] if crossing else found

    def _matrix(self, p: Product, steps: int, drain: float) -> Work:
        """`steps` instructions of depth 16, in a row; `drain`: each is waited for by itself."""
        share = steps * STEP / p.k
        tensor = p.flop / self.rates.tensor_flop * share
        shared = p.operand_bytes / self.rates.smem_bytes * share
        return [(tensor + drain * steps, {"tensor core": tensor, "shared memory": shared})]
