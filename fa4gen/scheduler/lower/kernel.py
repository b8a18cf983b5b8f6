"""Schedule and plan to a kernel program: events of each role, cursors, then the target's
statements."""

from dataclasses import replace
from typing import Protocol

from fa4gen.diag import error
from fa4gen.ir.head import Head
from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import (
    OWN,
    Arrive,
    BarrierPlan,
    Commit,
    Define,
    KernelProgram,
    NamedArrive,
    NamedSync,
    Repeat,
    RoleProgram,
    Slot,
    Stmt,
    UnitPlan,
)
from fa4gen.ir.schedule import Role, Schedule
from fa4gen.scheduler.check_turns import ordered
from fa4gen.scheduler.semaphores import ASSUMPTION

from .blocks import LISTS, SAME_LISTS, named_blocks, segments
from .counts import lanes_of, place_barriers, stages_of
from .cursors import Cursors, cursors, initial
from .events import (
    Event,
    KeepEvent,
    OpEvent,
    PendingEvent,
    RoleEvents,
    SignalEvent,
    WaitEvent,
    role_events,
)
from .regions import storage
from .sections import Occurrence
from .sm90 import Sm90
from .sm90_backward import Sm90Backward
from .sm100 import Sm100
from .sm100_backward import Sm100Backward


class Target(Protocol):
    """What a target's lowering answers; one class for each target."""

    def operation(self, event: OpEvent, cursors: Cursors) -> list[Stmt]: ...
    def pending(self, event: PendingEvent, role: Role) -> list[Stmt]: ...
    def tx_bytes(self, o: Occurrence) -> int: ...
    def joins(self) -> dict[str, str]: ...
    def setup(self, role: Role) -> tuple[Define, ...]: ...
    def tile(self, role: Role) -> tuple[Define, ...]: ...
    def begin(self, role: Role) -> tuple[Stmt, ...]: ...
    def end(self, role: Role) -> tuple[Stmt, ...]: ...
    def uniform(self, role: Role) -> bool: ...
    def repeat(self, role: Role) -> Repeat | None: ...
    def head(self, base: tuple[Define, ...], mbarriers: tuple[tuple[str, str], ...]) -> Head: ...


Lowering = type[Sm90] | type[Sm100] | type[Sm90Backward] | type[Sm100Backward]
LOWERINGS: dict[tuple[str, str], Lowering] = {
    ("attention_forward", "sm_90a"): Sm90,
    ("attention_forward", "sm_100a"): Sm100,
    ("attention_forward", "sm_103a"): Sm100,
    ("attention_backward", "sm_90a"): Sm90Backward,
    ("attention_backward", "sm_100a"): Sm100Backward,
    ("attention_backward", "sm_103a"): Sm100Backward,
}
ORDERS = {"attention_forward": "descending", "attention_backward": "ascending"}


def lower(plan: Plan) -> KernelProgram:
    """The kernel of a verified plan. Raises Fa4genError (FA06xx) for what the target lacks."""
    schedule = plan.schedule
    order = ORDERS[schedule.kernel]
    if schedule.order != order or schedule.empty != "mask":
        raise error(
            "FA0603",
            f"blocks in `{schedule.order}` order with `empty: {schedule.empty}` cannot be printed",
            span=schedule.level_spans.get("block"),
            fix=f"write `order: {order}, empty: mask`",
        )
    lowering = LOWERINGS.get((schedule.kernel, schedule.target))
    if lowering is None:
        raise error("FA0601", f"{schedule.target} has no `{schedule.kernel}`", span=schedule.span)
    stages = stages_of(schedule, plan)
    regions = storage(schedule, dict(plan.stages), dict(plan.columns), dict(plan.widths))
    target: Target = lowering(plan=plan, storage=regions)
    events = [_uniform(role_events(schedule, r.name), target.uniform(r)) for r in schedule.roles]
    placed = place_barriers(schedule, plan, events, _tx_bytes(events, target), target.joins())
    known = {b.name for b in placed.barriers}
    roles = tuple(
        _role(plan, target, schedule.role(e.role), e, cursors(_kept(e, known), stages), known)
        for e in events
    )
    return KernelProgram(
        name=schedule.name,
        target=schedule.target,
        schedule_file=schedule.file,
        roles=roles,
        barriers=placed.barriers,
        regions=regions.regions,
        units=_units(schedule),
        threads=plan.threads,
        assumptions=(
            *((SAME_LISTS,) if schedule.over in LISTS else ()),
            *((ASSUMPTION,) if ordered(schedule) else ()),
        ),
        head=target.head(_constants(placed.barriers), _inits(placed.barriers)),
    )


def _uniform(role: RoleEvents, uniform: bool) -> RoleEvents:
    """Marks the operations of roles whose block 0 is an iteration of the loop."""
    if role.depth or not uniform or not role.sections["rest"]:
        return role
    if any(_absent(e) for e in role.sections["first"]):
        return role

    def mark(e: Event) -> Event:
        return (
            replace(e, occurrence=replace(e.occurrence, uniform=True))
            if isinstance(e, OpEvent)
            else e
        )

    changed = {"rest": tuple(mark(e) for e in role.sections["rest"])}
    return replace(role, sections={**role.sections, **changed})


def _absent(event: Event) -> bool:
    return isinstance(event, OpEvent) and event.occurrence.operation.options.get("first") == "none"


def _kept(role: RoleEvents, known: set[str]) -> RoleEvents:
    return replace(
        role,
        sections={
            n: tuple(
                e
                for e in events
                if not isinstance(e, WaitEvent | SignalEvent) or e.barrier in known
            )
            for n, events in role.sections.items()
        },
    )


