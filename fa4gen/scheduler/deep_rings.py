"""Deep rings proved at a small depth.

Fewer slots only add order, more slots only remove it. So a pipeline that is live with a shallow
ring is live with a deeper one; and a hazard that is ordered without the ring's `empty` edges is
ordered at every depth. What remains are the ring's own slots, and for these the handshake
suffices, whatever the depth: one producer that waits `empty` before each load, consumers that each
wait `full`, are done with a version when they release it, and release in the order of filling.
Then full(v + S) comes after all releases of v, which come after all waits for full(v): no phase is
mixed, early or lapped, and no slot is filled before it was read.

A `RingRun` is the canonical run of the shallow pipeline in which waits on `empty` teach nothing,
and each release is checked to be final. Its acceptance covers the deep pipeline; its refusal says
nothing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

from .closure import Verdict, explore
from .model import ARRIVES, SECTIONS, Action, Do, Role, System, Use
from .run import Cell, Fault, Place, Record, Run, Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A ring in the form of the lemma: barriers and region by number, `step` versions a block."""

    full: int
    empty: int
    region: int
    step: int

    @property
    def shallow(self) -> int:
        """Depth at which the proof is tried: a block's versions, and one ahead."""
        return self.step + 1


def prove_shallow(system: System) -> Verdict | None:
    """A verdict without faults that covers the system, if its deep rings have the lemma's form."""
    rings = tuple(r for r in handshakes(system) if system.bars[r.full].stages > r.shallow)
    if not rings:
        return None
    verdict = explore(RingRun(_shallow(system, rings), rings))
    if verdict.faults or not verdict.self_contained:
        return None
    return replace(
        verdict,
        shallow=tuple(
            (system.regions[r.region].name, system.bars[r.full].stages, r.shallow) for r in rings
        ),
    )


def _shallow(system: System, rings: tuple[Handshake, ...]) -> System:
    bars, regions = list(system.bars), list(system.regions)
    for r in rings:
        for n in (r.full, r.empty):
            bars[n] = replace(bars[n], stages=r.shallow)
        regions[r.region] = replace(regions[r.region], stages=r.shallow)
    roles = tuple(_drained(role, system, rings) for role in system.roles)
    return replace(system, roles=roles, bars=tuple(bars), regions=tuple(regions))


def _drained(role: Role, system: System, rings: tuple[Handshake, ...]) -> Role:
    """A producer that waits for all slots at the end waits for as many as there are now."""
    end = list(role.end)
    for r in rings:
        waits = [n for n, x in enumerate(end) if x.do is Do.WAIT and x.bar == r.empty]
        if len(waits) == system.bars[r.empty].stages:
            gone = set(waits[r.shallow :])
            end = [x for n, x in enumerate(end) if n not in gone]
    return replace(role, end=tuple(end))


# the form -----------------------------------------------------------------------------------------


def handshakes(system: System) -> Iterator[Handshake]:
    """Every ring of the lemma's form; each barrier and region belongs to one of them."""
    used: set[int] = set()
    for full, f in enumerate(system.bars):
        for empty, e in enumerate(system.bars):
            if not e.stages == f.stages > 1 or e.named or f.named or used & {full, empty}:
                continue
            found = _handshake(system, full, empty) if full != empty else None
            if found:
                used |= {full, empty}
                yield found


def _handshake(system: System, full: int, empty: int) -> Handshake | None:
    producers = system.arrivers[full]
    if len(producers) != 1 or system.waiters[empty] != producers:
        return None
    (n,) = producers
    producer = system.roles[n]
    loads = [x for x in producer.actions if x.bar == full and x.do in ARRIVES]
    regions = {u.region for x in loads for u in x.uses}
    if len(regions) != 1 or any(x.do is not Do.LOAD or len(x.uses) != 1 for x in loads):
        return None
    (region,) = regions
    if system.regions[region].stages != system.bars[full].stages:
        return None
    step = loads[0].uses[0].a
    ring = Handshake(full=full, empty=empty, region=region, step=step)
    fits = step > 0 and _produces(producer, ring) and _consumed(system, ring, n)
    return ring if fits else None


