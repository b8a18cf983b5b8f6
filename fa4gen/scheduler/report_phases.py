"""Phases that depend on the interleaving, as errors: mixed, early, lapped, too many arrivals."""

from fa4gen.diag import Diagnostic, Note

from .closure import Verdict
from .model import Do, System
from .run import Fault
from .words import action_text, note, role_text, when


def mixed(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    named = bar.named
    return Diagnostic(
        code="FA0317" if named else "FA0306",
        title=f"{'rounds' if named else 'phases'} of `{bar.name}` mix: "
        f"{role_text(system, fault.at.action.role)} may arrive for {_phase(fault, bar.stages)} "
        f"before the one before is complete",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}, for all it knows",
        notes=_users(system, fault),
        why="arrivals are counted, not named: the early one completes another's "
        + ("round" if named else "phase"),
        fix=f"hold {role_text(system, fault.at.action.role)} back until all have arrived before"
        + (", or give each pair of roles an id of its own" if named else ""),
    )


def early(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    return Diagnostic(
        code="FA0307",
        title=f"{role_text(system, fault.at.action.role)} may take an old phase of "
        f"`{bar.name}` for "
        f"{_phase(fault, bar.stages)}: it looks before the one before is complete",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=_users(system, fault),
        why="a wait sees the parity alone, and that of two phases earlier is the same",
        fix="let the role wait once for each phase, or be held back otherwise",
    )


def lapped(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    who = system.roles[fault.at.action.role].name
    notes = (note(system, fault.other, verdict.word),) if fault.other else ()
    return Diagnostic(
        code="FA0308",
        title=f"`{bar.name}` may complete two phases while `{who}` waits for one",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=notes,
        why="the parity is then as before, and the wait never ends (or passes for another phase)",
        fix=f"let an arrival at `{bar.name}` wait for `{who}`, as a ring's `empty` side does",
    )


def _phase(fault: Fault, stages: int) -> str:
    return f"phase {fault.phase}" + (f" of slot {fault.slot}" if stages > 1 else "")


def _users(system: System, fault: Fault) -> tuple[Note, ...]:
    """Everyone who arrives at the barrier, once each."""
    found: dict[object, Note] = {}
    for n, role in enumerate(system.roles):
        for x in role.actions:
            if x.bar == fault.bar and x.do in (Do.ARRIVE, Do.COMMIT, Do.LOAD, Do.SYNC):
                found.setdefault(
                    (n, x.stmt or x), Note(text=action_text(system, n, x), span=x.span)
                )
    return tuple(found.values())[:4]


def overflow(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    return Diagnostic(
        code="FA0304",
        title=f"more than {bar.count} arrivals in {_phase(fault, bar.stages)} of `{bar.name}`",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=_users(system, fault),
        why="what is too many is counted in the next phase",
        fix="let the count be the sum of the arrivals of one phase",
    )