def _role(
    plan: Plan, target: Target, role: Role, events: RoleEvents, at: Cursors, known: set[str]
) -> RoleProgram:
    schedule = plan.schedule
    events = _kept(events, known)
    merged = any(isinstance(e, OpEvent) and e.occurrence.uniform for e in events.sections["rest"])

    def statements(section: str) -> tuple[Stmt, ...]:
        found = events.sections[section]
        done = (e.occurrence for e in found if isinstance(e, OpEvent))
        out: list[Stmt] = list(named_blocks(schedule, done))
        out += [s for e in found for s in _statements(e, target, schedule, role, at)]
        return (*out, *at.section_end(found))

    repeat = target.repeat(role)
    if repeat and events.depth:
        step = next(s for s in schedule.steps_of(role.name).block if s.ahead)
        raise error(
            "FA0602",
            f"`{step.operation}` runs a block ahead in `{role.name}`, whose blocks are counted "
            "anew for each head that shares the keys",
            span=step.span,
            fix=f"write `{step.operation}` without `+1`: loads run ahead while rings have room",
        )
    rest = statements("rest")
    start, end = _turn_ends(schedule, role)
    return RoleProgram(
        name=role.name,
        instances=schedule.index.count if role.per else 1,
        first_warp=plan.first_warp[role.name],
        warps=role.warps,
        active=role.active or role.warps,
        registers=role.registers,
        registers_change="increase" if role.registers > plan.launch_registers else "decrease",
        cursors=at.cursors,
        setup=(*target.setup(role), *(d for c in at.cursors for d in initial(c))),
        start=start,
        tile=target.tile(role),
        before=(*target.begin(role), *statements("before")),
        merge_first=merged,
        first=rest if merged else statements("first"),
        segments=segments(schedule, rest, merged),
        repeat=repeat,
        last=statements("last"),
        end=(*end, *target.end(role)),
        span=role.span,
    )


def _statements(
    event: Event, target: Target, schedule: Schedule, role: Role, at: Cursors
) -> list[Stmt]:
    match event:
        case WaitEvent() if event.named:
            on = Slot(barrier=event.barrier, instance=event.instance)
            return [NamedSync(on=on, span=event.span, prev=event.prev)]
        case WaitEvent():
            return at.wait(event)
        case SignalEvent():
            return [_signal(event, schedule, at)]
        case KeepEvent():
            return at.keep(event)
        case PendingEvent():
            return target.pending(event, role)
        case _:
            return target.operation(event, at)


def _signal(event: SignalEvent, schedule: Schedule, at: Cursors) -> Stmt:
    slot = ""
    if event.item:
        full = schedule.ring_barrier(event.item, "full")
        slot = at.slot(full, event.item, before=event.prev)
    on = Slot(barrier=event.barrier, instance=event.instance, slot=slot)
    if event.named:
        return NamedArrive(on=on, span=event.span, prev=event.prev)
    if event.by is Unit.TENSOR:
        return Commit(on=on, span=event.span, prev=event.prev)
    return Arrive(on=on, lanes=lanes_of(schedule, event.by), span=event.span, prev=event.prev)


def _turn_ends(schedule: Schedule, role: Role) -> tuple[tuple[Stmt, ...], tuple[Stmt, ...]]:
    """Instance 0 hands itself the token at the start, and takes the last one at the end."""
    turns = [t for t in schedule.turns if t.role == role.name]
    start = tuple(
        NamedArrive(on=Slot(barrier=t.name, instance=OWN), only=0, span=t.span) for t in turns
    )
    end = tuple(
        NamedSync(on=Slot(barrier=t.name, instance=OWN), only=0, span=t.span) for t in turns
    )
    return start, end


def _tx_bytes(events: list[RoleEvents], target: Target) -> dict[str, tuple[int, ...]]:
    """Bytes of each item that fills a barrier's slots, in the order of their turns."""
    out: dict[str, dict[str, int]] = {}
    for role in events:
        for section in role.sections.values():
            for e in (e for e in section if isinstance(e, OpEvent)):
                for s in e.signals:
                    out.setdefault(s.barrier, {})[s.item] = target.tx_bytes(e.occurrence)
    return {barrier: tuple(items.values()) for barrier, items in out.items()}


def _units(schedule: Schedule) -> tuple[UnitPlan, ...]:
    out: dict[str, UnitPlan] = {}
    for o in schedule.operations:
        match KINDS[o.kind].unit:
            case Unit.TENSOR:
                out["tensor"] = UnitPlan(
                    name="tensor",
                    owner=o.role,
                    in_order=True,
                    assumption="tcgen05.mma of one CTA take effect in issue order, "
                    "whatever they accumulate in",
                )
            case Unit.WGMMA | Unit.TMA_STORE as unit:
                name = f"{unit.value}_{o.role}"
                out[name] = UnitPlan(name=name, owner=o.role, in_order=False)
    return tuple(out.values())


def _constants(barriers: tuple[BarrierPlan, ...]) -> tuple[Define, ...]:
    """The first index of each barrier, under its name."""
    return tuple(Define(name=b.name.upper(), text=str(b.base), span=b.span) for b in barriers)


def _inits(barriers: tuple[BarrierPlan, ...]) -> tuple[tuple[str, str], ...]:
    """Index and count of every mbarrier, in order."""
    return tuple(
        (f"{b.name.upper()} + {n}" if n else b.name.upper(), str(b.arrive_count))
        for b in barriers
        if not b.named
        for n in range(b.instances * b.stages)
    )
