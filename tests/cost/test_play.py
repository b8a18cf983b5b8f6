"""The pipeline played, beside what can be worked out by hand, and beside its two bounds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fa4gen.cost.play import Link, pieces, play
from fa4gen.cost.timed import Arc, slowest_cycle


def links(*triples: tuple[str, str, int]) -> list[Link]:
    return [Link(source=a, target=b, distance=d) for a, b, d in triples]


def test_one_event_after_itself_takes_its_work() -> None:
    assert play(links(("a", "a", 1)), {"a": [(10.0, {})]}).pace == 10.0


def test_two_chains_share_a_unit() -> None:
    """Each alone needs 30 clocks, 20 of them on the unit: together the unit is the bound."""
    work = {k: [(20.0, {"u": 20.0}), (10.0, {})] for k in "ab"}
    assert play(links(("a", "a", 1)), work).pace == 30.0
    assert play(links(("a", "a", 1), ("b", "b", 1)), work).pace == 40.0


def test_a_ring_of_two_stages_lets_the_producer_run_ahead() -> None:
    work = {"load": [(100.0, {})], "use": [(60.0, {})]}
    ring = [("load", "use", 0), ("use", "use", 1)]
    assert play(links(*ring, ("use", "load", 1)), work).pace == 160.0
    assert play(links(*ring, ("use", "load", 2)), work).pace == 80.0


def test_nothing_takes_no_time() -> None:
    assert play([], {}).pace == 0.0


def test_pieces_add_up() -> None:
    cut = pieces({"u": 96.0, "v": 10.0}, 100.0, 32.0)
    assert len(cut) == 3
    assert abs(sum(x["v"] for _, x in cut) - 10.0) < 1e-9


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=3, max_size=3), st.integers(1, 3))
def test_no_faster_than_the_slowest_cycle_nor_the_busiest_unit(clocks: list[int], d: int) -> None:
    names = "abc"
    work = {n: [(float(c), {"u": float(c) / 2})] for n, c in zip(names, clocks, strict=True)}
    edges = [("a", "b", 0), ("b", "c", 0), ("c", "a", d)]
    arcs = [
        Arc(source=a, target=b, distance=n, delay=float(clocks[names.index(a)]))
        for a, b, n in edges
    ]
    pace = play(links(*edges), work).pace
    assert pace >= slowest_cycle(arcs).period - 1e-6
    assert pace >= sum(clocks) / 2 - 1e-6
