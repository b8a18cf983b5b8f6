"""The Blackwell backward's kernels in the emulator: right gradients, no race, no hang."""

from pathlib import Path

import pytest

from fa4gen.emulate import emulate

SCHEDULES = Path(__file__).parents[1] / "schedules"


@pytest.mark.dsl
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (127, 129), (300, 130), (129, 300)])
def test_gradients_are_right(queries: int, keys: int, seed: int) -> None:
    pytest.importorskip("cutlass")
    got = emulate(
        SCHEDULES / "bwd_hd128.yaml",
        settings={"causal": "true"},
        heads=3,
        heads_kv=1,
        seqlen_q=queries,
        seqlen_k=keys,
        seed=seed,
    )
    assert got.ok, str(got)
    assert [v.name for v in got.verdicts] == ["dq", "dk", "dv"]


@pytest.mark.dsl
@pytest.mark.parametrize(
    ("head_dim", "head_dim_v"),
    [(8, 16), (80, 40)],  # parts of dQ in one and in three boxes, of which there are two
    ids=["one part of dq, rows of one piece", "three parts of dq"],
)
def test_narrow_and_odd_heads_are_right(head_dim: int, head_dim_v: int) -> None:
    pytest.importorskip("cutlass")
    got = emulate(
        SCHEDULES / "bwd.yaml",
        settings={"head_dim": str(head_dim), "head_dim_v": str(head_dim_v)},
        heads=2,
        heads_kv=1,
        seqlen_q=260,
        seqlen_k=130,
    )
    assert got.ok, str(got)
