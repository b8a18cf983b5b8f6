"""A pipeline unrolled over one word: plain operations with slots, parities and accesses.

What an operation means on hardware is in `brute`. Nothing here is shared with the checker.
"""

from typing import NamedTuple

from tests.pipelines.small import Access, Pipeline, Stmt

Where = tuple[str, str, int, int, int]  # role, section, position, block, tile


class Op(NamedTuple):
    kind: str
    slot: tuple[str, int]  # (barrier, slot)
    parity: int  # wait: the parity asked for
    unit: str
    idx: int  # issue: its number in the unit; commit, pending: operations that must be done
    acc: tuple[int, ...]  # numbers of accesses
    where: Where


class Program:
    """The roles unrolled over a growing prefix of a word."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline, self.blocks, self.tiles, self.opened = pipeline, 0, 0, False
        self.ops: dict[str, list[Op]] = {r.name: [] for r in pipeline.roles}
        self.acc: list[tuple[str, int, int, int, bool, Where]] = []  # buffer, slot, key, write
        self.earlier: list[int] = []  # per access: mask of those to be over before it starts
        self.by_slot: dict[tuple[str, int], list[int]] = {}
        self.counters: dict[tuple[object, ...], int] = {}
        self._emit("start")

    def block(self) -> None:
        """One more block in the open tile, or the first of a new one."""
        self._emit("rest" if self.opened else "first")
        self.blocks, self.opened = self.blocks + 1, True

    def close(self) -> None:
        """The open tile has no more blocks; or the next tile has none."""
        if self.opened:
            self.blocks -= 1
            self._emit("last")
            self.blocks += 1
        else:
            self._emit("none")
        self.tiles, self.opened = self.tiles + 1, False

    def end(self) -> None:
        """No more tiles."""
        self._emit("end")

    def _emit(self, section: str) -> None:
        for role in self.pipeline.roles:
            for pos, s in enumerate(role.section(section)):
                where = (role.name, section, pos, self.blocks - s.prev, self.tiles)
                self.ops[role.name].append(self._op(role.name, s, where))

    def _op(self, role: str, s: Stmt, where: Where) -> Op:
        numbers = tuple(self._access(x, where) for x in s.acc)
        slot, parity, idx = ("", 0), 0, 0
        if s.bar:
            stages = self.pipeline.bars[s.bar].stages
            k = self._count(role, s.bar, s.kind == "wait")
            slot, parity = (s.bar, k % stages), (k // stages - s.n) & 1
        if s.kind == "issue":
            idx = self._count(role, s.unit)
        elif s.unit:
            idx = max(0, self.counters.get((role, s.unit), 0) - s.n)
        return Op(s.kind, slot, parity, s.unit, idx, numbers, where)

    def _count(self, *what: object) -> int:
        self.counters[what] = self.counters.get(what, 0) + 1
        return self.counters[what] - 1

    def _access(self, x: Access, where: Where) -> int:
        version = x.a * where[3] + x.b if x.a else where[4]
        slot = (x.buffer, version % self.pipeline.buffers[x.buffer])
        i, key = len(self.acc), (version, x.rank)
        self.acc.append((*slot, *key, x.write, where))
        self.earlier.append(0)
        for j in self.by_slot.setdefault(slot, []):
            other = self.acc[j]
            if (other[4] or x.write) and other[2:4] != key:
                a, b = (j, i) if other[2:4] < key else (i, j)
                self.earlier[b] |= 1 << a
        self.by_slot[slot].append(i)
        return i


def expand(pipeline: Pipeline, word: tuple[int, ...]) -> Program:
    """The program for the tiles of a word (block counts), to its end."""
    program = Program(pipeline)
    for n in word:
        for _ in range(n):
            program.block()
        program.close()
    program.end()
    return program
