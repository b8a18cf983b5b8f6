"""Shipped schedules with one barrier taken away: each is refused, for what that barrier was for."""

import re
import shutil
from pathlib import Path

import pytest

from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.driver import check

SCHEDULES = Path(__file__).parents[2] / "schedules"

# FA0217 and FA0213: nothing to complete on; FA0306 to FA0308: phases that mix, are taken early or
# are lapped; FA0309 to FA0311: data read before it is written, or overwritten; FA0314: an arrival
# that does not vouch for other lanes; FA0316: the order of asynchronous uses
WITHOUT = {
    "fwd_hd128": {
        "q_full": "FA0217",
        "q_empty": "FA0306",
        "kv": "FA0213",
        "s_full": "FA0316",
        "p_ready": "FA0309",
        "p_rest": "FA0309",
        "stats_full": "FA0307",
        "stats_empty": "FA0308",
        "o_full": "FA0309",
        "out_full": "FA0307",
        "out_empty": "FA0310",
    },
    "bwd_hd128": {
        "k_full": "FA0217",
        "k_empty": "FA0306",
        "v_full": "FA0217",
        "q": "FA0213",
        "do": "FA0217",
        "lse": "FA0213",
        "delta": "FA0217",
        "s_full": "FA0309",
        "p_ready": "FA0309",
        "dp_full": "FA0309",
        "ds_ready": "FA0309",
        "dq_full": "FA0307",
        "dq_empty": "FA0310",
        "dv_full": "FA0309",
        "dk_full": "FA0309",
    },
    "fwd_hd128_sm90": {"q_full": "FA0217", "q_empty": "FA0306", "k": "FA0213", "v": "FA0213"},
    "bwd_hd128_sm90": {
        "k_full": "FA0217",
        "k_empty": "FA0306",
        "k_done": "FA0310",
        "v_full": "FA0217",
        "q": "FA0213",
        "do": "FA0213",
        "lse": "FA0213",
        "delta": "FA0213",
        "ds_all": "FA0213",
        "dq_full": "FA0314",
        "dq_empty": "FA0310",
    },
}
CASES = [(s, b, code) for s, barriers in WITHOUT.items() for b, code in barriers.items()]


def barriers(schedule: str) -> dict[str, str]:
    """Names under `barriers:` and their lines."""
    text = (SCHEDULES / f"{schedule}.yaml").read_text()
    part = text.split("\nbarriers:")[1]
    part = re.split(r"^\w", part, maxsplit=1, flags=re.MULTILINE)[0]
    return {m[2]: m[1] for m in re.finditer(r"^(  (\w+)(?:\[s\])?: .*\n)", part, re.MULTILINE)}


def refused(schedule: str, replace: tuple[str, str], folder: Path) -> tuple[Diagnostic, ...]:
    """Why the schedule with `replace` is refused."""
    for path in SCHEDULES.glob("*.yaml"):
        shutil.copy(path, folder)
    text = (SCHEDULES / f"{schedule}.yaml").read_text()
    assert text.count(replace[0]) == 1
    path = folder / "edited.yaml"
    path.write_text(text.replace(*replace))
    with pytest.raises(Fa4genError) as caught:
        check(path)
    return tuple(caught.value.diagnostics)


@pytest.mark.parametrize("schedule", sorted(WITHOUT))
def test_every_barrier_is_tried(schedule: str) -> None:
    assert set(barriers(schedule)) == set(WITHOUT[schedule])


@pytest.mark.parametrize(("schedule", "barrier", "code"), CASES)
def test_no_barrier_can_be_left_out(schedule: str, barrier: str, code: str, tmp_path: Path) -> None:
    found = refused(schedule, (barriers(schedule)[barrier], ""), tmp_path)
    assert code in {d.code for d in found}
    assert all(d.span for d in found)


def test_without_stats_empty_one_block_is_refused(tmp_path: Path) -> None:
    """It looks redundant in the loop; at one block the sums overtake the wait for the factor."""
    first, *_ = refused("fwd_hd128", (barriers("fwd_hd128")["stats_empty"], ""), tmp_path)
    said = first.render()
    assert "`stats_full[0]` may complete two phases while `correction` waits for one" in said
    assert "in block 0 of tile 0" in said


def test_p_needs_both_who_write_before_it_is_used(tmp_path: Path) -> None:
    """PV adds to an O that the correction has not rescaled yet."""
    edit = ('after: ["exp[s].0", "rescale[s]"]', 'after: "exp[s].0"')
    found = refused("fwd_hd128", edit, tmp_path)
    assert any("`pv` of `mma`" in d.render() and "(o)" in d.render() for d in found)


def test_qk_before_pv_overwrites_p(tmp_path: Path) -> None:
    edit = ('"pv[s] qk[s]+1"', '"qk[s]+1 pv[s]"')
    said = "\n".join(d.render() for d in refused("fwd_hd128", edit, tmp_path))
    assert "p over s" in said
    assert "`qk` of `mma` does not wait for `exp` of `softmax[0]`" in said


def test_a_cycle_without_a_token_is_shown_with_its_roles(tmp_path: Path) -> None:
    edit = (
        barriers("fwd_hd128")["p_ready"],
        '  p_ready[s]: {after: ["exp[s].0", "rescale[s]"], before: "qk[s]"}\n',
    )
    found = refused("fwd_hd128", edit, tmp_path)
    said = "\n".join(d.render() for d in found)
    assert "FA0302" in {d.code for d in found}
    assert "mma" in said
    assert "softmax" in said
