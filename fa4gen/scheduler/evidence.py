"""Why each hazard is in order: the path from the end of the earlier access to the begin of the
later.

One word is run with a trace: what happened, and after what. Each pair of accesses that the run had
to find in order (a reader and its writer, the next writer and what it overwrites) gets its
shortest path back through the trace. The proof is the exploration of all words; this shows it at
work on one.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .model import Do, System, Use
from .run import Place, Record, Run

WORD = (3, 2)  # a tile with a first, a middle and a last block, and the seam to the next tile


class Step(NamedTuple):
    """A point of the trace: an action's execution, or the end of what it started (`done`)."""

    place: Place
    done: bool


class Link(NamedTuple):
    """What a step came after, and by which barrier (-1: by the order of a role or unit)."""

    source: int
    bar: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hazard:
    """Two accesses to one slot that are in order; `path` leads from the earlier to the later."""

    region: int
    earlier: Place
    later: Place
    path: tuple[
        tuple[Step, int], ...
    ]  # each step, and the barrier by which the next comes after it

    @property
    def kind(self) -> str:
        """'read after write', 'write after read' or 'write after write'."""

        def what(place: Place) -> str:
            uses = [u for u in place.action.uses if u.region == self.region]
            return "write" if any(u.write for u in uses) else "read"

        return f"{what(self.later)} after {what(self.earlier)}"


class TracingRun(Run):
    """A canonical run that remembers what each step came after."""

    __slots__ = (
        "came_from",
        "ends",
        "last",
        "links",
        "operations",
        "pairs",
        "rounds",
        "steps_of",
    )
    fields: ClassVar[tuple[str, ...]] = (*Run.fields, *__slots__)

    def __init__(self, system: System) -> None:
        self.steps_of: list[Step] = []
        self.links: list[list[Link]] = []
        self.last: dict[int, int] = {}  # role -> its newest step
        self.operations: dict[int, list[int]] = {}  # unit -> ends of its operations
        self.ends: dict[Place, int] = {}  # an access -> the step at which it is over
        self.came_from: dict[tuple[int, int], list[int]] = {}  # (slot, phase) -> arrivals
        self.rounds: dict[int, tuple[int, int]] = {}  # role -> (slot, round) that it has joined
        self.pairs: dict[tuple[int, Place, Place], int] = {}  # -> step where the later one begins
        super().__init__(system)

    def _step(self, place: Place, *sources: Link, done: bool = False) -> int:
        self.steps_of.append(Step(place, done))
        self.links.append([s for s in sources if s.source >= 0])
        return len(self.steps_of) - 1

    def _next(self, role: int, place: Place, *sources: Link) -> int:
        """The role's next step, after its last one."""
        self.last[role] = self._step(place, Link(self.last.get(role, -1), -1), *sources)
        return self.last[role]

    def _phase(self, bar: int, slot: int, phase: int) -> list[Link]:
        return [Link(a, bar) for a in self.came_from.get((slot, phase), ())]

    def wait(self, role: int, here: Place) -> bool:
        """Passes after all arrivals of its phase."""
        n, _ = self._slot(role, here.action, True)
        phase = self.slots[n].phases - 1
        passed = super().wait(role, here)
        if passed:
            self._next(role, here, *self._phase(here.action.bar, n, phase))
        return passed

    def arrive(self, role: int, here: Place) -> bool:
        """The arrival is the role's own step."""
        self._arrived(role, here, self._next(role, here))
        return super().arrive(role, here)

    def sync(self, role: int, here: Place) -> bool:
        """Joins with one step, leaves with another."""
        joins = role not in self.joined and role not in self.released
        if joins:
            n, _ = self._slot(role, here.action, False)
            self._arrived(role, here, self._next(role, here))
            self.rounds[role] = (n, self.slots[n].phases)
        left = super().sync(role, here)
        if left:
            self._next(role, here, *self._phase(here.action.bar, *self.rounds[role]))
        return left

    def _arrived(self, role: int, here: Place, step: int) -> None:
        n, _ = self._slot(role, here.action, False)
        self.came_from.setdefault((n, self.slots[n].phases), []).append(step)

    def touch(self, role: int, here: Place) -> bool:
        """Over with the role's next step; here the step itself stands for both ends."""
        self.ends[here] = self._next(role, here)
        return super().touch(role, here)

    def issue(self, role: int, here: Place) -> bool:
        """An operation: begun by the role, after the one before it where the unit is in order."""
        unit = here.action.unit
        before = self.operations.setdefault(unit, [])
        in_order = self.layout.system.units[unit].in_order
        begin = self._next(role, here)
        links = [Link(before[-1], -1)] if in_order and before else []
        before.append(self._step(here, Link(begin, -1), *links, done=True))
        self.ends[here] = before[-1]
        return super().issue(role, here)

    def load(self, role: int, here: Place) -> bool:
        """A copy arrives when it is done."""
        end = self._step(here, Link(self._next(role, here), -1), done=True)
        self.ends[here] = end
        self._arrived(role, here, end)
        return super().load(role, here)

    def commit(self, role: int, here: Place) -> bool:
        """Arrives after everything issued before."""
        issued = [Link(o, -1) for o in self.operations.get(here.action.unit, ())]
        end = self._step(here, Link(self._next(role, here), -1), *issued, done=True)
        self._arrived(role, here, end)
        return super().commit(role, here)

    def pending(self, role: int, here: Place) -> bool:
        """Goes on after all operations but the newest few."""
        issued = self.operations.get(here.action.unit, [])
        older = issued[: len(issued) - here.action.groups]
        self._next(role, here, *(Link(o, -1) for o in older))
        return super().pending(role, here)

    def _ordered(
        self, here: Place, use: Use, key: tuple[int, int], other: Record, clock: int, unit: bool
    ) -> None:
        super()._ordered(here, use, key, other, clock, unit)
        if other.key < key:
            begin = (
                self.ends[here]
                if here.action.do in (Do.ISSUE, Do.LOAD)
                else self.last[here.action.role]
            )
            self.pairs.setdefault((use.region, other.place, here), begin)

    steps: ClassVar = {
        **Run.steps,
        Do.WAIT: wait,
        Do.ARRIVE: arrive,
        Do.SYNC: sync,
        Do.TOUCH: touch,
        Do.ISSUE: issue,
        Do.LOAD: load,
        Do.COMMIT: commit,
        Do.PENDING: pending,
    }


