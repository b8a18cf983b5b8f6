"""Names: whatever is used exists, whatever exists is used, and every wait has somebody to wait for.

Positions are those of the use; a definition without a use is reported where it stands.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from fa4gen.diag import Diagnostic, Note, Span
from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.schedule import Barrier, Buffer, End, Operation, Schedule, Steps
from fa4gen.target import Target

from .tile_ring import CLC

OUTPUTS = ("lse",)  # global results without a buffer


def check(schedule: Schedule, target: Target) -> list[Diagnostic]:
    """All faults of names: FA0201-FA0203, FA0205-FA0209, FA0212-FA0214, FA0216-FA0221, FA0225."""
    return [
        *_tiles(schedule, target),
        *_steps(schedule),
        *_operations(schedule, target),
        *_buffers(schedule),
        *_barriers(schedule),
        *_rings(schedule),
        *_completions(schedule),
        *_turns(schedule),
    ]


def _fault(
    code: str, title: str, span: Span | None, *, fix: str = "", notes: tuple[Note, ...] = ()
) -> Diagnostic:
    return Diagnostic(code=code, title=title, span=span, fix=fix, notes=notes)


def _close(name: str, known: Iterable[str]) -> str:
    found = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"write `{found[0]}`" if found else ""


def _names(schedule: Schedule) -> list[str]:
    return [o.name for o in schedule.operations]


def _tiles(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    """Who hands out tiles is there."""
    if schedule.scheduler in CLC and not target.launch_control:
        other = schedule.scheduler.replace("clc", "dynamic")
        title = f"{target.name} is not given tiles by the hardware (`{schedule.scheduler}`)"
        fix = f"write `scheduler: {other}`: a counter in memory hands them out"
        yield _fault("FA0225", title, schedule.level_spans.get("tile"), fix=fix)


# steps -------------------------------------------------------------------------------------------


def _steps(schedule: Schedule) -> Iterator[Diagnostic]:
    roles = [r.name for r in schedule.roles]
    for steps in schedule.steps:
        if steps.role not in roles:
            title = f"there is no role `{steps.role}`"
            yield _fault("FA0203", title, steps.span, fix=_close(steps.role, roles))
        for step in steps.all():
            if step.operation not in _names(schedule):
                title = f"there is no operation `{step.operation}`"
                yield _fault(
                    "FA0201", title, step.span, fix=_close(step.operation, _names(schedule))
                )
        yield from _levels(schedule, steps)
    for role in schedule.roles:
        if not schedule.steps_of(role.name).all():
            fix = "take the role away, or give it something to do"
            yield _fault("FA0214", f"the role `{role.name}` has no steps", role.span, fix=fix)


def _levels(schedule: Schedule, steps: Steps) -> Iterator[Diagnostic]:
    """A kind that belongs into the block loop, or out of it, stands there."""
    kinds = {o.name: KINDS[o.kind] for o in schedule.operations if o.kind in KINDS}
    for section, found in (("tile", steps.tile), ("block", steps.block), ("after", steps.after)):
        for step in found:
            kind = kinds.get(step.operation)
            here = "block" if section == "block" else "tile"
            if kind and kind.level and kind.level != here:
                where = "for each block" if kind.level == "block" else "once a tile"
                title = f"`{step.operation}` ({kind.name}) happens {where}, not under `{section}`"
                yield _fault("FA0218", title, step.span)
            if section != "block" and step.ahead:
                title = f"`{step.operation}+{step.ahead}`: only steps of blocks can run ahead"
                yield _fault("FA0218", title, step.span)


# operations --------------------------------------------------------------------------------------


def _operations(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    for operation in schedule.operations:
        kind = KINDS[operation.kind]
        if kind.targets and target.name not in kind.targets:
            alike = [
                k.name for k in KINDS.values() if k.rank == kind.rank and target.name in k.targets
            ]
            title = f"{target.name} has no `{kind.name}`"
            fix = f"write `{alike[0]}`" if alike else ""
            yield _fault("FA0205", title, operation.span, fix=fix)
        yield from _holders(schedule, operation)
        yield from _operands(schedule, operation)
        yield from _instances(schedule, operation)


def _holders(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """One role has it among its steps."""
    uses = [(s.role, x) for s in schedule.steps for x in s.all() if x.operation == operation.name]
    roles = list(dict.fromkeys(role for role, _ in uses))
    if not roles:
        title = f"no role has `{operation.name}` among its steps"
        yield _fault("FA0207", title, operation.span)
    for role in roles[1:]:
        step = next(x for r, x in uses if r == role)
        first = next(x for r, x in uses if r == roles[0])
        note = Note(text=f"`{roles[0]}` has it here", span=first.span)
        title = f"`{operation.name}` belongs to two roles, `{roles[0]}` and `{role}`"
        yield _fault("FA0207", title, step.span, notes=(note,))


def _operands(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    items = {i for b in schedule.buffers for i in b.items}
    rings = {b.name: b for b in schedule.buffers if b.ring}
    for item in (*operation.reads, *operation.writes, *operation.updates):
        if item in items or (item in OUTPUTS and item in operation.writes):
            continue
        fix = _close(item, items)
        if item in rings:
            fix = f"write {' or '.join(f'`{i}`' for i in rings[item].ring)}"
        yield _fault("FA0202", f"there is no buffer `{item}`", operation.span, fix=fix)
    over = operation.options.get("sums_over", operation.options.get("spans"))
    if over not in (None, schedule.index.name):
        title = f"the index is called `{schedule.index.name}`, not `{over}`"
        yield _fault("FA0206", title, operation.span, fix=f"write `{schedule.index.name}`")
    kind = KINDS[operation.kind]
    reads = len(operation.reads) - (2 if kind.product else 0)
    for key, count, (least, most) in (
        ("reads", reads, kind.reads),
        ("writes", len(operation.writes), kind.writes),
        ("updates", len(operation.updates), kind.updates),
    ):
        if not least <= count <= most:
            wanted = str(least) if least == most else f"{least} … {most}"
            title = f"`{kind.name}` {key} {wanted} buffers, `{operation.name}` {key} {count}"
            yield _fault("FA0209", title, operation.span)
    if kind.product and len(operation.writes) + len(operation.updates) != 1:
        title = f"`{operation.name}` either writes or updates one result"
        fix = "`writes` begins a sum, `updates` adds to it"
        yield _fault("FA0209", title, operation.span, fix=fix)


def _instances(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """An operation on a buffer of each index value is done once for each of them."""
    if not operation.role or operation.role not in [r.name for r in schedule.roles]:
        return
    index = schedule.index
    if schedule.role(operation.role).per:
        yield from _results(schedule, operation)
        return
    steps = [s for s in schedule.steps_of(operation.role).all() if s.operation == operation.name]
    given = {s.instance for s in steps}
    touched = {*operation.reads, *operation.writes, *operation.updates}
    per = [b for b in schedule.buffers if b.per and not b.one_load and touched & set(b.items)]
    if operation.options.get("spans") and given == {None}:
        return
    if per and None in given:
        span = next(s.span for s in steps if s.instance is None)
        title = f"`{per[0].name}` exists for each `{index.name}`, and `{operation.name}` names none"
        yield _fault("FA0206", title, span, fix=f"write `{operation.name}[{index.name}]`")
    elif None not in given and (missing := set(range(index.count)) - given):
        title = f"`{operation.name}[{min(missing)}]` is never done"
        fix = f"write `{operation.name}[{index.name}]` for all of them"
        yield _fault("FA0206", title, steps[0].span, fix=fix)
    elif None not in given:
        yield from _results(schedule, operation)


def _results(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """What is done for each index value has a result for each."""
    index, results = schedule.index, {*operation.writes, *operation.updates}
    for buffer in schedule.buffers:
        if index.count > 1 and not buffer.per and results & set(buffer.items):
            title = (
                f"`{operation.name}` is done for each `{index.name}`, `{buffer.name}` is there once"
            )
            fix = f"give `{buffer.name}` a `per: {index.name}`"
            yield _fault("FA0206", title, buffer.span, fix=fix)


# buffers -----------------------------------------------------------------------------------------


def _buffers(schedule: Schedule) -> Iterator[Diagnostic]:
    names = [b.name for b in schedule.buffers]
    holders = Counter(i for b in schedule.buffers for i in b.items)
    used = {i for o in schedule.operations for i in (*o.reads, *o.writes, *o.updates)}
    for buffer in schedule.buffers:
        for item in buffer.items:
            if holders[item] > 1:
                title = f"two buffers hold `{item}`"
                yield _fault("FA0216", title, buffer.span)
            elif item not in used:
                what = f"the item `{item}` of `{buffer.name}`" if buffer.ring else f"`{item}`"
                title = f"no operation uses {what}"
                yield _fault("FA0214", title, buffer.span)
        if buffer.overlays is not None and buffer.overlays not in names:
            title = f"`{buffer.name}` overlays `{buffer.overlays}`, which does not exist"
            fix = _close(buffer.overlays, names)
            yield _fault("FA0202", title, buffer.span, fix=fix)


# barriers ----------------------------------------------------------------------------------------


def _barriers(schedule: Schedule) -> Iterator[Diagnostic]:
    seen: dict[str, Barrier] = {}
    for barrier in schedule.barriers:
        if barrier.name in seen:
            note = Note(text="the other", span=seen[barrier.name].span)
            title = f"two barriers are called `{barrier.name}`"
            yield _fault("FA0216", title, barrier.span, notes=(note,))
        seen[barrier.name] = barrier
        if barrier.ring:
            continue
        for side, found in (("after", barrier.after), ("before", barrier.before)):
            if not any(found):
                who = "nobody arrives at" if side == "after" else "nobody waits for"
                yield _fault("FA0212", f"{who} `{barrier.name}`", barrier.span)
            for alternative in found:
                for end in alternative:
                    yield from _end(schedule, barrier, end)


def _end(schedule: Schedule, barrier: Barrier, end: End) -> Iterator[Diagnostic]:
    if end.operation not in _names(schedule):
        title = f"there is no operation `{end.operation}`"
        yield _fault("FA0201", title, end.span, fix=_close(end.operation, _names(schedule)))
        return
    operation = schedule.operation(end.operation)
    steps = [s for r in schedule.steps for s in r.all() if s.operation == end.operation]
    if not steps:
        return  # reported as FA0207
    per = any(r.name == operation.role and r.per for r in schedule.roles)
    many = per or any(s.instance is not None for s in steps)
    index = schedule.index.name
    if many and end.instance is None:
        title = f"`{barrier.name}` names no `{index}`, and there is a `{end.operation}` for each"
        yield _fault("FA0206", title, end.span, fix=f"write `{end.operation}[{index}]`")
    elif not many and end.instance is not None:
        title = f"there is one `{end.operation}`, without an index"
        yield _fault("FA0206", title, end.span, fix=f"write `{end.operation}`")


def _rings(schedule: Schedule) -> Iterator[Diagnostic]:
    buffers = {b.name: b for b in schedule.buffers}
    sides = Counter((b.ring, b.side) for b in schedule.barriers if b.ring)
    for barrier in schedule.barriers:
        if barrier.ring and barrier.ring not in buffers:
            title = f"`{barrier.name}` guards `{barrier.ring}`, and there is no such buffer"
            fix = _close(barrier.ring, buffers)
            yield _fault("FA0202", title, barrier.span, fix=fix)
        elif barrier.ring:
            yield from _ring_ends(schedule, barrier, buffers[barrier.ring])
        if barrier.ring and sides[barrier.ring, barrier.side] > 1:
            title = f"`{barrier.ring}` has two barriers for its side `{barrier.side}`"
            yield _fault("FA0213", title, barrier.span)
    for buffer in schedule.buffers:
        have = [s for s in ("full", "empty") if sides[buffer.name, s]]
        missing = [s for s in ("full", "empty") if s not in have]
        yield from _ring_order(schedule, buffer)
        if _is_ring(schedule, buffer) and missing:
            title = f"the ring `{buffer.name}` has no barrier for its side `{missing[0]}`"
            if len(missing) == 2:
                title = f"the ring `{buffer.name}` has no barriers"
            fix = f"add `{buffer.name}: {{ring: {buffer.name}}}` to `barriers`: both sides"
            yield _fault("FA0213", title, buffer.span, fix=fix)


def _is_ring(schedule: Schedule, buffer: Buffer) -> bool:
    """Whether its slots go round: several items or stages, or a barrier that says so."""
    guarded = any(b.ring == buffer.name for b in schedule.barriers)
    return bool(buffer.ring) or buffer.stages != 1 or guarded


def _ring_order(schedule: Schedule, ring: Buffer) -> Iterator[Diagnostic]:
    """One role fills the items of a ring, once a block each, in the ring's order."""
    loads = {o.name: o for o in schedule.operations if o.writes and o.writes[0] in ring.items}
    once = [x for s in schedule.steps for x in (*s.tile, *s.after) if x.operation in loads]
    for step in (x for x in once if KINDS[loads[x.operation].kind].unit is Unit.TMA_LOAD):
        if _is_ring(schedule, ring):
            title = (
                f"`{step.operation}` fills the ring `{ring.name}`: for each block, not once a tile"
            )
            yield _fault("FA0218", title, step.span, fix="move it to `block`")
    steps = [(s.role, x) for s in schedule.steps for x in s.block if x.operation in loads]
    filled = [loads[x.operation].writes[0] for _, x in steps]
    roles = list(dict.fromkeys(role for role, _ in steps))
    if len(ring.items) < 2 or {*filled} != {*ring.items} or filled == list(ring.items):
        return
    who = " and ".join(f"`{r}`" for r in roles)
    title = f"`{ring.name}` holds {' '.join(ring.items)}, {who} fills {' '.join(filled)}"
    fix = f"write `ring: [{', '.join(filled)}]`" if len(filled) == len(ring.items) else ""
    yield _fault("FA0221", title, steps[0][1].span, fix=fix)


