"""Keys of a tile shared out among CTAs, and combined, in the emulator: right, no race, no hang."""

from pathlib import Path

import pytest

from fa4gen import driver
from fa4gen.diag import Fa4genError
from fa4gen.emulate import emulate

SCHEDULES = Path(__file__).parents[1] / "schedules"
PACKED = {"pack_gqa": "true", "causal": "true"}


@pytest.mark.dsl
@pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"])
@pytest.mark.parametrize(
    ("splits", "batch", "heads", "sq", "sk"),
    [
        (3, 3, 3, 1, 700),  # decoding, several sequences
        (2, 2, 10, 4, 500),  # several new tokens: causal among them
        (7, 1, 2, 5, 300),  # more splits than blocks
        (2, 1, 1, 70, 40),  # rows without keys in any split: 0 and -inf
        (3, 1, 2, 200, 400),  # several tiles, diagonals in different splits
    ],
)
def test_splits_give_what_one_tile_gives(
    name: str, splits: int, batch: int, heads: int, sq: int, sk: int
) -> None:
    pytest.importorskip("cutlass")
    done = emulate(
        SCHEDULES / f"{name}.yaml",
        settings=PACKED,
        splits=splits,
        batch=batch,
        heads=2 * heads if batch == 2 else heads,
        heads_kv=2 if batch == 2 else 1,
        seqlen_q=sq,
        seqlen_k=sk,
        seed=splits,
    )
    assert done.ok, str(done)


def test_each_split_would_count_the_sink() -> None:
    settings = {"split_kv": "true", "sinks": "true"}
    with pytest.raises(Fa4genError, match=r"FA0223.*every split would count the `sinks`"):
        driver.check(SCHEDULES / "fwd_hd128.yaml", settings=settings)
