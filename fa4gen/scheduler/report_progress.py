"""Programs that do not come to their end, as errors: deadlock, drain, runaway."""

from typing import TYPE_CHECKING

from fa4gen.diag import Diagnostic, Note

from .closure import Verdict
from .model import Do, System
from .run import HARDWARE, Fault, Place, Run, run_word
from .words import action_text, note, operation, operation_text, when, word_text

if TYPE_CHECKING:
    from .graph import Edge


def deadlock(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    """FA0302 if the block loop itself holds a cycle without a token, else FA0303: a seam."""
    from .graph import loop_graph, zero_cycle  # networkx takes 0.2 s to load: only when needed

    cycle = zero_cycle(loop_graph(system))
    return _cycle(system, verdict, cycle) if cycle else _stuck(system, verdict, fault)


def _cycle(system: System, verdict: Verdict, cycle: "tuple[Edge, ...]") -> Diagnostic:
    """The cycle, from barrier to barrier: who waits there for whom, by how many blocks."""
    hops = [e for e in cycle if e.bar >= 0] or list(cycle)
    names = [f"`{system.roles[e.target[0]].name}`" for e in hops]
    notes = []
    for e in hops:
        (waiter, i, _), (source, j, _) = e.target, e.source
        block = {0: "the same block"}.get(e.distance, f"the block {_ago(e.distance)}")
        arrives = action_text(system, source, system.roles[source].rest[j])
        waits = action_text(system, waiter, system.roles[waiter].rest[i])
        text = f"{waits}; {arrives} in {block}"
        notes.append(Note(text=text, span=system.roles[waiter].rest[i].span))
    role, position, _ = hops[0].target
    first = system.roles[role].rest[position]
    return Diagnostic(
        code="FA0302",
        title=f"deadlock: {' → '.join([*names, names[0]])} holds no token",
        span=first.span or system.bars[hops[0].bar].span,
        label=f"waits here in every block; stuck with {word_text(verdict.word, verdict.open)}",
        notes=tuple(notes),
        why="each waits for the next, round the circle, before it gives what the one before wants",
        fix="let one of them wait later or arrive earlier, or give the circle a stage more",
    )


def _ago(distance: int) -> str:
    return f"{distance} before" if distance > 0 else f"{-distance} after"


def _stuck(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    run = run_word(system, verdict.word, HARDWARE, verdict.open)
    chain, circle = waits_for(run, fault.stuck)
    first = chain[0]
    names = [f"`{system.roles[p.action.role].name}`" for p in chain]
    names += names[:1] if circle else []
    notes = tuple(
        note(system, p, verdict.word, f"{_what(system, p)} {_waiting(system, p, q)}")
        for p, q in zip(chain, (*chain[1:], chain[0] if circle else None), strict=True)
    )
    bar = system.bars[first.action.bar] if first.action.bar >= 0 else None
    return Diagnostic(
        code="FA0303",
        title=f"deadlock: {' → '.join(names)} "
        + ("wait for each other" if circle else "waits for ever"),
        span=first.action.span or (bar.span if bar else None),
        label=f"in {when(first, verdict.word)}",
        notes=notes,
        why=f"with {word_text(verdict.word, verdict.open)} nobody can go on",
        fix="see which arrival is missing, comes too late, or belongs to another block",
    )


def _what(system: System, place: Place) -> str:
    return action_text(system, place.action.role, place.action)


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


def drain(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    return Diagnostic(
        code="FA0315",
        title=f"{operation_text(system, fault.at)} may still be at work when all roles have ended",
        span=fault.at.action.span,
        label=f"issued in {when(fault.at, verdict.word)}",
        why="shared and tensor memory are given to another CTA at exit",
        fix=f"let a role wait for `{operation(fault.at.action)}` before it ends",
    )


def runaway(system: System, verdict: Verdict, fault: Fault) -> Diagnostic:
    return Diagnostic(
        code="FA0327",
        title=f"`{system.roles[fault.at.action.role].name}` is left behind without bound",
        span=fault.at.action.span,
        label=f"still at {action_text(system, fault.at.action.role, fault.at.action)}",
        notes=tuple(note(system, p, verdict.word) for p in fault.stuck[1:4]),
        why="the other roles never wait for it, so no bound on the number of cases exists",
        fix="let one of them wait for an arrival of this role",
    )
