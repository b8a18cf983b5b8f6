"""A lowered program's block loop as the model reads it: statements, and what holds back what.

It is made from the very graph that the checker explains (`fa4gen.analyze`), so that the two cannot
disagree about structure.
"""

from collections.abc import Hashable
from dataclasses import dataclass

from fa4gen.ir.program import KernelProgram, Stmt
from fa4gen.ir.schedule import Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A point of the loop: `part` is 'step' (the role is there), 'begin' or 'end' (of what a unit
    does), 'join' (of a named barrier's round)."""

    key: Hashable
    role: str
    instance: int
    part: str
    stmt: Stmt | None
    last: bool = False  # the role's next event belongs to the next block
    share: float = 1.0  # of the operation's work, which may be done part by part
    actors: int = 1  # of this instance of the role: its first warp apart from the others, say


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """`target` of block i + distance comes after `source` of block i; `barrier`: through one."""

    source: Event
    target: Event
    distance: int
    barrier: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Everything that a prediction needs of one schedule."""

    schedule: Schedule
    program: KernelProgram
    edges: tuple[Edge, ...]
