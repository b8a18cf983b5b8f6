"""Faults of the canonical run as errors: who, at which barrier, in which block, why, and how to mend it.

What kind of order is missing is found by looking again at the same word under weaker rules: if a race
is gone once fences and waits no longer count, the order is there and of the wrong kind.
"""

from collections.abc import Callable
from dataclasses import replace

from fa4gen.diag import Diagnostic, Note

from .closure import Verdict
from .model import Do, System
from .run import Fault, Place, Rules, Run
from .words import action_text, note, operation, operation_text, when, word_text

MOST = 8  # errors shown of one word; the others follow from these as a rule


def report(system: System, verdict: Verdict) -> tuple[Diagnostic, ...]:
    """One error for each fault, those of one statement pair and one cause together."""
    out: dict[tuple[object, ...], Diagnostic] = {}
    for fault in verdict.faults:
        at, other = fault.at.action, fault.other.action if fault.other else None
        key = (
            fault.kind,
            fault.region if fault.kind != "race" else -1,
            at.stmt or at,
            other and (other.stmt or other),
        )
        key = (fault.kind, fault.bar, id(at.stmt or at), id(other.stmt or other) if other else 0)
        if key not in out and len(out) < MOST:
            out[key] = _WRITERS[fault.kind](system, verdict, fault)
    return tuple(out.values())


def replay(system: System, verdict: Verdict, rules: Rules) -> Run:
    """The bad prefix again, under other rules."""
    run = Run(system, rules)
    for n, blocks in enumerate(verdict.word):
        for _ in range(blocks):
            run.block()
        if n + 1 < len(verdict.word) or not verdict.open:
            run.close()
    return run if verdict.open else run.end()


# memory ----------------------------------------------------------------------------------------------


