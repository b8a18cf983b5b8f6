"""The marked graph of the block loop: nodes are actions and operations, edges carry distances.

An edge (a, b, d) says that b of iteration i + d comes after a of iteration i. The endless loop is
live if and only if no cycle has a total distance of 0 or less, and a(i) comes before b(i + k) if
and only if the shortest distance is at most k. It explains best what it sees, and sees neither
seams nor counts: the proof is the exploration of all words (`closure`), this is its picture.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx  # type: ignore[import-untyped]

from .model import ARRIVES, WAITS, Action, Do, Role, System

Node = tuple[int, int, str]  # role, position in `rest`, 'step' | 'begin' | 'end' | 'join'
ASYNCHRONOUS = (Do.ISSUE, Do.LOAD, Do.COMMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One edge; `bar` is -1 for order within a role or unit, which `why` names."""

    source: Node
    target: Node
    distance: int
    bar: int
    why: str


def loop_graph(system: System) -> "nx.DiGraph[Node]":
    """The graph of all sections `rest`; of parallel edges the shortest is kept."""
    graph: nx.DiGraph[Node] = nx.DiGraph()

    def add(edges: Iterator[Edge]) -> None:
        for e in edges:
            if (
                not graph.has_edge(e.source, e.target)
                or graph[e.source][e.target]["d"] > e.distance
            ):
                graph.add_edge(e.source, e.target, d=e.distance, edge=e)

    for n, role in enumerate(system.roles):
        add(_program_order(n, role))
        add(_units(system, n, role))
    for n in range(len(system.bars)):
        add(_barrier(system, n))
    return graph


def zero_cycle(graph: "nx.DiGraph[Node]") -> tuple[Edge, ...]:
    """The edges of a cycle without a token; empty if there is none."""
    scale = graph.number_of_nodes() + 1
    shorter: nx.DiGraph[Node] = nx.DiGraph()
    root: Node = (-1, -1, "")
    for a, b, d in graph.edges(data="d"):
        shorter.add_edge(a, b, weight=d * scale - 1)  # a total of 0 turns negative
    for node in graph:
        shorter.add_edge(root, node, weight=0)
    if root not in shorter:
        return ()
    try:
        found = nx.find_negative_cycle(shorter, root)
    except nx.NetworkXError:
        return ()
    nodes = [n for n in found if n != root]
    return tuple(graph[a][b]["edge"] for a, b in pairwise(nodes))


def path(graph: "nx.DiGraph[Node]", source: Node, target: Node) -> tuple[Edge, ...] | None:
    """The edges of a shortest path, if there is one (in a live loop)."""
    if source not in graph or target not in graph:
        return None
    try:
        nodes = nx.bellman_ford_path(graph, source, target, weight="d")
    except nx.NetworkXNoPath:
        return None
    return tuple(graph[a][b]["edge"] for a, b in pairwise(nodes))


def begin_of(role: int, position: int, x: Action) -> Node:
    """The node at which an action's accesses begin."""
    return (role, position, "begin" if x.do in ASYNCHRONOUS else "step")


def end_of(role: int, position: int, x: Action) -> Node:
    """The node at which they are over."""
    return (role, position, "end" if x.do in ASYNCHRONOUS else "step")


def _program_order(n: int, role: Role) -> Iterator[Edge]:
    last = len(role.rest) - 1
    for i, x in enumerate(role.rest):
        here: Node = (n, i, "step")
        after = _entry(n, 0 if i == last else i + 1, role)
        why = "next block" if i == last else "program order"
        yield Edge(source=here, target=after, distance=int(i == last), bar=-1, why=why)
        if x.do is Do.SYNC:
            join = _entry(n, i, role)
            yield Edge(source=join, target=here, distance=0, bar=-1, why="joined")
        if x.do in ASYNCHRONOUS:
            begin, end = begin_of(n, i, x), end_of(n, i, x)
            yield Edge(source=here, target=begin, distance=0, bar=-1, why="issued")
            yield Edge(source=begin, target=end, distance=0, bar=-1, why="done")


def _entry(n: int, position: int, role: Role) -> Node:
    """Where an action begins: a role arrives at a round before it waits for the round's end."""
    return (n, position, "join" if role.rest[position].do is Do.SYNC else "step")


def _units(system: System, n: int, role: Role) -> Iterator[Edge]:
    """Order within units, and what commits and waits for groups learn."""
    chains: dict[int, list[int]] = {}
    for i, x in enumerate(role.rest):
        if x.do is Do.ISSUE:
            chains.setdefault(x.unit, []).append(i)
    for unit, chain in chains.items():
        if system.units[unit].in_order:
            for k, i in enumerate(chain):
                after = chain[(k + 1) % len(chain)]
                yield Edge(
                    source=(n, i, "end"),
                    target=(n, after, "begin"),
                    distance=int(k + 1 == len(chain)),
                    bar=-1,
                    why=f"`{system.units[unit].name}` works in order",
                )
    for i, x in enumerate(role.rest):
        if x.do not in (Do.COMMIT, Do.PENDING) or x.unit not in chains:
            continue
        chain = chains[x.unit]
        covered = sum(j < i for j in chain) - (x.groups if x.do is Do.PENDING else 0)
        target: Node = (n, i, "end" if x.do is Do.COMMIT else "step")
        for k, j in enumerate(chain):  # the newest instance of this operation among those covered
            yield Edge(
                source=(n, j, "end"),
                target=target,
                distance=-((covered - 1 - k) // len(chain)),
                bar=-1,
                why="committed" if x.do is Do.COMMIT else "waited for",
            )


def _barrier(system: System, bar: int) -> Iterator[Edge]:
    """By counting: arrival number a + m i meets wait number w + m i iff m divides a - w."""
    arrivals = list(_numbered(system, bar, ARRIVES))
    for n, i, x, k, m in _numbered(system, bar, WAITS):
        late = system.bars[bar].stages if x.do is Do.WAIT and x.free else 0
        for r, j, y, number, many in arrivals:
            if many != m or (number - (k - late)) % m or (r, j) == (n, i):
                continue
            yield Edge(
                source=_entry(r, j, system.roles[r]) if y.do is Do.SYNC else end_of(r, j, y),
                target=(n, i, "step"),
                distance=(number - (k - late)) // m,
                bar=bar,
                why=f"`{system.bars[bar].name}`",
            )


def _numbered(
    system: System, bar: int, kinds: tuple[Do, ...]
) -> Iterator[tuple[int, int, Action, int, int]]:
    """(role, position, action, its number in iteration 0, how many an iteration)."""
    named = system.bars[bar].named
    for n, role in enumerate(system.roles):
        for i, x in enumerate(role.rest):
            if x.bar != bar or x.do not in kinds:
                continue
            like = (x.do,) if named else kinds
            before = (*role.start, *role.first, *role.rest[:i])
            number = sum(y.bar == bar and y.do in like for y in before)
            if named and x.do is Do.ARRIVE:
                number += _tokens(system, bar, role)
            many = sum(y.bar == bar and y.do in like for y in role.rest)
            yield n, i, x, number, many


def _tokens(system: System, bar: int, role: Role) -> int:
    """Rounds of a named barrier in which another role stands in for this one before the loop."""
    return max(
        (
            sum(y.bar == bar and y.do is Do.ARRIVE for y in other.start)
            for other in system.roles
            if (other.declared or other.name, other.instance)
            != (role.declared or role.name, role.instance)
        ),
        default=0,
    )
