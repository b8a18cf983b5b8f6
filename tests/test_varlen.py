"""Sequences of their own lengths, built and run in the emulator: right values, no race, no hang.

What lies behind a sequence is another sequence, or NaN: neither may be seen or overwritten.
"""

from pathlib import Path

import pytest

from fa4gen import driver
from fa4gen.diag import Fa4genError
from fa4gen.emulate import Emulated, emulate
from fa4gen.emulator.attention import AttentionProblem, attend, make_inputs
from fa4gen.ir.head import Head

SCHEDULES = Path(__file__).parents[1] / "schedules"
BOTH = pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"])


def run(name: str, *, causal: bool = False, packed: bool = False, **asked: object) -> Emulated:
    pytest.importorskip("cutlass")
    given = {"heads": 2, "heads_kv": 1, "num_sms": 2, "seqlen_q": 0, "seqlen_k": 0} | asked
    settings = {"causal": str(causal).lower(), "pack_gqa": str(packed).lower()}
    return emulate(SCHEDULES / f"{name}.yaml", settings=settings, **given)  # type: ignore[arg-type]


@pytest.mark.dsl
@BOTH
def test_packed_sequences_of_any_length_and_none(name: str) -> None:
    for lengths_q, lengths_k in (
        ((5, 0, 300, 1, 0), (7, 30, 0, 1, 140)),
        ((128, 128, 192), (128, 1, 129)),
        ((0,) * 9 + (70,), (3,) * 9 + (70,)),
    ):
        done = run(name, lengths_q=lengths_q, lengths_k=lengths_k, seed=len(lengths_q))
        assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_packed_sequences_with_packed_heads_in_splits(name: str) -> None:
    done = run(
        name,
        causal=True,
        packed=True,
        heads=6,
        heads_kv=2,
        splits=2,
        lengths_q=(3, 0, 2, 70),
        lengths_k=(300, 20, 0, 150),
    )
    assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_a_cache_of_keys_that_are_not_all_there(name: str) -> None:
    done = run(name, causal=True, seqlen_q=3, seqlen_k=300, batch=4, used_k=(300, 0, 129, 2))
    assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_tiles_without_rows_load_nothing(name: str) -> None:
    """Sequences that fill tiles exactly leave a slot each; its loads lie outside of the tensor."""
    rows = 192 if name.endswith("sm90") else 256
    done = run(name, lengths_q=(rows,) * 3, lengths_k=(700,) * 3, heads=1, races=False)
    alone = run(name, lengths_q=(rows,), lengths_k=(700,), heads=1, races=False)
    assert done.ok, str(done)
    assert done.report.warp_instructions < 3.3 * alone.report.warp_instructions


def test_more_sequences_than_a_grid_has_rows_lie_in_its_first_dimension() -> None:
    """80,000 sequences of 16 make as many slots; the second dimension ends at 65,535."""
    for causal in ("false", "true"):
        settings = {"varlen_q": "true", "varlen_k": "true", "causal": causal}
        checked = driver.check(SCHEDULES / "fwd_hd64_sm90.yaml", settings=settings)
        head = checked.program.value.head
        assert isinstance(head, Head)
        assert head.tiles.grid.startswith("(m_blocks, ")


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ({"lengths_q": (3, 4), "used_k": (1,)}, "2 for varlen_q, 1 for seqused_k"),
        ({"lengths_q": (3, -4)}, "varlen_q has one below 0"),
        ({"lengths_k": ()}, "0 for varlen_k"),
    ],
)
def test_lengths_that_make_no_problem_are_refused(lengths: dict[str, object], said: str) -> None:
    with pytest.raises(Fa4genError) as caught:
        run("fwd_hd64", **lengths)
    assert said in str(caught.value)


def test_the_reference_takes_each_sequence_alone() -> None:
    """Equal lengths, packed, are a batch."""
    import torch

    sizes = {"heads": 2, "head_dim": 16, "head_dim_v": 24, "causal": True, "dtype": "float32"}
    batch = AttentionProblem(batch=3, seqlen_q=4, seqlen_k=6, **sizes)
    packed = AttentionProblem(
        batch=3, seqlen_q=12, seqlen_k=18, lengths_q=(4,) * 3, lengths_k=(6,) * 3, **sizes
    )
    x = make_inputs(batch, 1)
    one = attend(packed, *(t.flatten(0, 1)[None] for t in (x.q, x.k, x.v)))
    all_of_them = attend(batch, x.q, x.k, x.v)
    assert torch.equal(one[0], all_of_them[0].flatten(0, 1)[None])
    assert torch.equal(one[1], all_of_them[1].transpose(0, 1).flatten(1)[None])