def _ring_ends(schedule: Schedule, barrier: Barrier, ring: Buffer) -> Iterator[Diagnostic]:
    """Somebody fills and somebody reads each item of the ring."""
    for item in ring.items:
        writers = [o for o in schedule.operations if item in o.writes]
        readers = [o for o in schedule.operations if item in (*o.reads, *o.updates)]
        used = bool(writers or readers)
        if used and not writers:
            title = f"`{barrier.name}`: nobody fills `{item}`"
            yield _fault("FA0212", title, barrier.span)
        if used and not readers:
            title = f"`{barrier.name}`: nobody reads `{item}`, so its slots are never free again"
            yield _fault("FA0212", title, barrier.span)


def _completions(schedule: Schedule) -> Iterator[Diagnostic]:
    """A TMA load completes on one mbarrier; asynchronous units reach no named barrier."""
    kinds = {o.name: KINDS[o.kind] for o in schedule.operations}
    ends = [(b, e) for b in schedule.barriers for alternative in b.after for e in alternative]
    roles = {o.name: o.role for o in schedule.operations}
    awaited = {
        b.name: {roles.get(e.operation) for x in b.before for e in x} for b in schedule.barriers
    }
    full = {b.ring for b in schedule.barriers if b.ring and b.side == "full"}
    for operation in schedule.operations:
        if kinds[operation.name].unit is not Unit.TMA_LOAD or not operation.role:
            continue
        mine = {operation.role}
        guards = [
            b.name for b, e in ends if e.operation == operation.name and awaited[b.name] != mine
        ]
        filled = [b for b in schedule.buffers if set(operation.writes) & set(b.items)]
        guards += [f"the ring `{b.name}`" for b in filled if b.name in full]
        if not guards and not any(_is_ring(schedule, b) for b in filled):
            title = f"`{operation.name}` completes on an mbarrier, and no role awaits one after it"
            fix = f"add a barrier with `after: {operation.name}`, before what reads it"
            yield _fault("FA0217", title, operation.span, fix=fix)
        elif len(guards) > 1:
            title = f"`{operation.name}` completes on one mbarrier, not on {' and '.join(guards)}"
            yield _fault("FA0217", title, operation.span)
    for barrier, end in ends:
        kind = kinds.get(end.operation)
        if barrier.kind == "named" and kind and kind.unit in (Unit.TMA_LOAD, Unit.TENSOR):
            title = f"`{end.operation}` ({kind.name}) cannot reach a named barrier"
            fix = "take `kind: named` away: its completion arrives at an mbarrier"
            yield _fault("FA0220", title, end.span, fix=fix)


