"""The printed slots and parities, run: at every barrier they must be what counting gives.

The hardware sees variables (`kv_slot`, `kv_phase`, `v_at`), the proof counts. Each role is run by
itself over all orders of its sections until no new state of its variables and counts appears; these
are finite, since counts matter modulo twice the depth of a ring. The slot of an operand or of a
copy's destination must moreover be the one that holds its version.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from fa4gen.diag import Diagnostic
from fa4gen.ir import program as ir
from fa4gen.ir.program import Access, KernelProgram, Relative, RoleProgram, Slot, Stmt

State = tuple[tuple[str, int], ...]  # variables and counters, sorted
BLOCK = "#block"  # how many blocks have begun, modulo the depth of every ring
NEXT_SECTIONS = {
    "start": ("first", "end"),
    "first": ("rest", "last"),
    "rest": ("rest", "last"),
    "last": ("first", "end"),
}


def check_cursors(program: KernelProgram) -> Iterator[Diagnostic]:
    """FA0319: a slot or parity variable that differs from the count (or has no value)."""
    for role in program.roles:
        for instance in range(role.instances):
            found = _explore(_Machine(program=program, role=role, instance=instance))
            if found is not None:
                yield found
                break


def _explore(machine: "_Machine") -> Diagnostic | None:
    role = machine.role
    bodies: dict[str, tuple[tuple[Stmt, ...], ...]] = {
        "start": (role.start,),
        "first": ((*role.before, *role.first),),
        "rest": tuple(s.body for s in role.segments) or ((),),
        "last": (role.last,),
        "end": (role.end,),
    }
    begin = {f"{c.name}_phase": c.phase for c in role.cursors}
    begin |= {f"{c.name}_slot": 0 for c in role.cursors if c.stages > 1}
    begin[BLOCK] = 0
    turns = lcm(*(r.stages for r in machine.program.regions))
    todo: deque[tuple[str, dict[str, int], tuple[str, ...]]] = deque([("start", begin, ())])
    seen: set[tuple[str, State]] = set()
    while todo:
        section, state, path = todo.popleft()
        for body in bodies[section]:
            after = dict(state)
            fault = machine.run(section, body, after, path)
            if fault is not None:
                return fault
            if section in ("first", "rest"):
                after[BLOCK] = (after[BLOCK] + 1) % turns
            key = (section, tuple(sorted(after.items())))
            if key in seen:
                continue
            seen.add(key)
            todo += [(then, after, (*path, section)) for then in NEXT_SECTIONS.get(section, ())]
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """One instance of a role, executing its variables."""

    program: KernelProgram
    role: RoleProgram
    instance: int

    def run(
        self, section: str, body: tuple[Stmt, ...], state: dict[str, int], path: tuple[str, ...]
    ) -> Diagnostic | None:
        """Executes one section on `state`; the first disagreement."""
        for s in body:
            if s.only is not None and s.only != self.instance:
                continue
            ahead = section in ("first", "rest")  # else the last block is the one before
            wrong = self._step(s, state, state[BLOCK] - s.prev - (not ahead))
            if wrong:
                return self._fault(s, wrong, section, path)
        return None

    def _step(self, s: Stmt, state: dict[str, int], block: int) -> str:
        match s:
            case ir.Take():
                state[s.name] = state.get(f"{s.cursor}_slot", 0)
            case ir.Keep():
                state[s.name] = state.get(s.of, 0)
            case ir.Advance():
                return self._advance(s.cursor, state)
            case ir.Wait():
                return self._wait(s, state)
            case ir.Arrive() | ir.Commit() | ir.NamedArrive():
                return self._slot(s.on, "arrivals", state)
            case ir.TmaLoad() | ir.BulkLoad() | ir.TryCancel():
                wrong = self._slot(s.on, "arrivals", state)
                return wrong or self._holds(s.on.slot, s.accesses, block, state)
            case ir.NamedSync():
                return self._slot(s.on, "rounds", state)
            case ir.Wgmma():
                slot = s.a_slot or s.b_slot
                return self._holds(slot, s.accesses, block, state)
            case ir.Call() | ir.Umma():
                return self._holds("", s.accesses, block, state)
        return ""

    def _advance(self, name: str, state: dict[str, int]) -> str:
        cursor = next((c for c in self.role.cursors if c.name == name), None)
        if cursor is None:
            return f"there is no cursor `{name}`"
        if cursor.stages == 1:
            state[f"{name}_phase"] ^= 1
            return ""
        slot = (state[f"{name}_slot"] + 1) % cursor.stages
        state[f"{name}_slot"] = slot
        state[f"{name}_phase"] ^= slot == 0
        return ""

    def _count(self, on: Slot, what: str, state: dict[str, int]) -> tuple[int, int]:
        """(count of this wait or arrival modulo two laps, depth of the ring)."""
        stages = next((b.stages for b in self.program.barriers if b.name == on.barrier), 1)
        instance = on.instance
        if isinstance(instance, Relative):
            step = int(instance is Relative.NEXT)
            instance = (self.instance + step) % self.role.instances
        key = f"#{what} {on.barrier} {instance or 0}"
        count = state.get(key, 0)
        state[key] = (count + 1) % (2 * stages)
        return count, stages

    def _slot(self, on: Slot, what: str, state: dict[str, int]) -> str:
        count, stages = self._count(on, what, state)
        return self._differs(on, count % stages, stages, state)

    def _wait(self, s: ir.Wait, state: dict[str, int]) -> str:
        count, stages = self._count(s.on, "waits", state)
        wrong = self._differs(s.on, count % stages, stages, state)
        if wrong:
            return wrong
        parity = (count // stages - s.free) & 1
        printed = self._value(s.phase, state)
        if printed != parity:
            return f"`{s.phase}` is {_number(printed)}, and its next phase has parity {parity}"
        return ""

    def _differs(self, on: Slot, slot: int, stages: int, state: dict[str, int]) -> str:
        if stages == 1 and not on.slot:
            return ""
        printed = self._value(on.slot, state)
        if printed == slot:
            return ""
        return f"`{on.slot}` is {_number(printed)}, and its next slot of `{on.barrier}` is {slot}"

    def _holds(
        self, slot: str, accesses: tuple[Access, ...], block: int, state: dict[str, int]
    ) -> str:
        """The ring's operand (destination) lies in the slot of its version."""
        for a in accesses:
            region = next((r for r in self.program.regions if r.name == a.region), None)
            if region is None or region.stages == 1 or not a.a:
                continue
            held = (a.a * block + a.b) % region.stages
            name = a.slot or slot
            printed = self._value(name or "0", state)
            if printed != held:
                data = f"its data is in slot {held} of `{a.region}`"
                return f"`{name}` is {_number(printed)}, and {data}"
        return ""

    def _value(self, name: str, state: dict[str, int]) -> int | None:
        return int(name) if name.isdigit() else state.get(name)

    def _fault(self, s: Stmt, wrong: str, section: str, path: tuple[str, ...]) -> Diagnostic:
        blocks = 0
        for n in path[::-1]:
            if n == "last":
                break
            blocks += n in ("first", "rest")
        tile = path.count("last")
        on = getattr(s, "on", None)
        where = f"`{on.barrier}`" if isinstance(on, Slot) else "its operand"
        place = (
            f"block {blocks} of tile {tile}"
            if section in ("first", "rest")
            else f"`{section}` of tile {tile}"
        )
        return Diagnostic(
            code="FA0319",
            title=f"`{self.role.name}` takes another slot or parity of {where} than counting gives",
            span=s.span,
            label=f"at {place} {wrong}",
            why="the barrier would be another than the one that the proof speaks of",
            fix="advance the cursor once for each wait, on every path",
        )


def _number(value: int | None) -> str:
    return "without a value" if value is None else str(value)
