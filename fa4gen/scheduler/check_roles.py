"""Roles: how many warps a CTA has, where warpgroups lie, and whether the register file is enough.

Warps are numbered in the order of roles. Registers are given and taken by whole warpgroups
(setmaxnreg), so roles that share one must agree; the last one is filled up with idle warps, which
take part in it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fa4gen.diag import Diagnostic, Note
from fa4gen.dtypes import resolve
from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.schedule import Role, Schedule, Space
from fa4gen.target import Target

THREADS = 32  # of a warp


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """One instance of a role, and its first warp."""

    role: Role
    first: int

    def groups(self, warps: int) -> range:
        """The warpgroups that it has warps in."""
        return range(self.first // warps, (self.first + self.role.warps - 1) // warps + 1)


def check(schedule: Schedule, target: Target) -> list[Diagnostic]:
    """All faults of warps and registers: FA0501-FA0508."""
    places = _places(schedule)
    return [
        *_warps(schedule, target, places),
        *_registers(schedule, target),
        *_groups(target, places),
        *_file(schedule, target, places),
        *_whole_groups(schedule, target, places),
        *_tiles_in_registers(schedule),
        *_named_barriers(schedule, target),
    ]


def launch_registers(target: Target, warps: int) -> int:
    """Registers a thread starts with, where the last warpgroup is filled up with idle warps."""
    groups = -(-warps // target.warpgroup_warps)
    threads = groups * target.warpgroup_warps * THREADS
    step = target.registers_step
    return target.registers // threads // step * step


def _places(schedule: Schedule) -> list[_Place]:
    places: list[_Place] = []
    first = 0
    for role in schedule.roles:
        for _ in range(schedule.index.count if role.per else 1):
            places.append(_Place(role=role, first=first))
            first += role.warps
    return places


def _count(places: list[_Place]) -> int:
    return sum(p.role.warps for p in places)


def _shape(schedule: Schedule) -> str:
    """'softmax 2 x 4, correction 4': who has how many warps."""
    return ", ".join(
        f"{r.name} {f'{schedule.index.count} x ' if r.per else ''}{r.warps}" for r in schedule.roles
    )


def _warps(schedule: Schedule, target: Target, places: list[_Place]) -> Iterator[Diagnostic]:
    if _count(places) > target.warps:
        last = next(p for p in places if p.first + p.role.warps > target.warps)
        yield Diagnostic(
            code="FA0501",
            title=f"{_count(places)} warps, a CTA may have {target.warps}: {_shape(schedule)}",
            span=last.role.span,
            why=f"{target.registers} registers among more threads leave each with less than 128",
        )
    for role in schedule.roles:
        if role.active is not None and role.active > role.warps:
            yield Diagnostic(
                code="FA0506",
                title=f"`{role.name}` has {role.active} active warps of {role.warps}",
                span=role.span,
            )


def _registers(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    step, low, high = target.registers_step, target.registers_min, target.registers_max
    for role in schedule.roles:
        if role.registers % step or not low <= role.registers <= high:
            near = min(max(role.registers // step * step, low), high)
            yield Diagnostic(
                code="FA0502",
                title=f"`{role.name}` asks for {role.registers} registers a thread; there are "
                f"multiples of {step} from {low} to {high}",
                span=role.span,
                fix=f"write `registers: {near}`",
            )


def _groups(target: Target, places: list[_Place]) -> Iterator[Diagnostic]:
    """Roles that share a warpgroup have the same registers."""
    owner: dict[int, _Place] = {}
    reported: set[str] = set()
    for place in places:
        for group in place.groups(target.warpgroup_warps):
            first = owner.setdefault(group, place)
            if first.role.registers == place.role.registers or place.role.name in reported:
                continue
            reported.add(place.role.name)
            yield Diagnostic(
                code="FA0503",
                title=f"`{first.role.name}` ({first.role.registers}) and `{place.role.name}` "
                f"({place.role.registers} registers) share warpgroup {group}",
                span=place.role.span,
                notes=(Note(text=f"`{first.role.name}` stands here", span=first.role.span),),
                why="setmaxnreg is executed by all warps of a warpgroup with one value",
                fix=f"write `registers: {first.role.registers}`, or give it a warpgroup of its own",
            )


def _file(schedule: Schedule, target: Target, places: list[_Place]) -> Iterator[Diagnostic]:
    """All warpgroups together fit into the register file."""
    warps = target.warpgroup_warps
    groups = {g: p.role for p in reversed(places) for g in p.groups(warps)}
    threads = warps * THREADS
    total = sum(r.registers * threads for r in groups.values())
    if total <= target.registers or _count(places) > target.warps:
        return
    parts = " + ".join(str(groups[g].registers) for g in sorted(groups))
    most = max(schedule.roles, key=lambda r: r.registers)
    start = launch_registers(target, _count(places))
    yield Diagnostic(
        code="FA0504",
        title=f"{total} registers, an SM has {target.registers}: {threads} threads x ({parts})",
        span=most.span,
        why=f"a thread starts with {start}; setmaxnreg.inc waits for what others give away, "
        "and they never give enough",
        fix=f"the warpgroups' registers may sum up to {target.registers // threads}",
    )


def _whole_groups(schedule: Schedule, target: Target, places: list[_Place]) -> Iterator[Diagnostic]:
    """Work that a warpgroup does together is done by one whole, aligned warpgroup."""
    warps = target.warpgroup_warps
    tmem = {i for b in schedule.buffers if b.space is Space.TMEM for i in b.items}
    seen: set[str] = set()
    for place in places:
        role = place.role
        if role.name in seen or (role.warps == warps and place.first % warps == 0):
            continue
        for operation in (o for o in schedule.operations if o.role == role.name):
            unit = KINDS[operation.kind].unit
            touches = {*operation.reads, *operation.writes, *operation.updates} & tmem
            if unit is Unit.WGMMA or (unit is Unit.WARP and touches):
                seen.add(role.name)
                reason = (
                    "a warp reaches the 32 tensor memory lanes of its place in the warpgroup alone"
                    if touches
                    else "wgmma is issued by the four warps of a warpgroup together"
                )
                yield Diagnostic(
                    code="FA0507",
                    title=f"`{operation.name}` needs a whole warpgroup; `{role.name}` has warps "
                    f"{place.first} … {place.first + role.warps - 1}",
                    span=role.span,
                    why=reason,
                    fix=f"give it {warps} warps, and stand it before roles with fewer",
                )
                break


def _tiles_in_registers(schedule: Schedule) -> Iterator[Diagnostic]:
    """Tiles that live in registers at the same time leave room for addresses and temporaries."""
    for role in schedule.roles:
        size = {
            b.name: b.tile[0]
            * b.tile[-1]
            * resolve(b.dtype, schedule.dtype).bits
            // 32
            // (role.warps * THREADS)
            for b in schedule.buffers
            if b.space is Space.RMEM
        }
        moments = live_tiles(schedule, role.name, size)
        held = max(moments, key=lambda h: sum(h.values()), default={})
        if held and sum(held.values()) >= role.registers:
            parts = ", ".join(f"{name} {count}" for name, count in held.items())
            yield Diagnostic(
                code="FA0508",
                title=f"`{role.name}` has {role.registers} registers a thread, its tiles take "
                f"{sum(held.values())}: {parts}",
                span=role.span,
                fix="take smaller tiles, or fewer instances with more registers each",
            )


def live_tiles(schedule: Schedule, role: str, size: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """The tiles of `size` that a role holds, with their sizes, at each step of a block.

    A tile lives from the step that writes it to the last one that touches it; one that no step
    writes, or that some step has a block ahead, lives throughout.
    """
    steps = schedule.steps_of(role).block
    spans: dict[str, tuple[int, int]] = {}
    for name in size:
        at = [n for n, s in enumerate(steps) if name in _touched(schedule, s.operation)]
        if not at:
            continue
        first = schedule.operation(steps[at[0]].operation)
        passing = name in first.writes and not any(s.ahead for s in steps)
        spans[name] = (at[0], at[-1]) if passing else (0, len(steps))
    for n in range(len(steps)):
        yield {name: size[name] for name, (low, high) in spans.items() if low <= n <= high}


def _touched(schedule: Schedule, operation: str) -> set[str]:
    o = schedule.operation(operation)
    return {*o.reads, *o.writes, *o.updates}


def _named_barriers(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    count = schedule.index.count
    own = [(b.name, b.span, count if b.per else 1) for b in schedule.barriers if b.kind == "named"]
    own += [(t.name, t.span, count) for t in schedule.turns]
    total, limit = sum(n for _, _, n in own), target.named_barriers - 1
    if total > limit:
        yield Diagnostic(
            code="FA0505",
            title=f"{total} named barriers, a CTA has {limit} beside the one of all its threads: "
            f"{', '.join(f'{name} {n}' for name, _, n in own)}",
            span=own[-1][1],
            fix="leave `kind: named` out: mbarriers lie in shared memory",
        )
