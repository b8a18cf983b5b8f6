"""Ground truth: every interleaving of a pipeline over one word, with barriers as hardware has them.

mbarrier: arrivals are counted, `count` of them complete a phase; a wait passes if and only if the
parity of the phase in progress differs from the one asked for. Named barrier: the round in progress
ends with its count-th arrival; whoever joined it goes on. Units finish their operations in issue
order, loads finish in any order (those of one slot in turn), all arbitrarily late; so does a commit
arrive (commits of a unit to one barrier in turn), once the operations that it covers are done.

A state is one number per actor: how many of its steps it has done. Steps that nobody can see early
(issue, commit, starting a load, the begin of an access) are taken with the step before, which is
when they hurt most; steps that nothing can take back (leaving a named barrier, wait_group) are
taken at once; an access by a role lasts until the role's next step. Nothing here knows happens-
before or phases: an access must not begin while one that the program means to come earlier is not
over.

Hard faults are hang, race and drain (all roles have ended, work is in flight). The soft one is
"phase": some wait passes on, or some arrival is counted in, another phase of its barrier in one
interleaving than in another. Hardware does not report that; it is luck if nothing follows.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.pipelines.small import Pipeline
from tests.pipelines.unrolled import Op, Program, expand

HARD = {"hang", "race", "drain"}
IGNORED = ("fence", "settle_load", "settle_store")  # kinds of order are not this oracle's business
Key = tuple[str, ...]
Slot = tuple[str, int]


class Truth(NamedTuple):
    """Faults with an example each; states seen; whether all were."""

    faults: dict[str, str]
    states: int
    complete: bool


class Step(NamedTuple):
    """What a role does where it can be seen."""

    kind: str
    slot: Slot
    parity: int
    unit: str
    idx: int
    where: object


@dataclass
class Queue:
    """One asynchronous actor: a unit, the loads of one slot, a unit's commits to one barrier.

    `entries`: (accesses, what must be over before) of a unit; (accesses, slot) of loads;
    (operations that must be done, slot) of commits. `queued`: how many the issuer has issued, by
    its steps.
    """

    key: tuple[object, ...]
    issuer: int
    entries: list[tuple[int, Any]] = field(default_factory=list)
    queued: list[int] = field(default_factory=list)


class Line:
    """A role: its steps, and per number of steps done what has begun, is over, has arrived."""

    def __init__(
        self, number: int, program: Program, name: str, queues: dict[tuple[object, ...], Queue]
    ) -> None:
        self.number, self.name, self.program, self.queues = number, name, program, queues
        self.steps: list[Step] = []
        self.arrived: list[dict[Slot, int]] = [{}]
        self.queued: list[dict[tuple[object, ...], int]] = [{}]
        self.over, self.begin = [0], [0]
        self.active = self.mine = 0
        for op in program.ops[name]:
            if op.kind not in IGNORED:
                self._add(op)
        if self.active:
            self._step(Step("end", ("", 0), 0, "", 0, ()), arrives=False)

    def _add(self, op: Op) -> None:
        accesses = need = 0
        for i in op.acc:
            accesses |= 1 << i
            need |= self.program.earlier[i]
        need &= ~accesses & ~self.mine
        if op.kind == "touch":
            self.begin[-1] |= need
            self.active |= accesses
            self.mine |= accesses
        elif op.kind in ("issue", "load", "commit"):
            self._queue(op, accesses, need)
        else:
            for kind in {"sync": ("join", "leave")}.get(op.kind, (op.kind,)):
                step = Step(kind, op.slot, op.parity, op.unit, op.idx, op.where)
                self._step(step, arrives=kind in ("arrive", "join"))

    def _queue(self, op: Op, accesses: int, need: int) -> None:
        in_order = self.program.pipeline.units.get(op.unit, False)
        key, entry = {
            "issue": (("unit", op.unit), (accesses, need if in_order else 0)),
            "load": (("load", op.slot, self.name), (accesses, op.slot)),
            "commit": (("commit", op.unit, op.slot[0]), (op.idx, op.slot)),
        }[op.kind]
        if op.kind == "load" or (op.kind == "issue" and not in_order):
            self.begin[-1] |= need
        self.queues.setdefault(key, Queue(key, self.number)).entries.append(entry)
        self.queued[-1] = {**self.queued[-1], key: self.queued[-1].get(key, 0) + 1}

    def _step(self, step: Step, *, arrives: bool) -> None:
        self.steps.append(step)
        arrived = self.arrived[-1]
        if arrives:
            arrived = {**arrived, step.slot: arrived.get(step.slot, 0) + 1}
        self.arrived.append(arrived)
        self.queued.append(self.queued[-1])
        self.over.append(self.over[-1] | self.active)
        self.begin.append(0)
        self.active = 0


class Explorer:
    """All states of one pipeline over one word. Actors: roles, then units, loads and commits."""

    def __init__(self, pipeline: Pipeline, word: tuple[int, ...], limit: int) -> None:
        self.limit, self.program = limit, expand(pipeline, word)
        queues: dict[tuple[object, ...], Queue] = {}
        self.lines = [Line(n, self.program, r.name, queues) for n, r in enumerate(pipeline.roles)]
        for q in queues.values():
            q.queued = [done.get(q.key, 0) for done in self.lines[q.issuer].queued]
        self.actors = list(queues.values())
        self.roles, self.total = len(self.lines), len(self.lines) + len(self.actors)
        self.actor = {q.key: self.roles + n for n, q in enumerate(self.actors)}
        self.over = [line.over for line in self.lines]
        self.over += [
            _running([0 if q.key[0] == "commit" else e[0] for e in q.entries]) for q in self.actors
        ]
        self.ends = [len(x.steps) for x in self.lines] + [len(q.entries) for q in self.actors]
        self.in_order = [
            self.actor[q.key]
            for q in self.actors
            if q.key[0] == "unit" and pipeline.units[str(q.key[1])]
        ]
        self.by_actor: dict[Slot, list[tuple[int, list[int]]]] = {}
        self._arrivals()
        self.count = {slot: pipeline.bars[slot[0]].count for slot in self.by_actor}
        self.faults: dict[str, str] = {}
        self.seen: set[tuple[int, ...]] = set()
        self.stack: list[tuple[int, ...]] = []
        self.met: dict[object, int] = {}

    def _arrivals(self) -> None:
        """Who arrives where, by position."""
        for n, line in enumerate(self.lines):
            for slot in line.arrived[-1]:
                self.by_actor.setdefault(slot, []).append(
                    (n, [d.get(slot, 0) for d in line.arrived])
                )
        for q in self.actors:
            for slot in {e[1] for e in q.entries} if q.key[0] != "unit" else ():
                by = _running([int(e[1] == slot) for e in q.entries], add=True)
                self.by_actor.setdefault(slot, []).append((self.actor[q.key], by))

    # what a state means ---------------------------------------------------------------------------
    def arrivals(self, state: tuple[int, ...] | list[int], slot: Slot) -> int:
        """Arrivals so far at one barrier."""
        return sum(by[state[i]] for i, by in self.by_actor.get(slot, ()))

    def phases(self, state: tuple[int, ...] | list[int], slot: Slot) -> int:
        """Phases completed."""
        n = self.arrivals(state, slot)
        return n // self.count[slot] if n else 0

    def _meets(self, event: object, phase: int, where: object) -> None:
        if self.met.setdefault(event, phase) != phase:
            self.faults.setdefault("phase", f"{where} meets phase {phase} or {self.met[event]}")

    def _begins(self, state: tuple[int, ...] | list[int], i: int) -> None:
        """May what begins where role i has come to begin?"""
        self._needs(state, self.lines[i].begin[state[i]], self.lines[i].name)

    def _needs(self, state: tuple[int, ...] | list[int], need: int, who: str) -> None:
        for over, at in zip(self.over, state, strict=False):
            need &= ~over[at]
        if need:
            a = self.program.acc[(need & -need).bit_length() - 1]
            text = f"{who} begins on {a[0]}, slot {a[1]}, before {a[5]} is over"
            self.faults.setdefault("race", text)

    # exploration ----------------------------------------------------------------------------------
    def explore(self) -> Truth:
        """Visits all states, or until a hard fault or the limit."""
        begin = [0] * self.total + [-1] * self.roles  # joined rounds behind the positions
        for i in range(self.roles):
            self._begins(begin, i)
        self._reach(begin, None)
        while self.stack and not HARD & self.faults.keys():
            if len(self.seen) > self.limit:
                return Truth(self.faults, len(self.seen), False)
            state = self.stack.pop()
            moved = [self._role_step(state, i) for i in range(self.roles)]
            running = any(state[i] < self.ends[i] for i in range(self.roles))
            moved += [self._unit_step(state, u, running) for u in range(self.roles, self.total)]
            if running and not any(moved):
                at = [
                    f"{x.name} at {x.steps[p]}"
                    for x, p in zip(self.lines, state, strict=False)
                    if p < len(x.steps)
                ]
                self.faults.setdefault("hang", "; ".join(at))
        return Truth(self.faults, len(self.seen), True)

    def _role_step(self, state: tuple[int, ...], i: int) -> bool:
        at = state[i]
        if at == self.ends[i] or self.lines[i].steps[at].kind in ("leave", "pending"):
            return False
        step = self.lines[i].steps[at]
        new = list(state)
        if step.kind in ("wait", "arrive", "join"):
            phase = self.phases(state, step.slot)
            if step.kind == "wait":
                if phase & 1 == step.parity:
                    return False
                phase -= 1
            self._meets((i, at), phase, step.where)
            if step.kind == "join":
                new[self.total + i] = phase
        new[i] = at + 1
        self._reach(new, i)
        return True

    def _unit_step(self, state: tuple[int, ...], u: int, running: bool) -> bool:
        q, at = self.actors[u - self.roles], state[u]
        if at >= q.queued[state[q.issuer]]:
            return False
        covered, slot = q.entries[at]
        if q.key[0] == "commit" and covered and state[self.actor["unit", q.key[1]]] < covered:
            return False
        if not running and q.key[0] != "commit":
            self.faults.setdefault("drain", f"{q.key} is at work when all roles have ended")
        if q.key[0] != "unit":
            self._meets((u, at), self.phases(state, slot), q.key)
        new = list(state)
        new[u] = at + 1
        self._reach(new, None)
        return True

    def _reach(self, state: list[int], mover: int | None) -> None:
        """Looks at what begins here; takes the steps that nothing can take back."""
        if mover is not None:
            self._begins(state, mover)
        while any(self._cannot_be_undone(state, i) for i in range(self.roles)):
            pass
        new = tuple(state)
        if new in self.seen:
            return
        self.seen.add(new)
        self.stack.append(new)
        for u in self.in_order:
            q, at = self.actors[u - self.roles], new[u]
            if at < q.queued[new[q.issuer]]:
                self._needs(new, q.entries[at][1], f"operation {at} of {q.key[1]}")

    def _cannot_be_undone(self, state: list[int], i: int) -> bool:
        at = state[i]
        if at == self.ends[i]:
            return False
        step = self.lines[i].steps[at]
        over = step.kind == "leave" and self.phases(state, step.slot) > state[self.total + i]
        if step.kind == "pending":
            over = not step.idx or state[self.actor["unit", step.unit]] >= step.idx
        if over:
            state[i] += 1
            state[self.total + i] = -1
            self._begins(state, i)
        return over


def explore(pipeline: Pipeline, word: tuple[int, ...], limit: int = 500_000) -> Truth:
    """Every interleaving of one word."""
    return Explorer(pipeline, word, limit).explore()


def _running(values: list[int], *, add: bool = False) -> list[int]:
    """Running sums (`add`) or unions of bit masks."""
    out = [0]
    for v in values:
        out.append(out[-1] + v if add else out[-1] | v)
    return out
