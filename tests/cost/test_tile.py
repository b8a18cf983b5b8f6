"""The published cycle tables, from the schedule and from lists of products."""

from pathlib import Path

import pytest

from fa4gen.cost.rates import RATES, rates_of
from fa4gen.cost.tile import backward_load, backward_products, products, tile_load
from fa4gen.diag import Fa4genError
from fa4gen.dsl import load

SCHEDULES = Path(__file__).parents[2] / "schedules"
B200 = RATES["sm_100a"]


def test_the_forward_of_the_published_table_from_the_schedule() -> None:
    """FA4, arXiv 2603.05451, Table 1, tiles of 128: 1024 tensor core, 1024 exp, 768 shared."""
    found = tile_load(load(SCHEDULES / "fwd_hd128.yaml"), B200)
    assert found.one["tensor core"] == 1024
    assert found.exponentials == 1024
    assert found.one["shared memory"] == 768
    assert found.all["tensor core"] == 2048  # two query tiles; M = 256 in the same table
    assert found.all["L2 cache"] == found.one["L2 cache"]


def test_the_fma_share_takes_load_off_mufu() -> None:
    path = SCHEDULES / "fwd_hd128.yaml"
    without = tile_load(load(path, settings={"exp2.fma_share": "0"}), B200)
    half = tile_load(load(path, settings={"exp2.fma_share": "0.5"}), B200)
    assert without.one["MUFU"] == 1024
    assert half.one["MUFU"] == 512
    assert half.one["FMA"] > without.one["FMA"]
    assert tile_load(load(path), RATES["sm_103a"]).exponentials == 512  # twice the MUFU


@pytest.mark.parametrize(("pair", "shared"), [(False, 3328), (True, 2688)])
def test_the_backward_of_the_published_table(pair: bool, shared: int) -> None:
    found = backward_load(128, 128, 128, B200, pair=pair)
    assert found.one["tensor core"] == 2560
    assert found.exponentials == 1024
    assert found.one["shared memory"] == shared


def test_a_backward_schedule_has_five_products() -> None:
    """Two consumers of 64 keys, blocks of 64 queries: 10 M N d, and dQ's product sums over both."""
    schedule = load(SCHEDULES / "bwd_hd128_sm90.yaml")
    found = tile_load(schedule, RATES["sm_90a"])
    assert sum(p.flop for p in products(schedule)) == 10 * 64 * 64 * 128
    assert found.all["tensor core"] == 2 * 10 * 64 * 64 * 128 / 4096
    assert found.one["L2 cache"] == (2 * 64 * 128 * 2 + 2 * 64 * 4) / RATES["sm_90a"].l2_bytes


def test_the_backward_formula_as_published() -> None:
    """(4 M d + 3 N d + M N) / 64 + M N / 64 + M d / 16, for tiles that are not square."""
    m, n, d = 64, 128, 128
    formula = (4 * m * d + 3 * n * d + m * n) / 64 + m * n / 64 + m * d / 16
    assert backward_load(m, n, d, B200).one["shared memory"] == formula
    assert sum(p.flop for p in backward_products(m, n, d)) == 10 * m * n * d


def test_a_target_without_rates_is_refused() -> None:
    with pytest.raises(Fa4genError, match="FA0215"):
        rates_of("sm_120a")
