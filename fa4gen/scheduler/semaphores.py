"""Ordered accumulation across CTAs: spin locks in global memory, whose liveness depends on
residency.

Work tiles are claimed in a fixed order by whichever CTA is free. A tile visits accumulators in its
own order; at each it waits until the accumulator's counter equals the tile's rank there, adds, and
counts up, at once or (`late`) only after its next wait. If each CTA finishes its tiles in the
order of its claims, then (theorem 5): with all tiles resident it is live if and only if the graph
of waits and increments has no cycle; and for every number of resident CTAs if and only if,
besides, no tile waits for one that is claimed later.

Assumed, and to be printed with every verdict: CTAs claim tiles in the order of their index.
Hardware starts blocks so and promises it nowhere; a ticket from an atomic counter makes it true.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fa4gen.diag import Diagnostic, Note

ASSUMPTION = "tiles are claimed in the order of block indices (a ticket counter makes it certain)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Accumulation:
    """`visits[n]`: accumulators of the n-th claimed tile, in its order; `ranks[m]`: tiles, in the
    order in which they may add to accumulator m; `late`: released after the next wait."""

    visits: Sequence[Sequence[int]]
    ranks: Mapping[int, Sequence[int]]
    late: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What liveness needs: `always` for any number of CTAs, else at least `least` (None: never
    live).
    """

    always: bool
    least: int | None


def check_semaphores(a: Accumulation) -> Iterator[Diagnostic]:
    """FA0323 an order that needs more CTAs than are certain, FA0324 ranks that are not all
    visitors.
    """
    wrong = list(_ranks(a))
    if wrong:
        yield from wrong
        return
    found = residency(a)
    if found.always:
        return
    backward = next(_backward(a), None)
    notes = (
        (
            Note(
                text=f"tile {backward[0]} waits at accumulator {backward[2]} for tile {backward[1]}"
            ),
        )
        if backward
        else ()
    )
    need = f"{found.least} CTAs resident at once" if found.least else "an order without a circle"
    yield Diagnostic(
        code="FA0323",
        title=f"the turns at the accumulators need {need} for {len(a.visits)} tiles",
        notes=notes,
        why="a tile spins for one that no CTA has claimed yet",
        fix="claim tiles in the order of their ranks, or demand a cooperative launch",
    )


def residency(a: Accumulation) -> Residency:
    """The number of resident CTAs that suffices; more never hurt (steps only enable)."""
    acyclic = _live(a, len(a.visits))
    always = acyclic and next(_backward(a), None) is None
    if always:
        return Residency(always=True, least=1)
    least = next((n for n in range(1, len(a.visits) + 1) if _live(a, n)), None)
    return Residency(always=False, least=least)


def _ranks(a: Accumulation) -> Iterator[Diagnostic]:
    for m in sorted({*a.ranks, *(m for visits in a.visits for m in visits)}):
        order = a.ranks.get(m, ())
        visitors = [n for n, visits in enumerate(a.visits) for v in visits if v == m]
        if len(set(visitors)) < len(visitors):
            yield Diagnostic(
                code="FA0324",
                title=f"accumulator {m} is visited twice by a tile: {visitors}",
                why="the turn of a tile comes once",
                fix="let a tile add to an accumulator once",
            )
        elif sorted(order) != visitors:
            yield Diagnostic(
                code="FA0324",
                title=f"accumulator {m} is visited by tiles {visitors}, ranked are {list(order)}",
                why="a rank that nobody takes is awaited for ever",
                fix="rank exactly the tiles that visit it (a mask leaves some out)",
            )


def _backward(a: Accumulation) -> Iterator[tuple[int, int, int]]:
    """(tile, tile claimed later for which it waits, accumulator)."""
    for m, order in sorted(a.ranks.items()):
        for before, after in pairwise(order):
            if before > after:
                yield after, before, m


def _program(a: Accumulation, tile: int) -> list[tuple[str, int]]:
    steps: list[tuple[str, int]] = []
    held: int | None = None
    for m in a.visits[tile]:
        steps.append(("wait", m))
        if held is not None:
            steps.append(("add", held))
        held = m
        if not a.late:
            steps.append(("add", m))
            held = None
    return steps if held is None else [*steps, ("add", held)]


def _live(a: Accumulation, workers: int) -> bool:
    """One greedy run, as good as all: every step only ever enables others."""
    counter = dict.fromkeys(a.ranks, 0)
    rank = {(m, n): r for m, order in a.ranks.items() for r, n in enumerate(order)}
    waiting = [iter(_program(a, n)) for n in range(len(a.visits))]
    running: dict[int, tuple[str, int] | None] = {}
    claimed, moved = 0, True
    while moved:
        moved = False
        while len(running) < workers and claimed < len(a.visits):
            running[claimed] = next(waiting[claimed], None)
            claimed, moved = claimed + 1, True
        for n in list(running):
            step = running[n]
            while step is not None and (step[0] == "add" or counter[step[1]] == rank[step[1], n]):
                counter[step[1]] += step[0] == "add"
                step, moved = next(waiting[n], None), True
            running[n] = step
            if step is None:
                del running[n]
                moved = True
    return claimed == len(a.visits) and not running
