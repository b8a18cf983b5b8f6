"""Features of a problem, built and run in the emulator: right values, no race, no hang.

A few shapes here; `python bench/features.py` runs all of them.
"""

from pathlib import Path

import pytest

from fa4gen.emulate import Emulated, emulate

SCHEDULES = Path(__file__).parents[1] / "schedules"
BOTH = pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"])


def run(name: str, **asked: object) -> Emulated:
    pytest.importorskip("cutlass")
    given = {"heads": 2, "heads_kv": 1, "num_sms": 1} | asked
    return emulate(SCHEDULES / f"{name}.yaml", **given)  # type: ignore[arg-type]


@pytest.mark.dsl
@BOTH
def test_windows_are_run_time_values_of_one_kernel(name: str) -> None:
    for window, sq, sk in (
        ((100, 0), 300, 500),
        ((37, None), 77, 391),
        ((0, 128), 129, 129),
        ((-40, 90), 391, 77),
        ((5000, 5000), 129, 300),
    ):
        done = run(name, window=window, seqlen_q=sq, seqlen_k=sk, seed=sq)
        assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_blocks_outside_of_a_window_are_never_visited(name: str) -> None:
    """One tile of 64 queries over 4000 keys: 3, 6 or all 32 blocks of K and of V are loaded."""

    def loads(left: int | None) -> int:
        done = run(name, heads=1, seqlen_q=64, seqlen_k=4000, races=False, window=(left, 0))
        assert done.ok, str(done)
        counts = done.report.opcodes
        return sum(n for op, n in counts.items() if "tensor.4d.shared::cta.global" in op)

    three, six, all_of_them = (loads(left) for left in (200, 600, None))
    assert six - three == 2 * (6 - 3)
    assert all_of_them - six == 2 * (32 - 6)


@pytest.mark.dsl
@BOTH
def test_scores_are_capped_and_biased_and_rows_have_sinks(name: str) -> None:
    """All at once; rows without keys give 0 and the sink."""
    asked = dict.fromkeys(("window", "softcap", "alibi", "sinks"), "true")
    for window, sq, sk in (((100, 20), 129, 300), ((None, -150), 300, 200)):
        done = run(
            name, settings=asked, batch=2, window=window, softcap=20, seqlen_q=sq, seqlen_k=sk
        )
        assert done.ok, str(done)
        ops = done.report.opcodes
        powers, reciprocals = (
            sum(n for op, n in ops.items() if op.startswith(f"{name}.approx"))
            for name in ("ex2", "rcp")
        )
        assert 5 * reciprocals < powers  # two of a score, and one reciprocal of four
