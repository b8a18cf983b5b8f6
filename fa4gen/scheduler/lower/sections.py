"""Prologue, loop and drain by rotation: which operation stands in which section of a role, and
when.

A role whose furthest operation runs A blocks ahead executes, for n blocks, j = -A … n-1, and in
each an operation of ahead a if 0 <= j + a < n. For A = 1 that is `first` (j = -1), `rest` (each j
that has all its operations) and `last` (j = n - 1); for A = 0 every block is alike.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fa4gen.diag import Span, error
from fa4gen.ir.program import OWN, Relative
from fa4gen.ir.schedule import Operation, Schedule, Step

SECTIONS = ("before", "first", "rest", "last")


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One operation (or one part of it) at one place of a role's program.

    `prev`: it works on the block before the loop's; `tile_first`/`tile_last`: its first and last
    occurrence in a tile may be decided here; `head`: no block has gone before (block 0).
    """

    operation: Operation
    instance: int | Relative | None
    part: int | None
    parts: int
    section: str
    ahead: int
    level: str  # 'tile' | 'block'
    prev: bool = False
    head: bool = False
    uniform: bool = False  # block 0 is an iteration of the same loop
    span: Span | None = None

    @property
    def last_part(self) -> bool:
        """Whether the operation is complete with this part."""
        return self.part is None or self.part == self.parts - 1

    @property
    def first_part(self) -> bool:
        """Whether the operation begins with this part."""
        return not self.part


def depth(schedule: Schedule, role: str) -> int:
    """How many blocks the role's furthest operation runs ahead (0 or 1)."""
    steps = schedule.steps_of(role).block
    ahead = max((s.ahead for s in steps), default=0)
    if ahead > 1 or min((s.ahead for s in steps), default=0) < 0:
        span = next((s.span for s in steps if s.ahead not in (0, 1)), None)
        raise error(
            "FA0602",
            f"`{role}` runs {ahead} blocks ahead; lowering knows 0 and 1",
            span=span,
            fix="write `+1`, or leave it out",
        )
    return ahead if any(s.ahead == 0 for s in steps) else 0


def sections(schedule: Schedule, role: str) -> dict[str, tuple[Occurrence, ...]]:
    """The role's operations, section by section, parts apart."""
    steps = schedule.steps_of(role)
    ahead = depth(schedule, role)
    per = schedule.role(role).per

    def place(
        step: Step, section: str, level: str, *, prev: bool = False, head: bool = False
    ) -> Iterator[Occurrence]:
        operation = schedule.operation(step.operation)
        parts = _parts(schedule, operation)
        for part in range(parts) if parts > 1 else (None,):
            yield Occurrence(
                operation=operation,
                instance=OWN if per else step.instance,
                part=part,
                parts=parts,
                section=section,
                ahead=step.ahead,
                level=level,
                prev=prev,
                head=head,
                span=operation.span or step.span,
            )

    out: dict[str, list[Occurrence]] = {s: [] for s in SECTIONS}
    for step in steps.tile:
        out["before"] += place(step, "before", "tile", head=True)
    if ahead:
        for step in steps.block:
            if step.ahead:
                out["first"] += place(step, "first", "block", head=True)
            out["rest"] += place(step, "rest", "block", prev=not step.ahead)
            if not step.ahead:
                out["last"] += place(step, "last", "block")
    else:
        for step in steps.block:
            out["first"] += place(step, "first", "block", head=True)
            out["rest"] += place(step, "rest", "block")
    for step in steps.after:
        out["last"] += place(step, "last", "tile")
    return {s: tuple(o) for s, o in out.items()}


def _parts(schedule: Schedule, operation: Operation) -> int:
    """How many parts an operation has: as many as the buffer that it hands over, or takes, in
    parts."""
    for item in (*operation.writes, *([operation.a] if operation.a else [])):
        try:
            buffer = schedule.buffer_of(item)
        except KeyError:
            continue
        if len(buffer.parts) > 1:
            return len(buffer.parts)
    return 1
