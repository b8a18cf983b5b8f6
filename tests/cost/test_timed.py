"""The slowest cycle: by hand, and against every cycle of small random graphs."""

import networkx as nx  # type: ignore[import-untyped]
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4gen.cost.timed import Arc, slowest_cycle


def arc(a: int, b: int, distance: int, delay: float) -> Arc:
    return Arc(source=a, target=b, distance=distance, delay=delay)


def test_the_slower_of_two_cycles() -> None:
    found = slowest_cycle([arc(0, 1, 0, 5), arc(1, 0, 1, 3), arc(1, 1, 1, 7), arc(0, 0, 2, 30)])
    assert found.period == 15
    assert [a.distance for a in found.arcs] == [2]


def test_distance_divides_and_negative_distances_count() -> None:
    assert slowest_cycle([arc(0, 1, -1, 4), arc(1, 0, 2, 6)]).period == 10
    assert slowest_cycle([arc(0, 1, 0, 4)]).period == 0


@settings(max_examples=80, deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.integers(0, 4), st.integers(0, 4)),
        st.tuples(st.integers(1, 3), st.integers(0, 20)),
        max_size=12,
    )
)
def test_it_is_the_maximum_over_all_cycles(edges: dict[tuple[int, int], tuple[int, int]]) -> None:
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_edges_from(edges)
    ratios = [0.0]
    for cycle in nx.simple_cycles(graph):
        pairs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
        ratios.append(sum(edges[p][1] for p in pairs) / sum(edges[p][0] for p in pairs))
    found = slowest_cycle([arc(a, b, *v) for (a, b), v in edges.items()])
    assert abs(found.period - max(ratios)) < 1e-6
