"""A lowered program as the theory sees it: roles of actions over barriers, regions and units.

Every instance of a role is a role of its own here (and its first warp too, where that warp acts
for the others). A role runs  start · tile* · end ; a tile runs  first · rest … rest · last, or
`none` if it has no blocks. All roles consume the same word: the list of block counts of the work
tiles.

The n-th wait (arrival) of a role on a ring of S stages uses slot n mod S; a wait asks for the
phase n div S, or for the one before where the first lap is free. What is printed must agree
(`check_cursors`). Arrivals have weights, in threads, so that `count` is the number in
mbarrier.init.
"""

from dataclasses import dataclass, field
from enum import IntEnum

from fa4gen.diag import Span
from fa4gen.ir.program import Stmt


class Do(IntEnum):
    """What an action is."""

    WAIT = 0  # until the role's next phase of a mbarrier is complete
    ARRIVE = 1  # at a mbarrier, or at a named barrier without waiting
    SYNC = 2  # joins a round of a named barrier and waits for its end
    TOUCH = 3  # the role's own reads and writes
    ISSUE = 4  # one operation (or group) of an asynchronous unit
    COMMIT = 5  # an arrival once everything issued to the unit before is done
    LOAD = 6  # a copy that arrives by itself, unordered among its like
    PENDING = 7  # waits until at most n operations of the unit are running
    FENCE = 8  # fence.proxy.async
    SETTLE_LOADS = 9  # tcgen05.wait::ld
    SETTLE_STORES = 10  # tcgen05.wait::st


ARRIVES = (Do.ARRIVE, Do.COMMIT, Do.LOAD, Do.SYNC)
WAITS = (Do.WAIT, Do.SYNC)
SECTIONS = ("start", "first", "rest", "last", "none", "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One access to a version of a region: version = a * block + b, or the tile's number if a is
    0.
    """

    region: int
    write: bool
    rank: int
    a: int = 1
    b: int = 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Action:
    """One statement of one role, and where it comes from.

    `bar`, `unit`: indices, -1 for none; `weight`: arrivals that it makes; `groups`: of a PENDING;
    `tx_bytes`: of a LOAD. `prev`: it belongs to the block before the loop's.
    """

    do: Do
    bar: int = -1
    unit: int = -1
    weight: int = 1
    free: bool = False
    groups: int = 0
    tx_bytes: int = 0
    uses: tuple[Use, ...] = ()
    prev: bool = False
    role: int = 0
    section: str = ""
    position: int = 0
    name: str = ""
    stmt: Stmt | None = None

    @property
    def span(self) -> Span | None:
        """The YAML line that it was made from."""
        return self.stmt.span if self.stmt else None

    def skeleton(self) -> tuple[object, ...]:
        """All that the checks read of it."""
        return (
            self.do, self.bar, self.unit, self.weight, self.free, self.groups, self.tx_bytes,
            self.uses, self.prev,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A sequential actor; `declared`: the schedule's role, `instance` of it."""

    name: str
    declared: str = ""
    instance: int = 0
    start: tuple[Action, ...] = ()
    first: tuple[Action, ...] = ()
    rest: tuple[Action, ...] = ()
    last: tuple[Action, ...] = ()
    none: tuple[Action, ...] = ()
    end: tuple[Action, ...] = ()
    span: Span | None = None

    def section(self, name: str) -> tuple[Action, ...]:
        """The actions of one section."""
        found: tuple[Action, ...] = getattr(self, name)
        return found

    @property
    def actions(self) -> tuple[Action, ...]:
        """All of them, in the order of sections."""
        return (*self.start, *self.first, *self.rest, *self.last, *self.none, *self.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A ring of `stages` barriers; `declared`: the program's barrier, `instance` of it."""

    name: str
    count: int
    stages: int = 1
    named: bool = False
    declared: str = ""
    instance: int | None = None
    tx_bytes: int = 0
    tx_turns: tuple[int, ...] = ()
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A ring of `stages` slots of storage, in `space` 'smem' | 'tmem' | 'rmem'."""

    name: str
    stages: int = 1
    space: str = "smem"
    what: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """An asynchronous unit: `in_order` if its operations take effect as issued (`assumption` says
    why).
    """

    name: str
    in_order: bool
    assumption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """A whole pipeline; `empty_tiles`: work tiles without blocks occur.

    `split_roles`: declared roles whose first warp acts for the others, and is an actor of its own.
    """

    name: str
    roles: tuple[Role, ...]
    bars: tuple[Bar, ...]
    regions: tuple[Region, ...]
    units: tuple[Unit, ...] = ()
    empty_tiles: bool = True
    split_roles: tuple[str, ...] = ()
    waiters: tuple[frozenset[int], ...] = field(init=False, repr=False, compare=False)
    arrivers: tuple[frozenset[int], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        waiters: list[set[int]] = [set() for _ in self.bars]
        arrivers: list[set[int]] = [set() for _ in self.bars]
        for n, role in enumerate(self.roles):
            for x in role.actions:
                if x.do in WAITS:
                    waiters[x.bar].add(n)
                if x.do in ARRIVES:
                    arrivers[x.bar].add(n)
        object.__setattr__(self, "waiters", tuple(map(frozenset, waiters)))
        object.__setattr__(self, "arrivers", tuple(map(frozenset, arrivers)))
