"""Dynamic tile schedulers: the next tile's number is one more thing that a role hands to the
others.

The role that loads Q claims the next tile from a counter in global memory and passes it on through
a ring of one slot in shared memory. Written as buffers, operations and barriers like any other, so
that lowering derives its waits and the checks prove it with the rest.
"""

from dataclasses import replace

from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.schedule import Barrier, Buffer, End, Operation, Schedule, Space, Step, Steps

DYNAMIC = ("dynamic", "lpt_dynamic")
ITEM, CLAIM = "next_tile", "claim"


def with_tile_ring(schedule: Schedule) -> Schedule:
    """The schedule with its tile ring written out; unchanged where tiles need none."""
    if schedule.scheduler not in DYNAMIC:
        return schedule
    span = schedule.level_spans.get("tile")
    claimer = next(o.role for o in schedule.operations if KINDS[o.kind].unit is Unit.TMA_LOAD)
    readers = [r for r in schedule.roles if r.name != claimer and _works(schedule, r.name)]
    operations = [
        Operation(name=CLAIM, role=claimer, kind="publish_tile", writes=(ITEM,), span=span),
        *(
            Operation(name=_take(r.name), role=r.name, kind="read_tile", reads=(ITEM,), span=span)
            for r in readers
        ),
    ]
    taken = tuple(
        End(operation=_take(r.name), instance="all" if r.per else None, span=span) for r in readers
    )
    claimed = (End(operation=CLAIM, span=span),)
    barriers = (
        Barrier(name="tiles_full", after=(claimed,), before=(taken,), level="tile", span=span),
        Barrier(
            name="tiles_empty",
            after=(taken,),
            before=(claimed,),
            level="tile",
            distance=1,
            span=span,
        ),
    )
    buffer = Buffer(name=ITEM, space=Space.SMEM, tile=(32,), dtype="f32", span=span)
    added = {claimer: CLAIM} | {r.name: _take(r.name) for r in readers}
    return replace(
        schedule,
        buffers=(*schedule.buffers, buffer),
        operations=(*schedule.operations, *operations),
        barriers=(*schedule.barriers, *barriers),
        steps=tuple(_appended(s, added.get(s.role)) for s in schedule.steps),
    )


def _take(role: str) -> str:
    return f"next_tile_of_{role}"


def _works(schedule: Schedule, role: str) -> bool:
    steps = schedule.steps_of(role)
    return bool(steps.tile or steps.block or steps.after)


def _appended(steps: Steps, operation: str | None) -> Steps:
    if operation is None:
        return steps
    return replace(steps, after=(*steps.after, Step(operation=operation)))
