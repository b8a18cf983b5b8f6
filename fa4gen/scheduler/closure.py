"""Every word: prefixes of words are explored until no new frontier appears (theorem 4).

A frontier is what the future of a prefix depends on, numbered relative to the prefix: who stands
where, which phases are in progress, and who knows of which live event that it is over. Two prefixes
with equal control, where the one knows no less than the other, have the same future, but for faults
that the other has and the one has not. So a prefix is dropped if an earlier one knows no more.
"""

import sys
from collections import deque
from dataclasses import dataclass
from operator import itemgetter

from .model import System
from .run import HARDWARE, Fault, Place, Rules, Run

Control = tuple[object, ...]
Name = tuple[
    int, ...
]  # kinds of live events and of carriers are numbers, so that names have an order
ARRIVAL, PASSED, WRITE, FENCED, READ, FLYING, PRIVATE = range(7)
CLOCK, UNFENCED, LOADS, STORES, CHAIN, ACCUMULATOR, RELEASED, DONE, PART, SIGNALS = range(10)
LIMIT = 4000  # frontiers; a ring of ten slots keeps some 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the exploration found.

    `faults` are those of the first bad prefix, `word` the block counts of its tiles (`open`: the
    last tile goes on). Without faults, `frontiers` were kept and the longest of them has `letters`
    letters (blocks and ends of tiles): all words of up to `letters` + 1 are then a complete test.
    `self_contained`: after each tile every role can finish it without a later one. `shallow`:
    rings that were proved at a smaller depth (name, depth, depth of the proof).
    """

    faults: tuple[Fault, ...] = ()
    word: tuple[int, ...] = ()
    open: bool = False
    frontiers: int = 0
    letters: int = 0
    self_contained: bool = True
    shallow: tuple[tuple[str, int, int], ...] = ()


def closure(system: System, rules: Rules = HARDWARE, limit: int = LIMIT) -> Verdict:
    """Explores all words, breadth first; ends by itself unless some role runs away from another."""
    return explore(Run(system, rules), limit)


def explore(begin: Run, limit: int = LIMIT) -> Verdict:
    """The same from a run that has read no letter yet."""
    system = begin.layout.system
    kept: dict[Control, list[int]] = {}
    todo: deque[tuple[Run, tuple[int, ...], int]] = deque([(begin, (), 0)])
    frontiers = letters = 0
    # no more blocks than there are tokens lie between two roles that wait for each other
    lag = 2 * sum(bar.stages for bar in system.bars) + 8
    contained = True
    while todo:
        run, word, length = todo.popleft()
        faults = run.faults or ([] if run.opened else run.copy().end().faults)
        if faults:
            return _verdict(faults, run, word, frontiers, length)
        contained = contained and (run.opened or not run.stuck())
        control, known = frontier(run)
        if any(not old & ~known for old in kept.setdefault(control, [])):
            continue
        kept[control].append(known)
        frontiers, letters = frontiers + 1, length
        if frontiers > limit or max(map(len, run.todo)) > lag:
            return _verdict([_runaway(run)], run, word, frontiers, length)
        longer = (*word[:-1], word[-1] + 1) if run.opened else (*word, 1)
        todo.append((run.copy().block(), longer, length + 1))
        if run.opened:
            todo.append((run.copy().close(), word, length + 1))
        elif system.empty_tiles:
            todo.append((run.copy().close(), (*word, 0), length + 1))
    return Verdict(frontiers=frontiers, letters=letters, self_contained=contained)


def _verdict(
    faults: list[Fault], run: Run, word: tuple[int, ...], frontiers: int, length: int
) -> Verdict:
    return Verdict(
        faults=tuple(faults), word=word, open=run.opened, frontiers=frontiers, letters=length
    )


def _runaway(run: Run) -> Fault:
    """No end of new frontiers: the role that is furthest behind is left by the others."""
    behind = run.stuck()
    first = min(behind, key=lambda p: (p.block, p.tile)) if behind else None
    action = first or Place(run.layout.system.roles[0].actions[0], 0, 0)
    return Fault(kind="runaway", at=action, bar=action.action.bar, stuck=behind)


def frontier(run: Run) -> tuple[Control, int]:
    """(control, knowledge); knowledge is a bit mask over pairs of carrier and live event."""
    places = tuple(
        (at, *((name, block - run.blocks, tile - run.tiles) for name, _, block, tile in todo))
        for at, todo in zip(run.at, run.todo, strict=True)
    )
    live: dict[int, Name] = {}
    carriers: dict[Name, int] = {}
    rings = _rings(run, live, carriers)
    cells = _cells(run, live)
    for n, clock in enumerate(run.clock):
        carriers[CLOCK, n] = clock
        carriers[UNFENCED, n] = run.unfenced[n]
        carriers[LOADS, n], carriers[STORES, n] = run.unsettled[n]
    for n, chain in enumerate(run.chains):
        for back in range(run.layout.keep[n] + 1):  # what was over so many operations ago
            carriers[CHAIN, n, back] = chain[max(0, len(chain) - 1 - back)]
    if not run.layout.rules.unit_order:
        for (unit, cell), clock in run.fetched.items():
            carriers[ACCUMULATOR, unit, cell] = clock
    for n, clock in run.released.items():
        carriers[RELEASED, n] = clock
    private = run.private(live, PRIVATE)
    flying = []
    for n, (bit, place) in enumerate(run.flying):
        if bit not in live:
            live[bit] = (FLYING, n)
            flying.append((place.action.role, place.action.unit))
    names = sorted(live.items(), key=itemgetter(1))
    order = sorted(carriers)
    known = _knowledge([carriers[c] for c in order], [bit for bit, _ in names], run.bits)
    joined = tuple(sorted(run.joined))
    control = (
        run.opened, places, rings, cells, tuple(order), tuple(name for _, name in names), joined,
        tuple(flying), private,
    )  # fmt: skip
    return control, known


def _knowledge(clocks: list[int], live: list[int], bits: int) -> int:
    """Of every clock the live bits, in their order, as one number."""
    if not live:
        return 0
    pick = itemgetter(*(bits - bit.bit_length() for bit in live), 0)  # of digits, highest first
    digits = "".join("".join(pick(f"{clock:0{bits}b}")[:-1]) for clock in clocks)
    return int(digits, 2)


def _rings(run: Run, live: dict[int, Name], carriers: dict[Name, int]) -> tuple[object, ...]:
    """Counters and phases of every barrier, relative to its slowest user; slots are rotated
    likewise.
    """
    system, layout = run.layout.system, run.layout
    mine: list[list[tuple[int, bool, int]]] = [[] for _ in system.bars]
    for (bar, role, is_wait), n in run.counts.items():
        mine[bar].append((role, is_wait, n))
    rings, turned = [], [0] * len(system.bars)
    for n, (ring, counts) in enumerate(zip(system.bars, mine, strict=True)):
        low = min((c[2] for c in counts), default=0)
        turned[n] = low % ring.stages
        phases = []
        for j in range(ring.stages):
            slot = run.slots[layout.slots[n] + (low + j) % ring.stages]
            to_come = len(slot.waits) < len(system.waiters[n]) and not ring.named
            lap = 0 if ring.named else slot.phases - (low + j) // ring.stages
            phases.append((lap, slot.weight))
            for back, came in enumerate((slot.came, slot.came1, slot.came2)[: 3 if to_come else 2]):
                for k, bit in enumerate(_bits(came)):
                    live[bit] = (ARRIVAL, n, j, back, k)
            for k, (bit, _) in enumerate(slot.waits):
                live[bit] = (PASSED, n, j, k)
            if slot.phases and to_come:
                carriers[DONE, n, j] = slot.done
            if slot.weight:
                carriers[PART, n, j] = slot.part
        lead = ring.stages if ring.named else sys.maxsize  # a round has no parity to be taken for
        rings.append((tuple(sorted((r, w, (c - low) % lead) for r, w, c in counts)), tuple(phases)))
    for (unit, n), bits in run.signals.items():
        of = layout.bar_of[n]
        place = (n - layout.slots[of] - turned[of]) % system.bars[of].stages
        carriers[SIGNALS, unit, of, place] = bits
    return tuple(rings)


def _cells(run: Run, live: dict[int, Name]) -> tuple[object, ...]:
    """Live accesses of every region's slots, rotated with the blocks (tiles); keys relative to
    now.
    """
    system, layout = run.layout.system, run.layout
    blocks, tiles = _oldest(run)
    out = []
    for n, region in enumerate(system.regions):
        step = layout.steps[n]
        now = step * run.blocks if step else run.tiles
        oldest = step * blocks + layout.least[n] if step else tiles
        for j in range(region.stages):
            cell = run.cells[layout.cells[n] + (now + j) % region.stages]
            for k, record in enumerate(sorted(cell.writes, key=_by_need)):
                live[record.role_needs] = (WRITE, n, j, k)
                if record.async_needs != record.role_needs:
                    live[record.async_needs] = (FENCED, n, j, k)
            for k, record in enumerate(sorted(cell.reads, key=_by_need)):
                live[record.role_needs] = (READ, n, j, k)
            keys = (*sorted(r.key for r in (*cell.writes, *cell.reads)), cell.top)
            # what no access to come can precede is just old
            out.append(tuple((v - now, rank) if v >= oldest else () for v, rank in keys))
    return tuple(out)


def _oldest(run: Run) -> tuple[int, int]:
    """The least block and tile that an action to come may work on (`prev` apart)."""
    waiting = [(block, tile) for todo in run.todo for _, _, block, tile in todo]
    return (
        min((b for b, _ in waiting), default=run.blocks),
        min((t for _, t in waiting), default=run.tiles),
    )


def _by_need(record: object) -> tuple[object, int]:
    return record.key, record.role_needs  # type: ignore[attr-defined]


def _bits(mask: int) -> list[int]:
    found = []
    while mask:
        low = mask & -mask
        found.append(low)
        mask ^= low
    return found
