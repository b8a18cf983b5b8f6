"""Small pipelines for tests: statements over barriers, buffers and units, in as few words as
possible.

A role runs  start · tile* · end ;  a tile with n > 0 blocks runs  first(0) · rest(1) … rest(n-1) ·
last(n-1), a tile without blocks runs  none.  All roles see the same list of block counts (the
"word").

`to_system` makes the checker's model of one. The oracle (`brute`) unrolls the same description by
itself (`unrolled`) and shares nothing with the checker.
"""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fa4gen.scheduler import model
from fa4gen.scheduler.model import Do


@dataclass(frozen=True)
class Barrier:
    """`count` arrivals complete a phase; `stages` of them make a ring; `named`: bar.sync,
    bar.arrive.
    """

    count: int = 1
    stages: int = 1
    named: bool = False


class Access(NamedTuple):
    """One access to version a * block + b of a buffer (a = 0: to that of the tile)."""

    buffer: str
    write: bool
    rank: int
    a: int = 1
    b: int = 0


def R(buffer: str, rank: int = 1, a: int = 1, b: int = 0) -> Access:  # noqa: N802
    return Access(buffer, False, rank, a, b)


def W(buffer: str, rank: int = 0, a: int = 1, b: int = 0) -> Access:  # noqa: N802
    return Access(buffer, True, rank, a, b)


@dataclass(frozen=True)
class Stmt:
    kind: str
    bar: str = ""
    unit: str = ""
    acc: tuple[Access, ...] = ()
    n: int = 0
    prev: bool = False  # its accesses belong to the block before
    name: str = ""


def wait(bar: str) -> Stmt:
    """Until the role's next phase of `bar` is complete."""
    return Stmt("wait", bar)


def free(bar: str) -> Stmt:
    """The same, one lap behind: the first `stages` times it passes at once."""
    return Stmt("wait", bar, n=1)


def arrive(bar: str) -> Stmt:
    return Stmt("arrive", bar)


def sync(bar: str) -> Stmt:
    return Stmt("sync", bar)


def touch(*acc: Access, name: str = "") -> Stmt:
    """The role's own reads and writes, from here to its next synchronising statement."""
    return Stmt("touch", acc=acc, name=name)


def issue(unit: str, *acc: Access, name: str = "") -> Stmt:
    return Stmt("issue", unit=unit, acc=acc, name=name)


def commit(unit: str, bar: str) -> Stmt:
    """One arrival once everything issued to the unit before is done."""
    return Stmt("commit", bar, unit)


def load(bar: str, *acc: Access, name: str = "") -> Stmt:
    """A copy, unordered among its like; arrives at `bar` when its bytes are there."""
    return Stmt("load", bar, acc=acc, name=name)


def pending(unit: str, n: int) -> Stmt:
    return Stmt("pending", unit=unit, n=n)


def fence() -> Stmt:
    return Stmt("fence")


def settle(what: str = "load") -> Stmt:
    """tcgen05.wait::ld or ::st; the oracle takes every access as over and seen at once."""
    return Stmt(f"settle_{what}")


def prev(*stmts: Stmt) -> list[Stmt]:
    return [replace(s, prev=True) for s in stmts]


SECTIONS = ("start", "first", "rest", "last", "none", "end")


@dataclass(frozen=True)
class Role:
    name: str
    start: tuple[Stmt, ...] = ()
    first: tuple[Stmt, ...] = ()
    rest: tuple[Stmt, ...] = ()
    last: tuple[Stmt, ...] = ()
    none: tuple[Stmt, ...] = ()
    end: tuple[Stmt, ...] = ()

    def section(self, name: str) -> tuple[Stmt, ...]:
        return getattr(self, name)


@dataclass(frozen=True)
class Pipeline:
    name: str
    roles: tuple[Role, ...]
    bars: dict[str, Barrier]
    buffers: dict[str, int]  # name -> stages
    units: dict[str, bool] = field(default_factory=dict)  # name -> operations take effect in order
    spaces: dict[str, str] = field(default_factory=dict)  # name -> 'tmem', 'rmem'; else 'smem'
    empty_tiles: bool = True


KINDS = {
    "wait": Do.WAIT,
    "arrive": Do.ARRIVE,
    "sync": Do.SYNC,
    "touch": Do.TOUCH,
    "issue": Do.ISSUE,
    "commit": Do.COMMIT,
    "load": Do.LOAD,
    "pending": Do.PENDING,
    "fence": Do.FENCE,
    "settle_load": Do.SETTLE_LOADS,
    "settle_store": Do.SETTLE_STORES,
}


def same(*body: Stmt) -> dict[str, tuple[Stmt, ...]]:
    """A role that does the same in every block."""
    return {"first": body, "rest": body}


def to_system(p: Pipeline) -> model.System:
    """The checker's model of a pipeline; arrivals weigh 1 each."""
    bars = {name: n for n, name in enumerate(p.bars)}
    regions = {name: n for n, name in enumerate(p.buffers)}
    units = {name: n for n, name in enumerate(p.units)}

    def actions(role: int, section: str, body: tuple[Stmt, ...]) -> tuple[model.Action, ...]:
        return tuple(
            model.Action(
                do=KINDS[s.kind],
                bar=bars.get(s.bar, -1),
                unit=units.get(s.unit, -1),
                free=s.kind == "wait" and bool(s.n),
                groups=s.n if s.kind == "pending" else 0,
                uses=tuple(
                    model.Use(region=regions[x.buffer], write=x.write, rank=x.rank, a=x.a, b=x.b)
                    for x in sorted(s.acc, key=lambda x: (x.rank, x.write))
                ),
                prev=s.prev,
                role=role,
                section=section,
                position=n,
                name=s.name,
            )
            for n, s in enumerate(body)
        )

    return model.System(
        name=p.name,
        roles=tuple(
            model.Role(name=r.name, **{s: actions(n, s, r.section(s)) for s in SECTIONS})
            for n, r in enumerate(p.roles)
        ),
        bars=tuple(
            model.Bar(name=name, count=b.count, stages=b.stages, named=b.named)
            for name, b in p.bars.items()
        ),
        regions=tuple(
            model.Region(name=name, stages=n, space=p.spaces.get(name, "smem"), what=f"`{name}`")
            for name, n in p.buffers.items()
        ),
        units=tuple(model.Unit(name=name, in_order=o) for name, o in p.units.items()),
        empty_tiles=p.empty_tiles,
    )
