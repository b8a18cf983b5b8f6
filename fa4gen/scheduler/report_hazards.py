"""Races as errors: what is missing, an order or its kind.

What kind of order is missing is found by looking again at the same word under weaker rules: if a
race is gone once fences and waits no longer count, the order is there and of the wrong kind.
"""

from fa4gen.diag import Diagnostic, Note

from .closure import Verdict
from .model import WAITS, Do, System
from .run import Fault, Place, Rules, Run, run_word
from .words import action_text, note, operation_text, role_text, when, word_text

UNORDERED = {  # (is the access at fault a write, is the other one) -> code, title, what it may do
    (False, True): ("FA0309", "read before it is written", "read"),
    (True, False): ("FA0310", "overwritten before it is read", "overwrite"),
    (True, True): ("FA0311", "overwritten before it is complete", "overwrite"),
}


def race(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    """FA0309-FA0311 no order, FA0312-FA0314 an order of the wrong kind, FA0316 the wrong order."""
    other = fault.other
    if other is None or fault.late:
        return _late(system, verdict, fault)
    if not _again(system, verdict, fault, Rules(kinds=False)):
        return _kind(system, verdict, fault, other)
    if not _again(system, verdict, fault, Rules(kinds=False, vouch=True)):
        return _wrong_arrival(system, verdict, fault, other)
    return _unordered(system, verdict, fault, other)


def _again(system: System, verdict: Verdict, fault: Fault, rules: Rules) -> bool:
    """Whether the same pair races under other rules."""
    run: Run = run_word(system, verdict.word, rules, verdict.open)
    want = fault.other.action if fault.other else None
    return any(
        f.kind == "race"
        and f.region == fault.region
        and f.at.action is fault.at.action
        and (f.other.action if f.other else None) is want
        for f in run.faults
    )


def _writes(fault: Fault, place: Place) -> bool:
    return any(u.write for u in place.action.uses if u.region == fault.region)


def _unordered(system: System, verdict: Verdict, fault: Fault, other: Place) -> Diagnostic:
    code, what, verb = UNORDERED[_writes(fault, fault.at), _writes(fault, other)]
    late, early = operation_text(system, fault.at), operation_text(system, other)
    what_region = system.regions[fault.region].what
    return Diagnostic(
        code=code,
        title=f"{what_region} may be {what}: {late} does not wait for {early}",
        span=fault.at.action.span,
        label=f"may {verb} in {when(fault.at, verdict.word)} "
        f"what {early} of {when(other, verdict.word)} still uses",
        notes=(
            note(system, other, verdict.word, f"the other access: {early}"),
            *_between(system, fault, other),
        ),
        why=f"nothing orders the two with {word_text(verdict.word, verdict.open)}",
        fix=f"add a barrier after {early} and before {late}, or move one",
    )


def _between(system: System, fault: Fault, other: Place) -> tuple[Note, ...]:
    """Barriers from the earlier role to the later one: none of them holds this pair apart.

    If there are none: where the later one waited last, and for whom.
    """
    a, b = other.action.role, fault.at.action.role
    ways = f"leads from {role_text(system, a)} to {role_text(system, b)}"
    found = tuple(
        Note(text=f"`{bar.name}` {ways}, but does not hold back this pair", span=bar.span)
        for n, bar in enumerate(system.bars)
        if a != b and a in system.arrivers[n] and b in system.waiters[n]
    )
    return found[:3] or _last_wait(system, fault.at)


def _last_wait(system: System, place: Place) -> tuple[Note, ...]:
    role = system.roles[place.action.role]
    actions = role.actions
    at = next(n for n, x in enumerate(actions) if x is place.action)
    waits = [x for x in actions[:at] if x.do in WAITS]
    if not waits:
        return ()
    bar = system.bars[waits[-1].bar]
    who = ", ".join(role_text(system, r) for r in sorted(system.arrivers[waits[-1].bar]))
    text = f"`{role.name}` waits on `{bar.name}` before it, where {who or 'nobody'} arrives"
    return (Note(text=text, span=waits[-1].span or bar.span),)


def _late(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    region, late = system.regions[fault.region], operation_text(system, fault.at)
    ring = f" (a ring of {region.stages})" if region.stages > 1 else ""
    notes: tuple[Note, ...] = ()
    if fault.other:
        done = f"already done: {operation_text(system, fault.other)}"
        notes = (note(system, fault.other, verdict.word, done),)
    return Diagnostic(
        code="FA0316",
        title=f"{late} comes too late for {region.what}{ring}: a later use went before it",
        span=fault.at.action.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=notes,
        why="slots must be used and released in the order in which they are filled",
        fix="wait for and release the ring's items in fill order, with as many barriers as slots",
    )


def _kind(system: System, verdict: Verdict, fault: Fault, other: Place) -> Diagnostic:
    """In order, but the access is not over yet, or not visible to the one that follows."""
    region, writer = system.regions[fault.region], role_text(system, other.action.role)
    late, early = operation_text(system, fault.at), operation_text(system, other)
    if region.space == "tmem":
        wait = "store" if _writes(fault, other) else "load"
        code, title, why, fix = (
            "FA0313",
            f"tcgen05.wait::{wait[:2]} is missing: {early} hands over {region.what} too soon",
            f"a tensor memory {wait} has only begun when the next statement runs",
            f"wait for the {wait}s before the arrival that hands over",
        )
    elif fault.at.action.do in (Do.ISSUE, Do.LOAD):
        code, title, why, fix = (
            "FA0312",
            f"fence.proxy.async is missing between {early} and {late}, for {region.what}",
            "TMA and tensor core see an ordinary write only once its writer has fenced it",
            f"fence in {writer} between the write and its arrival",
        )
    else:
        code, title, why, fix = (
            "FA0314",
            f"what {late} waits for does not vouch for {early} and {region.what}",
            "the completion of a copy or a commit says nothing of its issuer's own writes",
            f"let {writer} arrive itself after the write",
        )
    return Diagnostic(
        code=code,
        title=title,
        span=other.action.span,
        label=f"in {when(other, verdict.word)}",
        notes=(note(system, fault.at, verdict.word, f"needed by {late}"),),
        why=why,
        fix=fix,
    )


def _wrong_arrival(system: System, verdict: Verdict, fault: Fault, other: Place) -> Diagnostic:
    unit, issuer = system.units[other.action.unit], other.action.role
    late, early = operation_text(system, fault.at), operation_text(system, other)
    arrivals = tuple(
        Note(text=action_text(system, issuer, x), span=x.span)
        for x in system.roles[issuer].actions
        if x.do is Do.ARRIVE and fault.at.action.role in system.waiters[x.bar]
    )
    return Diagnostic(
        code="FA0314",
        title=f"{role_text(system, issuer)} arrives while its {early} still runs, "
        f"and {late} relies on that for {system.regions[fault.region].what}",
        span=other.action.span,
        label=f"issued in {when(other, verdict.word)}",
        notes=(note(system, fault.at, verdict.word, f"relies on it: {late}"), *arrivals[:2]),
        why="a thread's own arrival does not wait for what it has issued",
        fix="commit instead of arriving (tcgen05.commit)"
        if unit.in_order
        else f"wait for the groups of `{unit.name}` before it arrives",
    )
