"""Faults of the canonical run as errors: who, at which barrier, in which block, why, how to mend
it.
"""

from collections.abc import Callable

from fa4gen.diag import Diagnostic

from .closure import Verdict
from .model import System
from .report_hazards import race
from .report_phases import early, lapped, mixed, overflow
from .report_progress import deadlock, drain, runaway
from .run import Fault

MOST = 8  # errors shown of one word; the others follow from these as a rule
WRITERS: dict[str, Callable[[System, Verdict, Fault], Diagnostic]] = {
    "race": race,
    "mixed": mixed,
    "early": early,
    "lapped": lapped,
    "overflow": overflow,
    "deadlock": deadlock,
    "drain": drain,
    "runaway": runaway,
}


def report(system: System, verdict: Verdict) -> tuple[Diagnostic, ...]:
    """One error for each fault; those of one pair of statements together."""
    out: dict[tuple[object, ...], Diagnostic] = {}
    for fault in verdict.faults:
        at, other = fault.at.action, fault.other.action if fault.other else None
        key = (fault.kind, fault.bar, id(at.stmt or at), id(other.stmt or other) if other else 0)
        if key not in out and len(out) < MOST:
            out[key] = WRITERS[fault.kind](system, verdict, fault)
    return tuple(out.values())
