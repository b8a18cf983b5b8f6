"""What a role does, in order, before instructions are chosen: waits, operations, arrivals, drains.

Waits stand before the operation that needs them, arrivals behind the operation that allows them:

- a ring's `full` is awaited by the first reader of an item (the one that runs furthest ahead), in
  the order in which the ring is filled, and its `empty` is signalled behind the last reader;
- a barrier of level `tile` is awaited at the first occurrence in the tile and signalled at the
last;
- an edge between operations of one role instance is program order, and needs no barrier;
- asynchronous groups (wgmma, bulk stores) are settled by the first operation that touches what they
  touch, at the latest at the end of the section; what they hold back is signalled then.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from fa4gen.diag import Span
from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.program import NEXT, OWN, Relative
from fa4gen.ir.schedule import Barrier, Buffer, End, Schedule, Step

from .sections import SECTIONS, Occurrence, depth, sections

GROUPED = (Unit.WGMMA, Unit.TMA_STORE)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitEvent:
    """Wait for a barrier (slot of an instance); `item`: what the ring's slot then holds."""

    barrier: str
    instance: int | Relative | None
    free: bool
    item: str = ""
    prev: bool = False
    named: bool = False
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpEvent:
    """Do an operation."""

    occurrence: Occurrence
    signals: tuple[
        "SignalEvent", ...
    ] = ()  # carried by the operation itself (a load's full barrier)


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalEvent:
    """Arrive at a barrier, on behalf of an operation of unit `by`."""

    barrier: str
    instance: int | Relative | None
    by: Unit
    operation: str
    item: str = ""
    prev: bool = False
    named: bool = False
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepEvent:
    """Keep the slot of the block before, which the role still reads in the next block's turn."""

    barrier: str
    item: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingEvent:
    """Let at most `groups` groups of a unit be running."""

    unit: Unit
    groups: int
    prev: bool = False


Event = WaitEvent | OpEvent | SignalEvent | PendingEvent | KeepEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleEvents:
    """A role's events, section by section, and its depth of rotation."""

    role: str
    depth: int
    sections: dict[str, tuple[Event, ...]]


@dataclass(slots=True)
class _Group:
    """An asynchronous group in flight: what it touches, what it holds back."""

    unit: Unit
    touches: frozenset[str]
    signals: list[SignalEvent] = field(default_factory=list)


def role_events(schedule: Schedule, role: str) -> RoleEvents:
    """All sections of one role."""
    placed = sections(schedule, role)
    builder = _Builder(schedule, role, placed)
    return RoleEvents(
        role=role,
        depth=depth(schedule, role),
        sections={s: tuple(builder.section(s)) for s in SECTIONS},
    )


