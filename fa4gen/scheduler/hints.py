"""Barriers that order nothing: the proof goes through without them. Some are there for speed.

A barrier is left out with all its waits, arrivals and commits; copies stay, since they move data.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from .closure import closure
from .model import Action, Do, System
from .run import Run

LOOP = 6  # blocks of the endless tile on which the loop alone is judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """A declared barrier that could go: always, or (`seams`) from the loop alone."""

    barrier: str
    seams: bool

    @property
    def text(self) -> str:
        """One sentence."""
        if self.seams:
            return (
                f"`{self.barrier}` is implied in the loop, and needed at its ends or between tiles"
            )
        return f"`{self.barrier}` is implied by the others: it orders nothing by itself"


def hints(system: System) -> Iterator[Hint]:
    """One for each barrier of a sound system that is redundant for safety, or in the loop alone."""
    for name in dict.fromkeys(b.declared or b.name for b in system.bars):
        less = without(system, name)
        if less is None:
            continue
        run = Run(less)
        for _ in range(LOOP):
            run.block()
        if run.faults or any(p.block < LOOP - 1 for p in run.stuck()):
            continue
        needed = bool(closure(less).faults)
        if not needed or any(x.bar >= 0 and _is(system, x, name) for x in _loops(system)):
            yield Hint(barrier=name, seams=needed)


def _loops(system: System) -> Iterator[Action]:
    for role in system.roles:
        yield from role.rest


def _is(system: System, x: Action, declared: str) -> bool:
    bar = system.bars[x.bar]
    return (bar.declared or bar.name) == declared


def without(system: System, declared: str) -> System | None:
    """The system without a declared barrier; None if copies arrive there."""
    gone = {n for n, b in enumerate(system.bars) if (b.declared or b.name) == declared}

    def kept(body: tuple[Action, ...]) -> tuple[Action, ...]:
        return tuple(x for x in body if x.bar not in gone)

    for role in system.roles:
        if any(x.bar in gone and x.do is Do.LOAD for x in role.actions):
            return None
    roles = tuple(
        replace(
            role,
            start=kept(role.start),
            first=kept(role.first),
            rest=kept(role.rest),
            last=kept(role.last),
            none=kept(role.none),
            end=kept(role.end),
        )
        for role in system.roles
    )
    return replace(system, roles=roles)
