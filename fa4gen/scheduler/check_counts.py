"""Rates, arrival counts and bytes: what the statements really give, against what the barriers
expect.

In every period of a program (a block of the loop; a tile's first and last block; a tile without
blocks) the arrivals at a barrier must be its count, once for each wait of each waiting role. If
they are another multiple throughout, the count is wrong; if they are none, roles drift apart.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fa4gen.diag import Diagnostic, Note
from fa4gen.ir.head import Head
from fa4gen.ir.program import KernelProgram, TmaLoad, TryCancel

from .instantiate import statements
from .model import ARRIVES, WAITS, Action, Bar, Do, Role, System
from .tile_ring import ANSWER_BYTES
from .words import action_text

ELEMENT_BYTES = 2  # boxes are of 16-bit elements
PERIODS = (("a block of the loop", ("rest",)), ("a tile of one block", ("first", "last")))
EMPTY = ("a tile without blocks", ("none",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Period:
    """What one barrier sees in one period: arrivals (in threads), bytes, waits of each role."""

    name: str
    arrivals: int
    tx_bytes: int
    waits: dict[int, int]


def check_counts(system: System) -> Iterator[Diagnostic]:
    """FA0301 rates, FA0304 counts, FA0305 bytes in a phase, FA0325 a barrier of one side only."""
    for n, bar in enumerate(system.bars):
        if not system.arrivers[n] and not system.waiters[n]:
            continue
        if not system.arrivers[n] or not system.waiters[n]:
            yield _one_sided(system, n)
            continue
        periods = [_period(system, n, name, of) for name, of in _periods(system)]
        found = _rates(periods)
        if found is None:
            yield _drift(system, n, periods)
        elif found and found != bar.count:
            yield _count(system, n, found)
        elif bar.tx_bytes or any(p.tx_bytes for p in periods):
            yield from _bytes(system, n, periods)


def check_boxes(program: KernelProgram) -> Iterator[Diagnostic]:
    """FA0305: the bytes that a load arms are those of its boxes (rows past the end count too)."""
    head = program.head
    if not isinstance(head, Head):
        return
    maps = {m.name: m for m in head.maps}
    for role in program.roles:
        for s in statements(role):
            if isinstance(s, TryCancel) and s.tx_bytes != ANSWER_BYTES:
                yield Diagnostic(
                    code="FA0305",
                    title=f"`{s.operation}` arms {s.tx_bytes} bytes, an answer has {ANSWER_BYTES}",
                    span=s.span,
                    why="the phase completes too soon, or never",
                )
            if not isinstance(s, TmaLoad) or s.tensor_map not in maps:
                continue
            box = maps[s.tensor_map]
            count = len(s.boxes) * max(s.lanes, 1)
            row = count * box.cols * ELEMENT_BYTES
            armed, real = s.armed or str(s.tx_bytes), str(row * box.rows)
            if box.packed:
                real = f"pack * queries * {row}"
            if armed != real or s.tx_bytes != row * box.rows:
                yield Diagnostic(
                    code="FA0305",
                    title=f"`{s.operation}` arms {armed} bytes, its boxes bring {real}",
                    span=s.span,
                    label=f"{count} boxes of {box.rows * box.cols * ELEMENT_BYTES} bytes",
                    why="the phase completes too soon, or never",
                )


def _periods(system: System) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (*PERIODS, EMPTY) if system.empty_tiles else PERIODS


def _period(system: System, bar: int, name: str, sections: tuple[str, ...]) -> Period:
    arrivals = tx_bytes = 0
    waits = dict.fromkeys(system.waiters[bar], 0)
    for n, x in _actions(system, bar, sections):
        if x.do in ARRIVES:
            arrivals += x.weight
            tx_bytes += x.tx_bytes
        if x.do in WAITS:
            waits[n] += 1
    return Period(name=name, arrivals=arrivals, tx_bytes=tx_bytes, waits=waits)


def _actions(system: System, bar: int, sections: tuple[str, ...]) -> Iterator[tuple[int, Action]]:
    for n, role in enumerate(system.roles):
        for section in sections:
            for x in role.section(section):
                if x.bar == bar and x.do is not Do.PENDING:
                    yield n, x


def _rates(periods: list[Period]) -> int | None:
    """Arrivals a phase, if that is one number everywhere (0: nothing happens here); else None."""
    found: set[int] = set()
    for p in periods:
        for waits in p.waits.values():
            if waits == 0 and p.arrivals == 0:
                continue
            if waits == 0 or p.arrivals % waits or not p.arrivals:
                return None
            found.add(p.arrivals // waits)
    if len(found) > 1:
        return None
    return found.pop() if found else 0


def _contributions(system: System, bar: int, sections: tuple[str, ...]) -> tuple[Note, ...]:
    notes = []
    for n, x in _actions(system, bar, sections):
        if x.do in ARRIVES:
            what = f"{x.weight} arrival{'s' * (x.weight != 1)}: {action_text(system, n, x)}"
            notes.append(Note(text=what, span=x.span))
    return tuple(notes)


def _count(system: System, n: int, found: int) -> Diagnostic:
    bar = system.bars[n]
    periods = [
        of for _, of in _periods(system) if any(x.do in ARRIVES for _, x in _actions(system, n, of))
    ]
    return Diagnostic(
        code="FA0304",
        title=f"`{bar.name}` expects {bar.count} arrivals a phase, its roles make {found}",
        span=bar.span,
        notes=_contributions(system, n, periods[0]),
        why="the phase opens before all have arrived"
        if found > bar.count
        else "the phase never opens",
        fix=f"let it count {found}, or change who arrives",
    )


def _drift(system: System, n: int, periods: list[Period]) -> Diagnostic:
    bar = system.bars[n]
    notes = []
    for p in periods:
        waits = ", ".join(
            f"`{system.roles[r].name}` waits {w} time{'s' * (w != 1)}" for r, w in p.waits.items()
        )
        notes.append(Note(text=f"in {p.name}: {_phases(bar, p)} completed, {waits}"))
    sections = tuple(s for _, of in _periods(system) for s in of)
    actions = [
        Note(text=f"{x.section}: {action_text(system, r, x)}", span=x.span)
        for r, x in _actions(system, n, sections)
    ]
    return Diagnostic(
        code="FA0301",
        title=f"`{bar.name}` is not awaited as often as it completes",
        span=bar.span,
        notes=(*notes, *actions),
        why="one side runs away from the other, until a phase is taken for another or nobody moves",
        fix="let every role wait once for each phase",
    )


def _phases(bar: Bar, p: Period) -> str:
    whole, rest = divmod(p.arrivals, bar.count)
    return f"{whole} phase{'s' * (whole != 1)}" + (
        f" and {rest} of {bar.count} arrivals" if rest else ""
    )


def _one_sided(system: System, n: int) -> Diagnostic:
    bar = system.bars[n]
    acts = system.arrivers[n] or system.waiters[n]
    roles: list[Role] = [system.roles[r] for r in sorted(acts)]
    who = ", ".join(dict.fromkeys(f"`{r.declared or r.name}`" for r in roles))
    lonely = bool(system.arrivers[n])
    return Diagnostic(
        code="FA0325",
        title=f"{who} {'arrives at' if lonely else 'waits on'} `{bar.name}`, and nobody "
        + ("waits there" if lonely else "arrives there"),
        span=bar.span or roles[0].span,
        notes=tuple(
            Note(text=action_text(system, r, x), span=x.span)
            for r in sorted(acts)
            for x in system.roles[r].actions
            if x.bar == n
        )[:4],
        why="its phases order nothing" if lonely else "the wait never ends",
        fix=f"remove `{bar.declared or bar.name}`, or give it its other side",
    )


def _bytes(system: System, n: int, periods: list[Period]) -> Iterator[Diagnostic]:
    bar = system.bars[n]
    for p in periods:
        phases = max(p.waits.values())
        if p.tx_bytes * len(bar.tx_turns or (1,)) != phases * (sum(bar.tx_turns) or bar.tx_bytes):
            yield Diagnostic(
                code="FA0305",
                title=f"`{bar.name}` is planned for {bar.tx_bytes} bytes a phase; in {p.name} "
                f"{p.tx_bytes} come in {phases} phase{'s' * (phases != 1)}",
                span=bar.span,
                why="loads and barrier disagree on what completes a phase",
            )
            return
