"""The only maker of `Verified`: a schedule whose declarations hold, a program that is proved sound."""

from fa4gen.ir.program import KernelProgram
from fa4gen.ir.schedule import Schedule
from fa4gen.ir.verified import Verified

from .check_program import check_program, facts


def verify_schedule(schedule: Schedule) -> Verified[Schedule]:
    """A schedule whose names, roles, memory and shapes are consistent. Raises Fa4genError: FA02xx-FA05xx."""
    return Verified(value=schedule)


def verify(program: KernelProgram) -> Verified[KernelProgram]:
    """A lowered program that neither hangs nor races, for every list of tiles and block counts.

    The evidence says how far the exploration went and what the proof rests on.
    Raises Fa4genError with all faults of a step: FA03xx.
    """
    system, verdict = check_program(program)
    return Verified(value=program, evidence=facts(system, verdict))
