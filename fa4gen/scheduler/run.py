"""The canonical run of a pipeline: what happens-before proves, one letter of the word at a time.

Roles advance in turn until all are stuck, asynchronous work is done at once, parities are real. A
clock is a bit mask of events known to be over. If the run breaks none of the phase conditions,
every interleaving executes the same events with the same phases (theorem 1), and two accesses are
ordered in all of them if and only if the later one's clock knows the earlier (theorem 2).

What an event says depends on how memory is touched. A role's write to shared memory is seen by
others once released to them, by asynchronous operations once it was fenced as well; its tensor
memory accesses are over after tcgen05.wait; an asynchronous operation is over when its completion
was observed. Arrivals pass on all that the arriving role knows; completions (copies, commits) pass
on execution order only, and do not vouch for what their issuer wrote.

Only the last write of a slot and the reads since are kept: the next write must know them all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from .model import Action, Do, System, Use


class Place(NamedTuple):
    """An action, and the block and tile that it worked on (counted over all tiles)."""

    action: Action
    block: int
    tile: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A condition that some interleaving breaks.

    `kind`: deadlock, race, mixed, early, lapped, drain, overflow, runaway. `at` is the action that
    comes too soon, `other` the one that it should have waited for; `late`: `other` comes after it
    in the specification and was executed before it. `stuck`: who waits where (of a deadlock).
    """

    kind: str
    at: Place
    other: Place | None = None
    bar: int = -1
    slot: int = 0
    phase: int = 0
    region: int = -1
    late: bool = False
    stuck: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is taken for granted. The defaults are the hardware; the others serve explanations.

    `unit_order`: in-order units finish one operation before the next begins, whatever it writes;
    without it only operations on one accumulator are ordered. `kinds`: fences and waits count;
    without, every access is over and seen at once. `vouch`: an arrival also stands for what its
    role has issued before.
    """

    unit_order: bool = True
    kinds: bool = True
    vouch: bool = False


HARDWARE = Rules()


class Slot(NamedTuple):
    """One barrier: completed phases, the newest one's clock; weight, clock and arrivals of the
    phase in progress; arrivals of the two before; waits that passed on the newest completed phase.
    """

    phases: int = 0
    done: int = 0
    weight: int = 0
    part: int = 0
    came: int = 0
    came1: int = 0
    came2: int = 0
    waits: tuple[tuple[int, Place], ...] = ()


class Record(NamedTuple):
    """An access: its key (version, rank), the event that a role (an asynchronous operation) must
    know before it may follow, what is known once it is over.
    """

    key: tuple[int, int]
    role_needs: int
    async_needs: int
    place: Place
    after: int


class Cell(NamedTuple):
    """A slot of a region: its last writes (of one key), reads since, and the highest key read."""

    writes: tuple[Record, ...] = ()
    reads: tuple[Record, ...] = ()
    top: tuple[int, int] = (-1, -1)


class Layout:
    """Tables of a system that every run of it shares."""

    __slots__ = ("bar_of", "cells", "keep", "least", "rules", "slots", "steps", "system")

    def __init__(self, system: System, rules: Rules) -> None:
        self.system, self.rules = system, rules
        self.slots, self.cells = [0], [0]
        self.bar_of: list[int] = []  # slot -> barrier
        for n, bar in enumerate(system.bars):
            self.slots.append(self.slots[-1] + bar.stages)
            self.bar_of += [n] * bar.stages
        for region in system.regions:
            self.cells.append(self.cells[-1] + region.stages)
        self.keep = [0] * len(system.units)
        self.steps = [0] * len(system.regions)  # versions a block, 0 if they count tiles
        self.least = [0] * len(system.regions)  # version in block 0 that comes first
        for role in system.roles:
            for x in role.actions:
                if x.do is Do.PENDING:
                    self.keep[x.unit] = max(self.keep[x.unit], x.groups)
                for use in x.uses:
                    self.steps[use.region] = use.a
                    first = use.b - use.a * x.prev
                    self.least[use.region] = min(self.least[use.region], first)


class Run:
    """The run so far, over a growing prefix of a word. `faults` is empty if all is well."""

    __slots__ = (
        "at", "bits", "blocks", "cells", "chains", "clock", "counts", "faults", "fetched", "flying",
        "joined", "layout", "memory", "opened", "released", "signals", "slots", "tiles", "todo",
        "unfenced", "unsettled",
    )  # fmt: skip

    def __init__(self, system: System, rules: Rules = HARDWARE) -> None:
        n = len(system.roles)
        self.layout = Layout(system, rules)
        self.blocks, self.tiles, self.opened, self.bits = 0, 0, False, 0
        self.clock = [0] * n
        self.todo: list[list[tuple[str, tuple[Action, ...], int, int]]] = [[] for _ in range(n)]
        self.at = [0] * n  # position in the first section to do
        self.slots = [Slot()] * self.layout.slots[-1]
        self.cells = [Cell()] * self.layout.cells[-1]
        self.counts: dict[tuple[int, int, bool], int] = {}  # (barrier, role, is it a wait)
        self.chains: list[tuple[int, ...]] = [(0,)] * len(system.units)  # clocks, cumulative
        self.fetched: dict[tuple[int, int], int] = {}  # (unit, cell) -> clock of its accumulator
        self.signals: dict[tuple[int, int], int] = {}  # (unit, slot) -> its commits' arrivals
        self.joined: dict[int, int] = {}  # role -> round of the named barrier that it waits in
        self.released: dict[int, int] = {}  # role -> clock of that round, once it is over
        self.unfenced = [0] * n
        self.unsettled = [(0, 0)] * n  # loads, stores
        self.memory = 0  # events of a role's own writes
        self.flying: tuple[tuple[int, Place], ...] = ()  # asynchronous accesses, till observed
        self.faults: list[Fault] = []
        self._letter("start", 0)

    def copy(self) -> "Run":
        """An independent continuation."""
        new = object.__new__(type(self))
        for name in self.fields:
            value = getattr(self, name)
            setattr(new, name, value.copy() if isinstance(value, list | dict) else value)
        new.todo = [t.copy() for t in self.todo]
        return new

    def private(self, _live: dict[int, tuple[int, ...]], _kind: int) -> tuple[object, ...]:
        """What a kind of run adds to its frontier: control; live events go to `live`."""
        return ()

    # letters --------------------------------------------------------------------------------------
    def block(self) -> "Run":
        """One more block in the open tile, or the first of a new one."""
        self.blocks += 1
        self._letter("rest" if self.opened else "first", self.blocks - 1)
        self.opened = True
        return self

    def close(self) -> "Run":
        """The open tile has no more blocks; or the next tile has none."""
        if self.opened:
            self._letter("last", self.blocks - 1)
        else:
            self._letter("none", self.blocks)
        self.tiles, self.opened = self.tiles + 1, False
        return self

    def end(self) -> "Run":
        """No more tiles: every role must come to its end, and nothing be left at work."""
        self._letter("end", self.blocks)
        stuck = self.stuck()
        if stuck:
            self.faults.append(
                Fault(kind="deadlock", at=stuck[0], bar=stuck[0].action.bar, stuck=stuck)
            )
        elif self.flying:
            self.faults.append(Fault(kind="drain", at=self.flying[0][1]))
        return self

    def stuck(self) -> tuple[Place, ...]:
        """Where each role stands that has something left to do."""
        found = []
        for todo, at in zip(self.todo, self.at, strict=True):
            if todo:
                _, actions, block, tile = todo[0]
                found.append(Place(actions[at], block - actions[at].prev, tile))
        return tuple(found)

    def _letter(self, section: str, block: int) -> None:
        for n, role in enumerate(self.layout.system.roles):
            actions = role.section(section)
            if actions:
                self.todo[n].append((section, actions, block, self.tiles))
        self._go()
        known = 0
        for c in self.clock:
            known |= c
        self.flying = tuple(f for f in self.flying if not known & f[0])

    def _go(self) -> None:
        moved = True
        while moved:
            moved = False
            for role in range(len(self.todo)):
                moved |= self._advance(role)

    def _advance(self, role: int) -> bool:
        """Goes on with a role as far as it can; whether it moved."""
        todo, at, moved = self.todo[role], self.at[role], False
        while todo:
            _, actions, block, tile = todo[0]
            while at < len(actions):
                x = actions[at]
                if not self.steps[x.do](self, role, Place(x, block - x.prev, tile)):
                    self.at[role] = at
                    return moved
                at, moved = at + 1, True
            del todo[0]
            at = 0
        self.at[role] = 0
        return moved

    def fault(self, fault: Fault) -> None:
        """Keeps a fault, once."""
        if fault not in self.faults:
            self.faults.append(fault)

    def _bit(self) -> int:
        self.bits += 1
        return 1 << (self.bits - 1)

    def _slot(self, role: int, x: Action, wait: bool) -> tuple[int, int]:
        """(slot, lap) of the role's next wait (arrival) there."""
        stages = self.layout.system.bars[x.bar].stages
        k = self.counts.get((x.bar, role, wait), 0)
        return self.layout.slots[x.bar] + k % stages, k // stages

    # synchronisation ------------------------------------------------------------------------------
    def wait(self, role: int, here: Place) -> bool:
        """A parity wait: bound to the phase in progress, or to the one before, by parity."""
        x = here.action
        n, lap = self._slot(role, x, True)
        slot = self.slots[n]
        blocks = (slot.phases - lap + x.free) & 1 == 0
        phase = slot.phases if blocks else slot.phases - 1
        before = slot.came1 if blocks else slot.came2
        if before & ~self.clock[role]:
            self.fault(
                Fault(
                    kind="early", at=here, bar=x.bar, slot=n - self.layout.slots[x.bar], phase=phase
                )
            )
        if blocks:
            return False
        bit = self._bit()
        self.clock[role] |= slot.done | bit
        self.slots[n] = slot._replace(waits=(*slot.waits, (bit, here)))
        self.counts[x.bar, role, True] = self.counts.get((x.bar, role, True), 0) + 1
        return True

    def arrive(self, role: int, here: Place) -> bool:
        """All that the role knows is passed on."""
        clock = self.clock[role]
        if self.layout.rules.vouch:
            clock |= self._issued(role)
        self.clock[role] |= self._arrive(role, here, clock)
        return True

    def sync(self, role: int, here: Place) -> bool:
        """Joins the round in progress, goes on when it is over."""
        if role not in self.joined and role not in self.released:
            n, _ = self._slot(role, here.action, False)
            self.joined[role] = n
            self.clock[role] |= self._arrive(role, here, self.clock[role])
        if role not in self.released:
            return False
        self.clock[role] |= self.released.pop(role)
        return True

    def _arrive(self, role: int, here: Place, clock: int) -> int:
        x = here.action
        n, _ = self._slot(role, x, False)
        self.counts[x.bar, role, False] = self.counts.get((x.bar, role, False), 0) + 1
        slot = self.slots[n]
        at = n - self.layout.slots[x.bar]
        if slot.came1 & ~clock:
            self.fault(Fault(kind="mixed", at=here, bar=x.bar, slot=at, phase=slot.phases))
        bit = self._bit()
        part, came, weight = slot.part | clock | bit, slot.came | bit, slot.weight + x.weight
        count = self.layout.system.bars[x.bar].count
        if weight < count:
            self.slots[n] = slot._replace(weight=weight, part=part, came=came)
            return bit
        if weight > count:
            self.fault(Fault(kind="overflow", at=here, bar=x.bar, slot=at, phase=slot.phases))
        for seen, waiter in slot.waits:
            if not part & seen:
                self.fault(
                    Fault(
                        kind="lapped", at=waiter, other=here, bar=x.bar, slot=at, phase=slot.phases
                    )
                )
        self.slots[n] = Slot(slot.phases + 1, part, 0, 0, 0, came, slot.came1, ())
        for sleeper in [r for r, s in self.joined.items() if s == n]:
            del self.joined[sleeper]
            self.released[sleeper] = part
        return bit

    # asynchronous work ----------------------------------------------------------------------------
    def issue(self, role: int, here: Place) -> bool:
        """One operation; in-order units begin it after the end of the one before."""
        unit = here.action.unit
        chain = self.chains[unit]
        begin = self.clock[role]
        written = [(unit, self._cell(u, here)[0]) for u in here.action.uses if u.write]
        if self.layout.system.units[unit].in_order:
            if self.layout.rules.unit_order:
                begin |= chain[-1]
            else:
                for key in written:
                    begin |= self.fetched.get(key, 0)
        over = begin & ~self.memory | self._access(here, begin, None)
        for key in written:
            self.fetched[key] = self.fetched.get(key, 0) | over
        self.chains[unit] = (
            (*chain[-self.layout.keep[unit] :], chain[-1] | over)
            if self.layout.keep[unit]
            else (chain[-1] | over,)
        )
        return True

    def load(self, role: int, here: Place) -> bool:
        """A copy: nothing orders it among its like."""
        clock = self.clock[role]
        over = self._access(here, clock, None)
        self._arrive(role, here, clock & ~self.memory | over)
        return True

    def commit(self, role: int, here: Place) -> bool:
        """Commits of a unit to one barrier arrive in turn: were two swapped, nobody could tell."""
        x = here.action
        key = (x.unit, self._slot(role, x, False)[0])
        before = self.signals.get(key, 0)
        clock = self.clock[role] & ~self.memory | self.chains[x.unit][-1] | before
        self.signals[key] = before | self._arrive(role, here, clock)
        return True

    def pending(self, role: int, here: Place) -> bool:
        """What is older than the newest n operations is over."""
        chain = self.chains[here.action.unit]
        self.clock[role] |= chain[max(0, len(chain) - 1 - here.action.groups)]
        return True

    def _issued(self, role: int) -> int:
        """All that the role has issued so far, finished or not (for `Rules.vouch`)."""
        found = 0
        for x in self.layout.system.roles[role].actions:
            if x.do is Do.ISSUE:
                found |= self.chains[x.unit][-1]
        return found

    # memory ---------------------------------------------------------------------------------------
    def touch(self, role: int, here: Place) -> bool:
        """The role's own reads and writes, over (but for fences and waits) with its next step."""
        self.clock[role] |= self._access(here, self.clock[role], role)
        return True

    def fence(self, role: int, _here: Place) -> bool:
        """The role's shared memory writes become visible to asynchronous operations."""
        self.clock[role] |= self.unfenced[role]
        self.unfenced[role] = 0
        return True

    def settle(self, role: int, here: Place) -> bool:
        """The role's tensor memory loads (stores) are over, and seen."""
        loads, stores = self.unsettled[role]
        if here.action.do is Do.SETTLE_LOADS:
            self.clock[role] |= loads
            self.unsettled[role] = (0, stores)
        else:
            self.clock[role] |= stores
            self.unsettled[role] = (loads, 0)
        return True

    def _cell(self, use: Use, here: Place) -> tuple[int, int]:
        """(slot of the region, version) that an access means."""
        version = use.a * here.block + use.b if use.a else here.tile
        return self.layout.cells[use.region] + version % self.layout.system.regions[
            use.region
        ].stages, version

    def _access(self, here: Place, clock: int, role: int | None) -> int:
        """Checks what begins here against what `clock` knows; returns what is known once it is
        over.

        `role` is None for asynchronous operations.
        """
        found = []
        for use in here.action.uses:
            n, version = self._cell(use, here)
            found.append((n, use, (version, use.rank)))
            self._check(n, use, (version, use.rank), here, clock, role)
        known = 0
        for n, use, key in found:
            known |= self._keep(n, use, key, here, clock, role)
        return known

    def _check(
        self, n: int, use: Use, key: tuple[int, int], here: Place, clock: int, role: int | None
    ) -> None:
        cell = self.cells[n]
        for other in cell.writes:
            self._ordered(here, use, key, other, clock, role is None)
        if use.write:
            for other in cell.reads:
                self._ordered(here, use, key, other, clock, role is None)
            if cell.top > key and not any(r.key > key for r in cell.reads):
                self.fault(Fault(kind="race", at=here, region=use.region, late=True))

    def _ordered(
        self, here: Place, use: Use, key: tuple[int, int], other: Record, clock: int, unit: bool
    ) -> None:
        """The earlier of two keys must be over; the later one first is a fault in any case."""
        known = clock & (other.async_needs if unit else other.role_needs)
        if other.key == key or (other.key < key and known):
            return
        late = other.key > key
        if late and not known:  # neither waits for the other: the later one should
            fault = Fault(kind="race", at=other.place, other=here, region=use.region)
        else:
            fault = Fault(kind="race", at=here, other=other.place, region=use.region, late=late)
        self.fault(fault)

    def _keep(
        self, n: int, use: Use, key: tuple[int, int], here: Place, clock: int, role: int | None
    ) -> int:
        """Records an access that begins; returns the events known at once (to the role) or at its
        end.
        """
        over = self._bit()
        needs, needs_async, known, after = over, over, over, clock | over
        if role is None:
            self.flying = (*self.flying, (over, here))
        elif self.layout.rules.kinds:
            space = self.layout.system.regions[use.region].space
            if space == "tmem":
                loads, stores = self.unsettled[role]
                known, after = 0, after | loads
                self.unsettled[role] = (
                    (loads, stores | over) if use.write else (loads | over, stores)
                )
                self.memory |= over if use.write else 0
            elif space == "smem" and use.write:
                needs_async = self._bit()
                self.unfenced[role] |= needs_async
                self.memory |= over | needs_async
        record, cell = Record(key, needs, needs_async, here, after), self.cells[n]
        if use.write:
            writes = tuple(w for w in cell.writes if w.key == key) if cell.writes else ()
            reads = tuple(r for r in cell.reads if r.key >= key)
            self.cells[n] = Cell((*writes, record), reads, cell.top)
        else:
            reads = tuple(r for r in cell.reads if not after & r.role_needs)
            self.cells[n] = Cell(cell.writes, (*reads, record), max(cell.top, key))
        return known

    fields: ClassVar[tuple[str, ...]] = __slots__
    steps: ClassVar[dict[Do, Callable[..., bool]]] = {
        Do.WAIT: wait,
        Do.ARRIVE: arrive,
        Do.SYNC: sync,
        Do.TOUCH: touch,
        Do.ISSUE: issue,
        Do.COMMIT: commit,
        Do.LOAD: load,
        Do.PENDING: pending,
        Do.FENCE: fence,
        Do.SETTLE_LOADS: settle,
        Do.SETTLE_STORES: settle,
    }


def run_word(
    system: System, word: tuple[int, ...], rules: Rules = HARDWARE, is_open: bool = False
) -> Run:
    """The run of one word (block counts of the tiles); `is_open`: its last tile and the word go
    on.
    """
    run = Run(system, rules)
    for n, blocks in enumerate(word):
        for _ in range(blocks):
            run.block()
        if n + 1 < len(word) or not is_open:
            run.close()
    return run if is_open else run.end()
