"""Every single damage to a shipped schedule is refused, but for a few that are right pipelines too.

What is accepted here is run in the emulator by `bench/mutants.py`, full and causal.
"""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.driver import check
from tests.pipelines.schedule_damage import mutants

SCHEDULES = Path(__file__).parents[2] / "schedules"
ACCEPTED = {
    "fwd_hd128": {
        "q_empty[s]: after pv for qk",  # a later use of the same tensor core
        "q_empty[s]: after scores for qk",  # S is read after QK has read Q
        "p_ready[s] is a named barrier",
        "p_rest[s] is a named barrier",
        "stats_full[s] is a named barrier",
        "out_full[s] is a named barrier",
        "level of stats_empty[s]",  # implied in the loop
        "level of out_full[s]",  # its ends are once a tile anyway
        "level of out_empty[s]",
        "out_empty[s]: before rescale for store_o",  # waited for sooner
        "kv has 2 stages",
        "kv has 3 stages",
        "p without parts",
        "softmax has -8 registers more",
        "correction has -8 registers more",
        "epilogue has 1 warps more",
        "exp without mix",
        "scale without first",  # block 0 reads a factor that nobody uses
        "index 1",
    },
    "fwd_hd128_sm90": {
        "level of q_empty",
        "load.block: load_k+1 for load_k",
        "load.block: load_k behind load_v",
        "load.block: load_v+1 for load_v",
        "consumer.block: pv behind softmax+1",
        "consumer.block: convert+1 behind rescale+1",
        *(f"{ring} has {n} stages" for ring in "kv" for n in (1, 2, 3)),
        "o_out without overlays",
        "load has 8 registers more",
        "consumer has -8 registers more",
        "rescale without first",
        "no turn tensor",
        "tile_n 64",
        "tile_n 96",
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mutants")


@cache
def judged(name: str, folder: Path) -> dict[str, tuple[Diagnostic, ...]]:
    """Every mutant's name, with its errors (none: accepted)."""
    found = {}
    path = folder / "mutant.yaml"
    for m in mutants(SCHEDULES / f"{name}.yaml"):
        path.write_text(m.text)
        try:
            check(path)
        except Fa4genError as e:
            found[m.name] = e.diagnostics
        else:
            found[m.name] = ()
    return found


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_only_other_right_pipelines_are_accepted(name: str, folder: Path) -> None:
    accepted = {m for m, errors in judged(name, folder).items() if not errors}
    assert accepted - ACCEPTED[name] == set()


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_no_false_alarm(name: str, folder: Path) -> None:
    refused = {m for m, errors in judged(name, folder).items() if errors}
    assert refused & ACCEPTED[name] == set()


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_errors_point_into_the_schedule(name: str, folder: Path) -> None:
    """Each has a line of the damaged file, and a title in the schedule's own words."""
    for mutant, errors in judged(name, folder).items():
        for d in errors:
            assert d.span is not None, (mutant, d.code)
            assert d.span.file.endswith("mutant.yaml"), (mutant, d.code)
            assert d.span.line >= 1
            assert "`" in d.title or any(c.isdigit() for c in d.title), (mutant, d.title)


def test_damages_are_many(folder: Path) -> None:
    verdicts = [e for name in sorted(ACCEPTED) for e in judged(name, folder).values()]
    codes = Counter(errors[0].code for errors in verdicts if errors)
    assert len(verdicts) >= 500
    assert len(codes) >= 30