def _race(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    if fault.other is None or fault.late:
        return _order(system, verdict, fault)
    plain = replay(system, verdict, Rules(kinds=False))
    if not _again(plain, fault):
        return _kind(system, verdict, fault)
    vouched = replay(system, verdict, Rules(kinds=False, vouch=True))
    if not _again(vouched, fault):
        return _wrong_arrival(system, verdict, fault)
    return _unordered(system, verdict, fault)


def _again(run: Run, fault: Fault) -> bool:
    return any(
        f.kind == "race" and f.region == fault.region and f.at.action is fault.at.action
        and f.other is not None and fault.other is not None
        and f.other.action is fault.other.action
        for f in run.faults
    )  # fmt: skip


def _accesses(fault: Fault) -> tuple[bool, bool]:
    """(is the access at fault a write, is the other one)."""
    assert fault.other is not None
    at = [u.write for u in fault.at.action.uses if u.region == fault.region]
    other = [u.write for u in fault.other.action.uses if u.region == fault.region]
    return any(at), any(other)


def _unordered(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    writes, wrote = _accesses(fault)
    code, what, verb = {
        (False, True): ("FA0309", "read before it is written", "read"),
        (True, False): ("FA0310", "overwritten before it is read", "overwrite"),
    }.get((writes, wrote), ("FA0311", "overwritten before it is complete", "overwrite"))
    other = fault.other or fault.at
    return Diagnostic(
        code=code,
        title=f"{system.regions[fault.region].what} may be {what}: {operation_text(system, fault.at)} "
        f"does not wait for {operation_text(system, other)}",
        span=fault.at.action.span,
        label=f"may {verb} in {when(fault.at, verdict.word)} what {operation_text(system, other)} "
        f"of {when(other, verdict.word)} still uses",
        notes=(
            note(system, other, verdict.word, f"the other access: {operation_text(system, other)}"),
            *_between(system, fault),
        ),
        why=f"nothing orders the two for {word_text(verdict.word, verdict.open)}",
        fix=_edge(system, fault),
    )


def _between(system: System, fault: Fault) -> tuple[Note, ...]:
    """Barriers that lead from the earlier role to the later one, none of which holds this pair apart."""
    assert fault.other is not None
    a, b = fault.other.action.role, fault.at.action.role
    return tuple(
        Note(text=f"`{bar.name}` leads from `{system.roles[a].name}` to `{system.roles[b].name}`, "
             "but does not hold back this pair", span=bar.span)
        for n, bar in enumerate(system.bars)
        if a != b and a in system.arrivers[n] and b in system.waiters[n]
    )[:3]  # fmt: skip


def _edge(system: System, fault: Fault) -> str:
    assert fault.other is not None
    return f"add a barrier after {operation_text(system, fault.other)} and before {operation_text(system, fault.at)}, or move one"


def _order(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    region = system.regions[fault.region]
    notes = (
        (
            note(
                system,
                fault.other,
                verdict.word,
                f"already done: {operation_text(system, fault.other)}",
            ),
        )
        if fault.other
        else ()
    )
    ring = f" (a ring of {region.stages})" if region.stages > 1 else ""
    return Diagnostic(
        code="FA0316",
        title=f"{operation_text(system, fault.at)} comes too late for {region.what}{ring}: "
        "a later use of the slot went before it",
        span=fault.at.action.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=notes,
        why="slots must be used and released in the order in which they are filled",
        fix="wait for and release the ring's items in fill order, with as many barriers as slots",
    )


def _kind(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    """The two are in order, but the access is not yet over, or not visible to the one that follows."""
    other = fault.other or fault.at
    region = system.regions[fault.region]
    common = {
        "span": other.action.span,
        "label": f"in {when(other, verdict.word)}",
        "notes": (
            note(system, fault.at, verdict.word, f"needed by {operation_text(system, fault.at)}"),
        ),
    }
    if region.space == "tmem":
        wait = "store" if _accesses(fault)[1] else "load"
        return Diagnostic(
            code="FA0313",
            title=f"tcgen05.wait::{wait[:2]} is missing: {operation_text(system, other)} hands over "
            f"{region.what} before its tensor memory {wait}s are over",
            why=f"a tensor memory {wait} has only begun when the next statement runs",
            fix=f"wait for the {wait}s before the arrival that hands over",
            **common,  # type: ignore[arg-type]
        )
    if fault.at.action.do in (Do.ISSUE, Do.LOAD):
        return Diagnostic(
            code="FA0312",
            title=f"fence.proxy.async is missing: {operation_text(system, other)} writes {region.what}, "
            f"{operation_text(system, fault.at)} uses it asynchronously",
            why="an ordinary write is not visible to TMA and tensor core until its writer has fenced it",
            fix=f"fence in `{system.roles[other.action.role].name}` between the write and its arrival",
            **common,  # type: ignore[arg-type]
        )
    return Diagnostic(
        code="FA0314",
        title=f"the arrival that {operation_text(system, fault.at)} waits for does not vouch for what "
        f"{operation_text(system, other)} wrote to {region.what}",
        why="the completion of a copy or a commit says nothing of its issuer's own writes",
        fix=f"let `{system.roles[other.action.role].name}` arrive itself after the write",
        **common,  # type: ignore[arg-type]
    )


def _wrong_arrival(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    other = fault.other or fault.at
    unit = system.units[other.action.unit]
    way = (
        "commit instead (tcgen05.commit)"
        if unit.in_order
        else f"wait for `{unit.name}` before it arrives"
    )
    return Diagnostic(
        code="FA0314",
        title=f"an arrival of the wrong kind: `{system.roles[other.action.role].name}` arrives while "
        f"{operation_text(system, other)} is still running",
        span=other.action.span,
        label=f"issued in {when(other, verdict.word)}",
        notes=(
            note(
                system, fault.at, verdict.word, f"{operation_text(system, fault.at)} relies on it"
            ),
            *_arrivals_after(system, fault),
        ),
        why="a thread's own arrival does not wait for what it has issued",
        fix=f"let it {way}",
    )


def _arrivals_after(system: System, fault: Fault) -> tuple[Note, ...]:
    assert fault.other is not None
    role, later = fault.other.action.role, fault.at.action.role
    return tuple(
        Note(text=action_text(system, role, x), span=x.span)
        for x in system.roles[role].actions
        if x.do is Do.ARRIVE and later in system.waiters[x.bar]
    )[:2]


# phases ----------------------------------------------------------------------------------------------


def _mixed(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    named = bar.named
    return Diagnostic(
        code="FA0317" if named else "FA0306",
        title=f"{'rounds' if named else 'phases'} of `{bar.name}` mix: "
        f"`{system.roles[fault.at.action.role].name}` may arrive for {_phase(fault, bar.stages)} "
        f"before the one before is complete",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}, for all it knows",
        notes=_users(system, fault),
        why="arrivals are counted, not named: the early one completes another's "
        + ("round" if named else "phase"),
        fix=f"hold `{system.roles[fault.at.action.role].name}` back until all have arrived for the one before"
        + (", or give each pair of roles an id of its own" if named else ""),
    )


def _early(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    return Diagnostic(
        code="FA0307",
        title=f"`{system.roles[fault.at.action.role].name}` may take a phase of `{bar.name}` for a later one: "
        f"it looks for {_phase(fault, bar.stages)} before the one before is complete",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=_users(system, fault),
        why="a wait sees the parity alone, and that of two phases earlier is the same",
        fix="let the role wait once for each phase, or be held back otherwise",
    )


def _lapped(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
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


# progress --------------------------------------------------------------------------------------------


def _deadlock(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    run = replay(system, verdict, Rules())
    chain, circle = waits_for(run, fault.stuck)
    names = [f"`{system.roles[p.action.role].name}`" for p in chain]
    first = chain[0]
    end = "holds no token" if circle else "never moves again"
    if circle:
        names.append(names[0])
    notes = tuple(
        note(
            system,
            p,
            verdict.word,
            f"{action_text(system, p.action.role, p.action)} {_waiting(system, p, q)}",
        )
        for p, q in zip(chain, (*chain[1:], chain[0] if circle else None), strict=True)
    )
    return Diagnostic(
        code="FA0303",
        title=f"deadlock: {' → '.join(names)} {end}",
        span=first.action.span
        or (system.bars[first.action.bar].span if first.action.bar >= 0 else None),
        label=f"in {when(first, verdict.word)}",
        notes=notes,
        why=f"with {word_text(verdict.word)} nobody can go on",
        fix="see which arrival of the chain is missing, comes too late, or belongs to another block",
    )


def _waiting(system: System, place: Place, then: Place | None) -> str:
    if then is None:
        arrivers = sorted(system.arrivers[place.action.bar]) if place.action.bar >= 0 else []
        who = ", ".join(f"`{system.roles[r].name}`" for r in arrivers) or "nobody"
        return f"for {who}, which will not arrive again"
    return f"for `{system.roles[then.action.role].name}`"


def waits_for(run: Run, stuck: tuple[Place, ...]) -> tuple[tuple[Place, ...], bool]:
    """From the first stuck role, whom each waits for; whether the chain closes to a circle."""
    at = {p.action.role: p for p in stuck}
    chain: list[int] = []
    role: int | None = stuck[0].action.role
    while role is not None and role not in chain:
        chain.append(role)
        owing = _owing(run, at[role])
        role = next(
            (r for r in owing if r in at and r not in chain),
            next((r for r in owing if r in at), None),
        )
    circle = role is not None
    if role is not None:
        chain = chain[chain.index(role) :]
    return tuple(at[r] for r in chain), circle


def _owing(run: Run, place: Place) -> list[int]:
    """Roles whose arrival a stuck role waits for: those that have made fewest, for their share."""
    system, bar = run.layout.system, place.action.bar
    if bar < 0:
        return []
    share: dict[int, int] = {}
    for r in system.arrivers[bar]:
        role = system.roles[r]
        share[r] = sum(
            x.bar == bar and x.do is not Do.WAIT for x in (*role.first, *role.rest, *role.last)
        )
    done = {r: run.counts.get((bar, r, False), 0) / max(1, n) for r, n in share.items()}
    return sorted((r for r in done if r != place.action.role), key=lambda r: done[r])


def _drain(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    return Diagnostic(
        code="FA0315",
        title=f"{operation_text(system, fault.at)} may still be at work when all roles have ended",
        span=fault.at.action.span,
        label=f"issued in {when(fault.at, verdict.word)}",
        why="shared and tensor memory are given to another CTA at exit",
        fix=f"let a role wait for `{operation(fault.at.action)}` before it ends",
    )


def _overflow(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    bar = system.bars[fault.bar]
    return Diagnostic(
        code="FA0304",
        title=f"more than {bar.count} arrivals fall into {_phase(fault, bar.stages)} of `{bar.name}`",
        span=fault.at.action.span or bar.span,
        label=f"in {when(fault.at, verdict.word)}",
        notes=_users(system, fault),
        why="what is too many is counted in the next phase",
        fix="let the count be the sum of the arrivals of one phase",
    )


def _runaway(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    return Diagnostic(
        code="FA0327",
        title=f"`{system.roles[fault.at.action.role].name}` is left behind without bound",
        span=fault.at.action.span,
        label=f"still at {action_text(system, fault.at.action.role, fault.at.action)}",
        notes=tuple(note(system, p, verdict.word) for p in fault.stuck[1:4]),
        why="the other roles never wait for it, so no bound on the number of cases exists",
        fix="let one of them wait for an arrival of this role",
    )


_WRITERS: dict[str, Callable[[System, Verdict, Fault], Diagnostic]] = {
    "race": _race,
    "mixed": _mixed,
    "early": _early,
    "lapped": _lapped,
    "deadlock": _deadlock,
    "drain": _drain,
    "overflow": _overflow,
    "runaway": _runaway,
}
