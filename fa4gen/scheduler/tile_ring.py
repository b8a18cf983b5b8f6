"""Dynamic tile schedulers: the next tile's number is one more thing that a role hands to the
others.

The role that loads Q claims the next tile from a counter in global memory and passes it on through
a ring of one slot in shared memory. Or (`clc`) it asks the hardware for a CTA that has not begun;
the answer arrives in that slot as a load does, and that role reads it too. Written as buffers,
operations and barriers like any other, so that lowering derives its waits and the checks prove it
with the rest.
"""

from dataclasses import replace

from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.schedule import Barrier, Buffer, End, Operation, Schedule, Space, Step, Steps

DYNAMIC = ("dynamic", "lpt_dynamic")
CLC = ("clc", "lpt_clc")
ANSWER_BYTES = 16  # PTX, clusterlaunchcontrol.try_cancel
ITEM, CLAIM = "next_tile", "claim"


def with_tile_ring(schedule: Schedule) -> Schedule:
    """The schedule with its tile ring written out; unchanged where tiles need none."""
    if schedule.scheduler not in (*DYNAMIC, *CLC) or schedule.kernel == "attention_backward":
        return schedule  # backwards have none of these; lowering says so
    asks = schedule.scheduler in CLC
    claim, take = ("cancel_launch", "read_launch") if asks else ("publish_tile", "read_tile")
    span = schedule.level_spans.get("tile")
    claimer = next(o.role for o in schedule.operations if KINDS[o.kind].unit is Unit.TMA_LOAD)
    working = [r for r in schedule.roles if _works(schedule, r.name)]
    readers = [r for r in working if asks or r.name != claimer]
    operations = [
        Operation(name=CLAIM, role=claimer, kind=claim, writes=(ITEM,), span=span),
        *(
            Operation(name=_take(r.name), role=r.name, kind=take, reads=(ITEM,), span=span)
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
    words = ANSWER_BYTES // 4 if asks else 32
    buffer = Buffer(name=ITEM, space=Space.SMEM, tile=(words,), dtype="f32", span=span)
    added = {r.name: [_take(r.name)] for r in readers}
    added[claimer] = [CLAIM, *added.get(claimer, [])]
    return replace(
        schedule,
        buffers=(*schedule.buffers, buffer),
        operations=(*schedule.operations, *operations),
        barriers=(*schedule.barriers, *barriers),
        steps=tuple(_appended(s, added.get(s.role, [])) for s in schedule.steps),
    )


def _take(role: str) -> str:
    return f"next_tile_of_{role}"


def _works(schedule: Schedule, role: str) -> bool:
    steps = schedule.steps_of(role)
    return bool(steps.tile or steps.block or steps.after)


def _appended(steps: Steps, operations: list[str]) -> Steps:
    return replace(steps, after=(*steps.after, *(Step(operation=o) for o in operations)))
