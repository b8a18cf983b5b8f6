"""Tiles over SMs: order, blocks and the end of the last one."""

import pytest

from fa4gen.cost.waves import Problem, blocks_of, makespan, order

CAUSAL = Problem(batch=1, heads=2, seqlen_q=512, seqlen_k=512, causal=True)


def test_blocks_of_a_causal_tile_grow_with_its_row() -> None:
    assert [blocks_of(CAUSAL, 128, 128, m) for m in range(4)] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    full = Problem(batch=1, heads=1, seqlen_q=512, seqlen_k=500, causal=False)
    assert blocks_of(full, 128, 128, 0) == (4, 1)


def test_longest_first() -> None:
    assert order(CAUSAL, 128, "lpt") == [3, 3, 2, 2, 1, 1, 0, 0]
    assert order(CAUSAL, 128, "single") == [0, 1, 2, 3, 0, 1, 2, 3]


@pytest.mark.parametrize(
    ("scheduler", "end"), [("single", 7.0), ("static_persistent", 7.0), ("lpt", 7.0)]
)
def test_four_tiles_on_two_sms(scheduler: str, end: float) -> None:
    assert makespan([1.0, 2.0, 3.0, 5.0], 2, scheduler) == end


def test_longest_first_ends_earlier_than_dealt_in_advance() -> None:
    clocks = [5.0, 3.0, 3.0, 2.0, 1.0]
    assert makespan(clocks, 2, "lpt") == 7.0
    assert makespan(clocks, 2, "lpt_persistent") == 9.0
    assert makespan([], 2, "lpt") == 0.0