def trace(system: System, word: tuple[int, ...] = WORD) -> TracingRun:
    """The traced run of a word."""
    run = TracingRun(system)
    for blocks in word:
        for _ in range(blocks):
            run.block()
        run.close()
    return run


def hazards(system: System, word: tuple[int, ...] = WORD) -> Iterator[Hazard]:
    """Every hazard between two statements of a sound system, once, with the path that orders it."""
    run = trace(system, word)
    seen: set[tuple[object, ...]] = set()
    for (region, earlier, later), begin in run.pairs.items():
        kind = (region, earlier.action, later.action, later.block - earlier.block)
        if earlier.action.role == later.action.role and earlier.action.do is Do.TOUCH:
            continue  # program order within a role needs no words
        if kind not in seen:
            seen.add(kind)
            path = _path(run, run.ends[earlier], begin)
            yield Hazard(region=region, earlier=earlier, later=later, path=path)


def _path(run: TracingRun, source: int, target: int) -> tuple[tuple[Step, int], ...]:
    """The shortest way back from `target` to `source`, told forwards."""
    found: dict[int, Link | None] = {target: None}
    todo = deque([target])
    while todo and source not in found:
        here = todo.popleft()
        for link in run.links[here]:
            if link.source not in found:
                found[link.source] = Link(here, link.bar)
                todo.append(link.source)
    path: list[tuple[Step, int]] = []
    at: Link | None = Link(source, -1) if source in found else None
    while at is not None:
        then = found[at.source]
        path.append((run.steps_of[at.source], then.bar if then else -1))
        at = then
    return tuple(path)
