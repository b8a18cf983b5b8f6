"""A pipeline ten times as large is proved in less than five seconds, with no more frontiers."""

import time

from fa4gen.driver import check
from fa4gen.scheduler.closure import closure
from fa4gen.scheduler.instantiate import instantiate
from tests.pipelines.copies import copies
from tests.scheduler.schedules import SCHEDULES

MOST_SECONDS = 5.0  # it takes half a second; the rest is for busy machines


def test_ten_times_as_large() -> None:
    one = instantiate(check(SCHEDULES / "fwd_hd128.yaml").program.value)
    began = time.perf_counter()
    ten = closure(copies(one, 10))
    assert time.perf_counter() - began < MOST_SECONDS
    assert not ten.faults
    assert ten.frontiers == closure(one).frontiers
