"""How long a schedule's kernel takes: the pace of its block loop, times blocks, tiles and waves.

    pace   of the loop: the graph played with its units as servers (`play`); bounded from below by
           the slowest cycle (latencies along the graph) and by the busiest unit
    tile   what is done once and cannot hide behind the loop, and a pace for each block
    call   the tiles over the SMs, in the tile scheduler's order

Everything is modelled: latencies are estimates, used to rank variants and never to prove anything.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fa4gen.ir.program import Umma, Wgmma

from .counts import Counts
from .operations import Demands, role_cost
from .pipeline import Event, Pipeline
from .play import Link, Played, play
from .rates import LANES, SUBPARTITIONS, Device, rates_of
from .tile import tile_load
from .timed import Arc, Cycle, slowest_cycle
from .waves import OVERLAPPED, Problem, blocks_of, makespan, order

LAUNCH_CLOCKS = 1500.0  # of a CTA: its barriers, descriptors and first instructions. assumed
LAUNCH_SECONDS = 3e-6  # of a kernel, on the device. assumed
STORE_INSTRUCTIONS = 2.0  # of the epilogue, for each value of O and thread: divide, round and store


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The block loop in clocks of a CTA: how it is played, and its two bounds."""

    played: Played
    cycle: Cycle
    loads: Mapping[str, float]  # of each unit, for one block

    @property
    def pace(self) -> float:
        """Clocks of one block."""
        return max(self.played.pace, self.cycle.period, *self.loads.values())

    @property
    def bound(self) -> str:
        """The busiest unit; or 'latency', if the loop's slowest cycle is slower."""
        unit = max(self.loads, key=lambda u: self.loads[u])
        return unit if self.loads[unit] >= self.cycle.period else "latency"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Modelled time of one call, and where it comes from."""

    seconds: float
    loop: Loop
    once: float  # clocks of a tile that do not grow with its blocks
    tiles: int


def loop_of(pipeline: Pipeline, counts: Counts | None) -> Loop:
    """The block loop. Without `counts`, instructions are estimated from shapes.

    Raises Fa4genError FA0215 for a target without rates.
    """
    demands = _demands(pipeline, counts)
    events = {e.key: e for x in pipeline.edges for e in (x.source, x.target)}
    work = {k: demands.of(e) for k, e in events.items()}
    latency = {k: _latency(e, demands) for k, e in events.items()}
    signal = demands.rates.signal_latency
    links = [
        Link(
            source=x.source.key,
            target=x.target.key,
            distance=x.distance,
            delay=latency[x.source.key] + signal * x.barrier,
        )
        for x in pipeline.edges
    ]
    alone = {k: sum(least for least, _ in w) for k, w in work.items()}
    arcs = [
        Arc(
            source=x.source,
            target=x.target,
            distance=x.distance,
            delay=x.delay + alone[x.source],
            label=_label(events[x.source]),
        )
        for x in links
    ]
    return Loop(
        played=play(links, work),
        cycle=slowest_cycle(arcs),
        loads={**tile_load(pipeline.schedule, demands.rates).all, **_issued(pipeline, demands)},
    )


def predict(
    pipeline: Pipeline, loop: Loop, counts: Counts | None, problem: Problem, device: Device
) -> Prediction:
    """The modelled time of one call on a whole device."""
    schedule = pipeline.schedule
    once = _once(pipeline, loop)
    rows, keys = schedule.buffer_of("s").tile
    rows *= schedule.index.count
    extra = _mask_clocks(pipeline, counts)
    clocks = []
    for m in order(problem, rows, schedule.scheduler):
        n, masked = blocks_of(problem, rows, keys, m)
        clocks.append(once + n * loop.pace + masked * extra)
    total = makespan(clocks, device.sms, schedule.scheduler)
    seconds = total / device.clock_hz + LAUNCH_SECONDS
    return Prediction(seconds=seconds, loop=loop, once=once, tiles=len(clocks))


def _label(e: Event) -> str:
    """`consumer[0].softmax`, or nothing for what is not an operation."""
    operation = getattr(e.stmt, "operation", "")
    return f"{e.role}[{e.instance}].{operation}" if operation else ""


def _demands(pipeline: Pipeline, counts: Counts | None) -> Demands:
    schedule = pipeline.schedule
    costs = {r.name: role_cost(schedule, r, counts) for r in pipeline.program.roles}
    return Demands(schedule=schedule, rates=rates_of(schedule.target), roles=costs)


def _latency(e: Event, demands: Demands) -> float:
    """Beyond an event's work, until others see it: a matrix result has to come out of the pipe."""
    matrix = isinstance(e.stmt, (Wgmma, Umma)) and e.part == "end"
    return demands.rates.matrix_latency if matrix else 0.0


def _issued(pipeline: Pipeline, demands: Demands) -> dict[str, float]:
    """Clocks of issue slots and of the arithmetic units, over all warps that run the loop."""
    r, found = demands.rates, dict.fromkeys(("issue slots", "MUFU", "FMA", "ALU"), 0.0)
    rates = {"MUFU": ("mufu", r.exp2), "FMA": ("fma", r.fma), "ALU": ("alu", r.alu)}
    for role in pipeline.program.roles:
        cost, warps = demands.roles[role.name], role.active * role.instances
        found["issue slots"] += cost.instructions * warps / SUBPARTITIONS
        for name, (unit, rate) in rates.items():
            found[name] += cost.units.get(unit, 0) * warps * LANES / rate
    return found


def _once(pipeline: Pipeline, loop: Loop) -> float:
    """Clocks of a tile beside its blocks: filling and emptying the pipeline, the epilogue, and,
    where tiles do not overlap, the start of a CTA and its first loads."""
    schedule, r = pipeline.schedule, rates_of(pipeline.schedule.target)
    rows, width = schedule.buffer_of("o").tile
    store = STORE_INSTRUCTIONS * rows * width / 128 + r.tma_latency
    if schedule.scheduler in OVERLAPPED and _own_output(pipeline):
        first = r.tma_latency  # hidden behind the tile before
        return max(loop.played.fill - first, 0.0) + store
    return loop.played.fill + store + LAUNCH_CLOCKS


def _own_output(pipeline: Pipeline) -> bool:
    """Whether O leaves from a place of its own, so that the next tile's Q may come in."""
    return all(b.overlays is None for b in pipeline.schedule.buffers if b.name == "o_out")


def _mask_clocks(pipeline: Pipeline, counts: Counts | None) -> float:
    """What a masked block costs more: its instructions, a warp of each instance on a scheduler."""
    if not counts:
        return 0.0
    more = 0.0
    for role in pipeline.program.roles:
        loop = counts.loop(role.name)
        if loop and role.name in counts.masked:
            longer = counts.masked[role.name] - loop.instructions
            more += longer * role.active * role.instances / SUBPARTITIONS
    return more