# turns -------------------------------------------------------------------------------------------


def _turns(schedule: Schedule) -> Iterator[Diagnostic]:
    for turn in schedule.turns:
        for step in (turn.first, turn.last):
            if step.operation not in _names(schedule):
                title = f"there is no operation `{step.operation}`"
                fix = _close(step.operation, _names(schedule))
                yield _fault("FA0201", title, step.span, fix=fix)
                return
        per = any(r.name == turn.role and r.per for r in schedule.roles)
        if not per or schedule.index.count == 1:
            title = f"`{turn.name}` goes round instances, and `{turn.role}` has one alone"
            yield _fault("FA0219", title, turn.span, fix="take the turn away (`turns: null`)")
            return
        block = schedule.steps_of(turn.role).block
        at = []
        for step in (turn.first, turn.last):
            here = [
                n
                for n, s in enumerate(block)
                if (s.operation, s.ahead) == (step.operation, step.ahead)
            ]
            at += here
            if not here:
                ahead = f"+{step.ahead}" if step.ahead else ""
                title = f"`{step.operation}{ahead}` is no step of `{turn.role}`'s blocks"
                yield _fault("FA0219", title, step.span)
        if len(at) == 2 and at[0] > at[1]:
            title = (
                f"`{turn.last.operation}` comes before `{turn.first.operation}` in `{turn.role}`"
            )
            yield _fault("FA0219", title, turn.span)