class _Builder:
    def __init__(
        self, schedule: Schedule, role: str, placed: dict[str, tuple[Occurrence, ...]]
    ) -> None:
        self.schedule, self.role, self.placed = schedule, role, placed
        self.depth = depth(schedule, role)
        ringed = {b.ring for b in schedule.barriers}
        self.rings = {i: b for b in schedule.buffers if b.name in ringed for i in b.items}
        self.groups: list[_Group] = []
        self.out: list[Event] = []
        self.waited: set[tuple[str, object, bool]] = set()

    # one section ----------------------------------------------------------------------------------
    def section(self, name: str) -> list[Event]:
        self.out, self.groups, self.waited = [], [], set()
        here = self.placed[name]
        if name == "rest":
            self._keep_slots()
        if name == "last":
            self._tile_signals_of_earlier_sections()
        for position, occurrence in enumerate(here):
            self._settle_for(occurrence)
            self._ring_waits(occurrence, here, position)
            self._barrier_waits(occurrence)
            if occurrence.first_part:
                self._turn(occurrence, before=True)
            self._do(occurrence, here, position)
            if occurrence.last_part:
                self._turn(occurrence, before=False)
        if name == "first":
            self._tile_waits_of_later_sections()
        if name == "before":
            self._tile_waits_of_uniform_blocks()
        self._settle_all()
        return self.out

    # waits ----------------------------------------------------------------------------------------
    def _ring_waits(self, o: Occurrence, here: tuple[Occurrence, ...], position: int) -> None:
        if not o.first_part:
            return
        for item in (i for i in o.operation.writes if i in self.rings):
            self._wait_ring(self.rings[item], "empty", item, o)
        wanted = [i for i in o.operation.reads if i in self.rings and not self._met(i, o)]
        for item in wanted:
            if any(item in x.operation.reads and x.prev == o.prev for x in here[:position]):
                continue
            ring = self.rings[item]
            for earlier in self._filled_before(ring, item, o, here):
                self._wait_ring(ring, "full", earlier[0], earlier[1])
            self._wait_ring(ring, "full", item, o)

    def _filled_before(
        self, ring: Buffer, item: str, o: Occurrence, here: tuple[Occurrence, ...]
    ) -> list[tuple[str, Occurrence]]:
        """Items of the ring that this section needs later, but that were filled earlier: wait in
        order."""

        def use(i: str, prev: bool) -> int:
            return len(ring.items) * (0 if prev else 1) + ring.items.index(i)

        mine = use(item, o.prev)
        found: dict[tuple[str, bool], Occurrence] = {}
        for x in here:
            for i in x.operation.reads:
                if self.rings.get(i) is ring and use(i, x.prev) < mine and not self._met(i, x):
                    found.setdefault((i, x.prev), x)
        return [
            (i, x)
            for (i, prev), x in sorted(found.items(), key=lambda f: use(f[0][0], f[0][1]))
            if (self._ring_barrier(ring, "full").name, i, prev) not in self.waited
        ]

    def _met(self, item: str, o: Occurrence) -> bool:
        """Whether the role has waited for the item a block earlier, for one that runs further
        ahead."""
        return any(s.ahead > o.ahead for s in self._readers(item))

    def _needed(self, item: str, o: Occurrence) -> bool:
        """Whether the role still reads the item a block later."""
        return any(s.ahead < o.ahead for s in self._readers(item))

    def _keep_slots(self) -> None:
        for item, ring in self.rings.items():
            if len({s.ahead for s in self._readers(item)}) > 1:
                full = self._ring_barrier(ring, "full").name
                self.out.append(KeepEvent(barrier=full, item=item))

    def _readers(self, item: str) -> Iterator[Step]:
        for s in self.schedule.steps_of(self.role).block:
            if item in self.schedule.operation(s.operation).reads:
                yield s

    def _wait_ring(self, ring: Buffer, side: str, item: str, o: Occurrence) -> None:
        barrier = self._ring_barrier(ring, side)
        key = (barrier.name, item, o.prev)
        if key in self.waited:
            return
        self.waited.add(key)
        self.out.append(
            WaitEvent(
                barrier=barrier.name,
                instance=None,
                free=side == "empty",
                item=item,
                prev=o.prev,
                span=barrier.span,
            )
        )

    def _barrier_waits(self, o: Occurrence) -> None:
        for barrier in self.schedule.barriers:
            if barrier.ring or self._internal(barrier):
                continue
            if barrier.level == "tile" and not self._first_in_tile(o):
                continue
            self._wait_for(barrier, o)

    def _wait_for(self, barrier: Barrier, o: Occurrence) -> None:
        for instance in self._matches(barrier.before, o, first=True):
            key = (barrier.name, instance, o.prev)
            if key not in self.waited:
                self.waited.add(key)
                self.out.append(
                    WaitEvent(
                        barrier=barrier.name,
                        instance=instance,
                        free=barrier.distance > 0,
                        prev=o.prev,
                        named=barrier.kind == "named",
                        span=barrier.span,
                    )
                )

    def _first_in_tile(self, o: Occurrence) -> bool:
        return o.level == "tile" or (bool(self.depth) and o.section == "first")

    def _tile_waits_of_later_sections(self) -> None:
        """A drained operation's tile-level waits: behind what runs ahead, before the loop."""
        if self.depth:
            self._tile_waits(o for o in self.placed["rest"] if not o.ahead)

    def _tile_waits_of_uniform_blocks(self) -> None:
        if not self.depth:
            self._tile_waits(self.placed["first"])

    def _tile_waits(self, occurrences: Iterable[Occurrence]) -> None:
        for o in occurrences:
            for barrier in self.schedule.barriers:
                if not barrier.ring and barrier.level == "tile" and not self._internal(barrier):
                    self._wait_for(barrier, replace(o, prev=False))

    # operations and what follows from them --------------------------------------------------------
    def _do(self, o: Occurrence, here: tuple[Occurrence, ...], position: int) -> None:
        unit = KINDS[o.operation.kind].unit
        signals = self._signals(o, here, position)
        if unit is Unit.TMA_LOAD:
            self.out.append(OpEvent(occurrence=o, signals=tuple(signals)))
            return
        self.out.append(OpEvent(occurrence=o))
        if unit in GROUPED:
            touches = frozenset((*o.operation.reads, *o.operation.writes, *o.operation.updates))
            self.groups.append(_Group(unit, touches, signals))
            return
        self.out += signals

    def _signals(
        self, o: Occurrence, here: tuple[Occurrence, ...], position: int
    ) -> list[SignalEvent]:
        out: list[SignalEvent] = []
        if o.last_part:
            for item in (i for i in o.operation.writes if i in self.rings):
                barrier = self._ring_barrier(self.rings[item], "full")
                out.append(self._signal(barrier, None, o, item))
            for item in (i for i in o.operation.reads if i in self.rings):
                if not self._needed(item, o) and not any(
                    item in x.operation.reads and x.prev == o.prev for x in here[position + 1 :]
                ):
                    barrier = self._ring_barrier(self.rings[item], "empty")
                    out.append(self._signal(barrier, None, o, item))
        for barrier in self.schedule.barriers:
            if barrier.ring or self._internal(barrier):
                continue
            if barrier.level == "tile" and not self._last_in_tile(o):
                continue
            later = here[position + 1 :]
            out += [
                self._signal(barrier, instance, o)
                for instance in self._matches(barrier.after, o, first=False)
                if not self._later_in_section(barrier, instance, later, o)
            ]
        return out

    def _later_in_section(
        self, barrier: Barrier, instance: object, later: tuple[Occurrence, ...], o: Occurrence
    ) -> bool:
        """Whether a partner in the same phase, of this role, comes later: it arrives for both."""
        together = [alt for alt in barrier.after if any(_is(e, o, first=False) for e in alt)]
        return any(
            x.prev == o.prev
            and any(_is(e, x, first=False) for alt in together for e in alt)
            and instance in self._matches(barrier.after, x, first=False)
            for x in later
        )

    def _last_in_tile(self, o: Occurrence) -> bool:
        return o.level == "tile" or o.section == "last"

    def _tile_signals_of_earlier_sections(self) -> None:
        """Tile-level signals of operations that have no occurrence in the drain."""
        done = {(o.operation.name, o.instance) for o in self.placed["last"]}
        block = self.placed["rest"] if self.depth else self.placed["first"]
        for o in block:
            if o.level == "block" and (o.operation.name, o.instance) not in done and o.last_part:
                for barrier in self.schedule.barriers:
                    if barrier.ring or barrier.level != "tile" or self._internal(barrier):
                        continue
                    for instance in self._matches(barrier.after, o, first=False):
                        signal = self._signal(barrier, instance, o)
                        if signal not in self.out:
                            self.out.append(replace(signal, prev=False))

    def _signal(
        self, barrier: Barrier, instance: int | Relative | None, o: Occurrence, item: str = ""
    ) -> SignalEvent:
        return SignalEvent(
            barrier=barrier.name,
            instance=instance,
            by=KINDS[o.operation.kind].unit,
            operation=o.operation.name,
            item=item,
            prev=o.prev,
            named=barrier.kind == "named",
            span=barrier.span,
        )

    # turns ----------------------------------------------------------------------------------------
    def _turn(self, o: Occurrence, *, before: bool) -> None:
        """A turn is taken in the loop alone: prologue and drain have nobody to alternate with."""
        for turn in self.schedule.turns:
            if turn.role != self.role or o.section != "rest":
                continue
            step = turn.first if before else turn.last
            if step.operation != o.operation.name or step.ahead != o.ahead:
                continue
            if before:
                self.out.append(
                    WaitEvent(
                        barrier=turn.name, instance=OWN, free=False, named=True, span=turn.span
                    )
                )
            else:
                self.out.append(
                    SignalEvent(
                        barrier=turn.name,
                        instance=NEXT,
                        by=Unit.WARP,
                        operation=o.operation.name,
                        named=True,
                        span=turn.span,
                    )
                )

    # asynchronous groups --------------------------------------------------------------------------
    def _settle_for(self, o: Occurrence) -> None:
        """Registers (or the shared memory of a store) that a group in flight uses may not be
        touched."""
        unit = KINDS[o.operation.kind].unit
        touched = {*o.operation.reads, *o.operation.writes, *o.operation.updates}
        for n in range(len(self.groups) - 1, -1, -1):
            group = self.groups[n]
            if group.unit is unit:
                continue  # operations of one unit follow each other
            if any(self._shares(a, b) for a in touched for b in group.touches):
                self._settle(group.unit, n, o.prev)
                return

    def _shares(self, a: str, b: str) -> bool:
        try:
            x, y = self.schedule.buffer_of(a), self.schedule.buffer_of(b)
        except KeyError:
            return False
        if a in self.rings or b in self.rings:
            return False  # rings have barriers of their own
        return x is y or x.overlays == y.name or y.overlays == x.name

    def _settle(self, unit: Unit, upto: int, prev: bool) -> None:
        younger = sum(g.unit is unit for g in self.groups[upto + 1 :])
        self.out.append(PendingEvent(unit=unit, groups=younger, prev=prev))
        for group in self.groups[: upto + 1]:
            if group.unit is unit:
                self.out += group.signals
        self.groups = [g for i, g in enumerate(self.groups) if i > upto or g.unit is not unit]

    def _settle_all(self) -> None:
        while self.groups:
            self._settle(self.groups[0].unit, 0, prev=False)

    # who meets whom -------------------------------------------------------------------------------
    def _matches(
        self, side: tuple[tuple[End, ...], ...], o: Occurrence, *, first: bool
    ) -> list[int | Relative | None]:
        """Instances of a barrier that an occurrence is an end of."""
        return [
            o.instance if end.instance == "same" else None
            for alternative in side
            for end in alternative
            if _is(end, o, first=first)
        ]

    def _internal(self, barrier: Barrier) -> bool:
        """Both sides are operations of one role instance: program order does it."""
        roles = {
            self.schedule.operation(e.operation).role
            for side in (barrier.after, barrier.before)
            for alt in side
            for e in alt
        }
        return len(roles) == 1 and (barrier.per or not self.schedule.role(next(iter(roles))).per)

    def _ring_barrier(self, ring: Buffer, side: str) -> Barrier:
        return next(b for b in self.schedule.barriers if b.ring == ring.name and b.side == side)


def _is(end: End, o: Occurrence, *, first: bool) -> bool:
    """Whether the occurrence is this end (a whole operation begins with its first part, ends with
    its last)."""
    if end.operation != o.operation.name:
        return False
    if isinstance(end.instance, int) and end.instance != o.instance:
        return False
    if end.part is None:
        return o.first_part if first else o.last_part
    return o.part == end.part or (o.part is None and end.part == 0)
