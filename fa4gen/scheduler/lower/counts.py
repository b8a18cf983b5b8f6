"""Arrival counts, transaction bytes and places of the barriers, from the signals that the roles
give."""

from dataclasses import dataclass, replace

from fa4gen.ir.ops import Unit
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import BarrierPlan, Contribution, Lanes
from fa4gen.ir.schedule import Barrier, Role, Schedule
from fa4gen.target import find_target

from .events import OpEvent, RoleEvents, SignalEvent, WaitEvent

FIRST_NAMED_ID = 1  # id 0 is the CTA's own barrier


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The barrier table, and the ring depth of every mbarrier."""

    barriers: tuple[BarrierPlan, ...]
    stages: dict[str, int]
    mbarriers: int


def lanes_of(schedule: Schedule, by: Unit) -> Lanes:
    """Who arrives for an operation of a unit: all threads for their own work (a lane of each warp,
    where registers are the warps' own), one lane for a warp's."""
    match by:
        case Unit.WARP:
            return Lanes.ALL if find_target(schedule.target).tmem_columns else Lanes.WARPS
        case Unit.TMA_STORE:
            return Lanes.LEADER
        case _:
            return Lanes.ELECTED


def stages_of(schedule: Schedule, plan: Plan) -> dict[str, int]:
    """Ring depth of each declared barrier."""
    return {b.name: plan.stages[b.ring] if b.ring else 1 for b in schedule.barriers}


def place_barriers(
    schedule: Schedule,
    plan: Plan,
    roles: list[RoleEvents],
    tx_bytes: dict[str, tuple[int, ...]],
    joins: dict[str, str],
) -> Placed:
    """The table; `joins`: barriers inside one role (name -> role), by which its warps meet."""
    stages = stages_of(schedule, plan)
    table: list[BarrierPlan] = []
    base, named = 0, FIRST_NAMED_ID
    used = {
        e.barrier for r in roles for s in r.sections.values() for e in s if isinstance(e, WaitEvent)
    }
    for barrier in schedule.barriers:
        if barrier.name not in used:
            continue  # an edge inside one role
        found = _contributions(schedule, roles, barrier)
        instances = schedule.index.count if barrier.per else 1
        if barrier.kind == "named":
            waiters = _waiting_threads(schedule, roles, barrier.name)
            table.append(
                BarrierPlan(
                    name=barrier.name,
                    named=True,
                    base=named,
                    instances=instances,
                    arrive_count=sum(c.arrivals for c in found) + waiters,
                    contributions=found,
                    span=barrier.span,
                )
            )
            named += instances
            continue
        table.append(
            BarrierPlan(
                name=barrier.name,
                base=base,
                instances=instances,
                stages=stages[barrier.name],
                arrive_count=sum(c.arrivals for c in found),
                tx_bytes=max(tx_bytes.get(barrier.name, (0,))),
                tx_turns=_turns(tx_bytes.get(barrier.name, ())),
                contributions=found,
                span=barrier.span,
            )
        )
        base += instances * stages[barrier.name]
    for turn in schedule.turns:
        role = schedule.role(turn.role)
        threads = 32 * role.warps
        table.append(
            BarrierPlan(
                name=turn.name,
                named=True,
                base=named,
                instances=schedule.index.count,
                arrive_count=2 * threads,
                contributions=(
                    Contribution(
                        role=turn.role, operations=("the holder before",), arrivals=threads
                    ),
                    Contribution(role=turn.role, operations=("the next holder",), arrivals=threads),
                ),
                span=turn.span,
            )
        )
        named += schedule.index.count
    for name, role_name in joins.items():
        role = schedule.role(role_name)
        instances = schedule.index.count if role.per else 1
        threads = 32 * role.warps
        table.append(
            BarrierPlan(
                name=name,
                named=True,
                base=named,
                instances=instances,
                arrive_count=threads,
                contributions=(
                    Contribution(role=role_name, operations=("all warps",), arrivals=threads),
                ),
                span=role.span,
            )
        )
        named += instances
    return Placed(barriers=tuple(table), stages=stages, mbarriers=base)


def _turns(items: tuple[int, ...]) -> tuple[int, ...]:
    """Bytes of items in turn, where they differ."""
    return items if len(set(items)) > 1 else ()


def arrivals(schedule: Schedule, barrier: Barrier, role: Role, by: Unit) -> int:
    """Arrivals of one instance of a role in one phase; threads, at a named barrier."""
    warps = role.active or role.warps
    lanes = Lanes.ALL if barrier.kind == "named" else lanes_of(schedule, by)
    if by not in (Unit.WARP, Unit.WGMMA):
        return 1
    return 32 * warps if lanes is Lanes.ALL else warps


def _contributions(
    schedule: Schedule, roles: list[RoleEvents], barrier: Barrier
) -> tuple[Contribution, ...]:
    """One for each role instance (or operation instance) that arrives in every phase.

    Operations of one role that take turns, one in each phase, are one contribution.
    """
    found: dict[tuple[str, object], Contribution] = {}
    for r in roles:
        role = schedule.role(r.role)
        for signal in (s for events in r.sections.values() for e in events for s in _signals(e)):
            if signal.barrier != barrier.name:
                continue
            key = (r.role, None if barrier.per or barrier.ring else signal.instance)
            copies = schedule.index.count if role.per and signal.instance is None else 1
            first = found.setdefault(
                key,
                Contribution(
                    role=r.role,
                    operations=(signal.operation,),
                    arrivals=copies * arrivals(schedule, barrier, role, signal.by),
                ),
            )
            if signal.operation not in first.operations:
                found[key] = replace(first, operations=(*first.operations, signal.operation))
    return tuple(found.values())


def _signals(event: object) -> tuple[SignalEvent, ...]:
    if isinstance(event, SignalEvent):
        return (event,)
    return event.signals if isinstance(event, OpEvent) else ()


def _waiting_threads(schedule: Schedule, roles: list[RoleEvents], name: str) -> int:
    for r in roles:
        if any(
            isinstance(e, WaitEvent) and e.barrier == name for s in r.sections.values() for e in s
        ):
            return 32 * schedule.role(r.role).warps
    return 0
