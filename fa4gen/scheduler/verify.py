"""The only maker of `Verified`: a schedule that agrees with itself, a program that is sound."""

from fa4gen.diag import Fa4genError
from fa4gen.ir.program import KernelProgram
from fa4gen.ir.schedule import Schedule
from fa4gen.ir.verified import Verified
from fa4gen.target import find_target

from . import check_dataflow, check_memory, check_names, check_roles, check_shapes, check_turns
from .check_program import check_program, facts


def verify_schedule(schedule: Schedule) -> Verified[Schedule]:
    """A schedule whose names, roles, memory and shapes are consistent.

    Raises Fa4genError: names (FA02xx), then dataflow (FA02xx), then FA04xx and FA05xx.
    """
    target = find_target(schedule.target)
    if found := check_names.check(schedule, target):
        raise Fa4genError(found)
    if found := check_dataflow.check(schedule, target):
        raise Fa4genError(found)
    found = [
        d for c in (check_roles, check_memory, check_shapes) for d in c.check(schedule, target)
    ]
    found += check_turns.check(schedule)
    if found:
        raise Fa4genError(found)
    evidence = (("schedule", "names, roles, memory and shapes agree"),)
    return Verified(value=schedule, evidence=evidence)


def verify(program: KernelProgram) -> Verified[KernelProgram]:
    """A lowered program that neither hangs nor races, for every list of tiles and block counts.

    The evidence says how far the exploration went and what the proof rests on.
    Raises Fa4genError with all faults of a step: FA03xx.
    """
    system, verdict = check_program(program)
    named = tuple(("assumption", a) for a in program.assumptions)
    return Verified(value=program, evidence=(*facts(system, verdict), *named))
