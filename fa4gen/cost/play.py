"""The pipeline played on paper: units are servers, and whoever comes first is served first.

An event of iteration i happens when all events that it waits for have happened (an edge of distance
d: that of iteration i - d), and then asks units for its work, piece by piece. Pieces of different
warps interleave, as warps do on a scheduler and matrix instructions on a tensor core. That gives
the loop's pace with contention, which the slowest cycle and the busiest unit only bound from below.
"""

import heapq
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

Piece = tuple[float, Mapping[str, float]]  # clocks at least, and clocks of each unit
Work = Sequence[Piece]
SETTLED = 8  # iterations until the pace is steady; as many again are measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """`target` of iteration i + distance comes `delay` clocks after `source` of iteration i."""

    source: Hashable
    target: Hashable
    distance: int
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """Clocks of an iteration once steady, and those of the first beyond that: filling the pipe."""

    pace: float
    fill: float


@dataclass(slots=True)
class _Play:
    links: Sequence[Link]
    work: Mapping[Hashable, Work]
    rounds: int
    waits: dict[tuple[Hashable, int], int] = field(default_factory=dict)
    ready: dict[tuple[Hashable, int], float] = field(default_factory=dict)
    done: dict[tuple[Hashable, int], float] = field(default_factory=dict)
    after: dict[Hashable, list[Link]] = field(default_factory=dict)
    free: dict[str, float] = field(default_factory=dict)

    def run(self) -> None:
        nodes = {x.source for x in self.links} | {x.target for x in self.links}
        for x in self.links:
            self.after.setdefault(x.source, []).append(x)
            for i in range(self.rounds):
                if 0 <= i - x.distance < self.rounds:
                    key = (x.target, i)
                    self.waits[key] = self.waits.get(key, 0) + 1
        order = count()
        starts = ((n, i) for n in sorted(nodes, key=repr) for i in range(self.rounds))
        queue = [(0.0, next(order), k, 0) for k in starts if not self.waits.get(k)]
        while queue:
            now, _, key, position = heapq.heappop(queue)
            pieces = self.work.get(key[0], ())
            if position < len(pieces):
                end = self._serve(now, pieces[position])
                heapq.heappush(queue, (end, next(order), key, position + 1))
                continue
            self.done[key] = now
            for x in self.after.get(key[0], ()):
                i = key[1] + x.distance
                if 0 <= i < self.rounds:
                    later = (x.target, i)
                    self.ready[later] = max(self.ready.get(later, 0.0), now + x.delay)
                    self.waits[later] -= 1
                    if not self.waits[later]:
                        heapq.heappush(queue, (self.ready[later], next(order), later, 0))

    def end_of(self, iteration: int) -> float:
        """When its last event happened."""
        return max((t for (_, i), t in self.done.items() if i == iteration), default=0.0)

    def _serve(self, now: float, piece: Piece) -> float:
        least, demands = piece
        end = now + least
        for unit, clocks in demands.items():
            self.free[unit] = max(now, self.free.get(unit, 0.0)) + clocks
            end = max(end, self.free[unit])
        return end


def play(links: Sequence[Link], work: Mapping[Hashable, Work]) -> Played:
    """Plays `2 * SETTLED` iterations; `work`: the pieces of each event that takes time.

    Events that no link names do not happen; a graph without events has a pace of 0.
    """
    game = _Play(links=links, work=work, rounds=2 * SETTLED + 1)
    game.run()
    ends = [game.end_of(i) for i in range(game.rounds)]
    pace = (ends[2 * SETTLED - 1] - ends[SETTLED - 1]) / SETTLED
    return Played(pace=pace, fill=ends[SETTLED - 1] - SETTLED * pace)


def pieces(clocks: Mapping[str, float], least: float, size: float) -> list[Piece]:
    """Work cut into pieces of about `size` clocks of the unit that it needs most."""
    most = max(least, *clocks.values(), 0.0) if clocks else least
    n = max(1, round(most / size))
    return [(least / n, {u: c / n for u, c in clocks.items()})] * n