def _produces(role: Role, ring: Handshake) -> bool:
    """A free wait before each load, no other load between, and loads in the order of versions."""
    sections = {s: [x for x in role.section(s) if _of(x, ring)] for s in SECTIONS}
    for s in SECTIONS:
        since = [x for x in role.section(s) if x.do is Do.LOAD or _of(x, ring)]
        if any(b.bar == ring.full and a.bar != ring.empty for a, b in pairwise(since)):
            return False
    for name, actions in sections.items():
        if name == "end":
            continue
        want = (Do.WAIT, Do.LOAD) * (len(actions) // 2)
        if tuple(x.do for x in actions) != want or not all(x.free for x in actions[::2]):
            return False
    if sections["start"] or sections["none"] or any(x.do is Do.LOAD for x in sections["end"]):
        return False
    loads = {s: [x for x in found if x.do is Do.LOAD] for s, found in sections.items()}
    at = {s: [x.uses[0].b - x.prev * ring.step for x in loads[s]] for s in SECTIONS}
    first = len(at["first"])
    return (
        at["first"] == list(range(first))
        and at["rest"] == list(range(first - ring.step, first))
        and at["last"] == list(range(first, ring.step))
        and all(x.uses[0].a == ring.step for found in loads.values() for x in found)
    )


def _of(x: Action, ring: Handshake) -> bool:
    return (x.do is Do.WAIT and x.bar == ring.empty) or (x.do in ARRIVES and x.bar == ring.full)


def _consumed(system: System, ring: Handshake, producer: int) -> bool:
    """Every role that reads the ring waits `full` and arrives at `empty` equally often; no other
    does.
    """
    readers: set[int] = set()
    for n, role in enumerate(system.roles):
        for x in role.actions:
            uses = [u for u in x.uses if u.region == ring.region]
            if not uses:
                continue
            if any(u.write for u in uses) != (n == producer and x.bar == ring.full):
                return False
            if not uses[0].write:
                readers.add(n)
    if not readers == system.waiters[ring.full] == system.arrivers[ring.empty]:
        return False
    return all(
        _number(system.roles[n], of, Do.WAIT, ring.full)
        == _number(system.roles[n], of, Do.ARRIVE, ring.empty)
        for n in readers
        for of in (("start",), ("rest",), ("first", "last"), ("none",))
    )


def _number(role: Role, sections: tuple[str, ...], do: Do, bar: int) -> int:
    arrives = do is not Do.WAIT
    return sum(
        x.bar == bar and (x.do in ARRIVES if arrives else x.do is Do.WAIT)
        for s in sections
        for x in role.section(s)
    )


# the run ------------------------------------------------------------------------------------------


class RingRun(Run):
    """A canonical run in which the given rings are judged by the handshake lemma."""

    __slots__ = ("empty", "full", "held", "ring_of")
    fields: ClassVar[tuple[str, ...]] = (*Run.fields, *__slots__)

    def __init__(self, system: System, rings: tuple[Handshake, ...]) -> None:
        self.full = {r.full: r for r in rings}
        self.empty = {r.empty: r for r in rings}
        self.ring_of = {r.region: r for r in rings}
        self.held: dict[tuple[int, int, int], int] = {}  # (region, role, version) -> its reads
        super().__init__(system)

    def wait(self, role: int, here: Place) -> bool:
        """The ring's own waits need no look at phases; `empty` teaches nothing."""
        x = here.action
        if x.bar not in self.full and x.bar not in self.empty:
            return super().wait(role, here)
        n, lap = self._slot(role, x, True)
        slot = self.slots[n]
        if (slot.phases - lap + x.free) & 1 == 0:
            return False
        if x.bar in self.full:
            self.clock[role] |= slot.done
        self.counts[x.bar, role, True] = self.counts.get((x.bar, role, True), 0) + 1
        return True

    def _arrive(self, role: int, here: Place, clock: int) -> int:
        x = here.action
        if x.bar not in self.full and x.bar not in self.empty:
            return super()._arrive(role, here, clock)
        n, _ = self._slot(role, x, False)
        done = self.counts.get((x.bar, role, False), 0)
        self.counts[x.bar, role, False] = done + 1
        if x.bar in self.empty:
            self._release(role, here, clock, done)
        slot = self.slots[n]
        weight, part = slot.weight + x.weight, slot.part | clock
        if weight < self.layout.system.bars[x.bar].count:
            self.slots[n] = slot._replace(weight=weight, part=part)
        else:
            self.slots[n] = Slot(phases=slot.phases + 1, done=part)
        return 0

    def _release(self, role: int, here: Place, clock: int, version: int) -> None:
        """A role's n-th release is of version n: awaited before, and with all its reads over."""
        ring = self.empty[here.action.bar]
        awaited = self.counts.get((ring.full, role, True), 0)
        reads = self.held.pop((ring.region, role, version), 0)
        if awaited <= version or reads & ~clock:
            self.fault(Fault(kind="race", at=here, region=ring.region, late=True))

    def _check(
        self, n: int, use: Use, key: tuple[int, int], here: Place, clock: int, role: int | None
    ) -> None:
        ring = self.ring_of.get(use.region)
        if ring is None:
            super()._check(n, use, key, here, clock, role)
        elif not use.write:
            reader = here.action.role
            released = self.counts.get((ring.empty, reader, False), 0)
            loaded = [w for w in self.cells[n].writes if w.key[0] == key[0] and w.key < key]
            if key[0] < released or not loaded or not clock & loaded[0].role_needs:
                self.fault(Fault(kind="race", at=here, region=use.region, late=True))

    def _keep(
        self, n: int, use: Use, key: tuple[int, int], here: Place, clock: int, role: int | None
    ) -> int:
        if use.region not in self.ring_of:
            return super()._keep(n, use, key, here, clock, role)
        over = self._bit()
        if role is None:
            self.flying = (*self.flying, (over, here))
        if use.write:
            self.cells[n] = Cell(writes=(Record(key, over, over, here, 0),))
        else:
            held = (use.region, here.action.role, key[0])
            self.held[held] = self.held.get(held, 0) | over
        return over

    def private(self, live: dict[int, tuple[int, ...]], kind: int) -> tuple[object, ...]:
        """Reads that wait for their release."""
        out = []
        for (region, role, version), bits in sorted(self.held.items()):
            now = version - self.ring_of[region].step * self.blocks
            rest, k = bits, 0
            while rest:
                low = rest & -rest
                live[low] = (kind, region, role, now, k)
                rest, k = rest ^ low, k + 1
            out.append((region, role, now, k))
        return tuple(out)

    steps: ClassVar = {**Run.steps, Do.WAIT: wait}
