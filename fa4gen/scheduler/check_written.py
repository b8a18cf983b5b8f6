"""FA0328: what is read must have been written, in this block (tile) and not in another.

Order alone does not see it: a slot that nobody fills is never in anybody's way.
"""

from collections.abc import Iterator

from fa4gen.diag import Diagnostic

from .model import Action, Role, System, Use
from .words import action_text

LONGEST = 3  # blocks: a first, a middle and a last one; longer tiles only repeat the middle
Version = tuple[int, int]  # region, version


def check_written(system: System) -> Iterator[Diagnostic]:
    """The first read of each statement that nobody wrote for, over tiles of up to three blocks."""
    reported: set[int] = set()
    for blocks in range(1, LONGEST + 1):
        written: dict[Version, int] = {}  # the first rank that writes
        for _, _, use, version in _uses(system, blocks):
            if use.write:
                written[version] = min(use.rank, written.get(version, use.rank))
        for role, x, use, version in _uses(system, blocks):
            lacks = not use.write and written.get(version, use.rank) >= use.rank
            if lacks and id(x.stmt or x) not in reported:
                reported.add(id(x.stmt or x))
                yield Diagnostic(
                    code="FA0328",
                    title=f"{action_text(system, role, x)} with "
                    f"{system.regions[use.region].what} that nobody has written",
                    span=x.span,
                    label=f"{_which(use, version[1])} of a tile of {blocks}",
                    why="it would read what an earlier block or tile has left there",
                    fix="let an operation of the same block write it, or leave the reader out",
                )


def _which(use: Use, version: int) -> str:
    return f"block {version // use.a}" if use.a else "once a tile, also"


def _uses(system: System, blocks: int) -> Iterator[tuple[int, Action, Use, Version]]:
    """Every access of one tile, with the version that it means."""
    for n, role in enumerate(system.roles):
        for block, x in _actions(role, blocks):
            for use in x.uses:
                version = use.a * (block - x.prev) + use.b if use.a else 0
                yield n, x, use, (use.region, version)


def _actions(role: Role, blocks: int) -> Iterator[tuple[int, Action]]:
    yield from ((0, x) for x in role.first)
    for block in range(1, blocks):
        yield from ((block, x) for x in role.rest)
    yield from ((blocks - 1, x) for x in role.last)
