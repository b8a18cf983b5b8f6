"""Timed event graphs: how long one iteration of an endless loop takes, and which cycle says so.

An arc (a, b, d) says that event b of iteration i + d comes no sooner than `delay` after event a of
iteration i. The cycle time is the largest (sum of delays) / (sum of distances) over all cycles; the
graph must be live (no cycle of total distance 0 or less).
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import networkx as nx  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arc:
    """One constraint; `delay` in clocks."""

    source: Hashable
    target: Hashable
    distance: int
    delay: float
    label: str = ""  # what takes the time


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """The slowest cycle: clocks an iteration, and its arcs in order."""

    period: float
    arcs: tuple[Arc, ...]


def slowest_cycle(arcs: Iterable[Arc]) -> Cycle:
    """The cycle that sets the pace; a period of 0 and no arcs if there is none.

    Starts below every cycle's ratio; while some cycle is slower than that, takes its ratio instead.
    Ratios only grow and cycles are finite, so it ends, with the exact maximum.
    """
    graph: nx.MultiDiGraph[Hashable] = nx.MultiDiGraph()
    for a in arcs:
        graph.add_edge(a.source, a.target, arc=a)
    best = Cycle(period=0.0, arcs=())
    for part in nx.strongly_connected_components(graph):
        inside = [a for _, _, a in graph.subgraph(part).edges(data="arc")]
        while inside and (slower := _slower_cycle(inside, best.period)):
            best = slower
    return best


def _slower_cycle(arcs: Sequence[Arc], period: float) -> Cycle | None:
    """A cycle whose ratio exceeds the period: positive under weights delay - period * distance."""
    nodes = {a.source for a in arcs} | {a.target for a in arcs}
    late = dict.fromkeys(nodes, 0.0)
    came: dict[Hashable, Arc] = {}
    changed: Hashable | None = None
    for _ in range(len(nodes)):
        changed = None
        for a in arcs:
            new = late[a.source] + a.delay - period * a.distance
            if new > late[a.target] + 1e-6:
                late[a.target], came[a.target], changed = new, a, a.target
        if changed is None:
            return None
    node = changed
    for _ in range(len(nodes)):  # back into the cycle
        assert node is not None
        node = came[node].source
    found: list[Arc] = []
    start = node
    while not found or node != start:
        assert node is not None
        found.append(came[node])
        node = came[node].source
    ratio = sum(a.delay for a in found) / sum(a.distance for a in found)
    return Cycle(period=ratio, arcs=tuple(reversed(found))) if ratio > period + 1e-9 else None
