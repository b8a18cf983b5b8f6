"""Every single damage to every shipped program: refused, or harmless.

What is accepted are moves that leave every order intact, and the few listed with their reasons.
"""

import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.driver import check
from fa4gen.ir.program import KernelProgram
from fa4gen.scheduler.verify import verify
from tests.pipelines.program_damage import Mutant, mutants

SCHEDULES = Path(__file__).parents[2] / "schedules"
NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
SHIPPED = ["fwd_hd128", "fwd_hd128_sm90"] + ["fwd_hd64", "fwd_hd64_sm90", "bwd_hd128"] * NIGHTLY
REORDERINGS = ("earlier", "later", "swap")  # may leave every order intact
HARMLESS = {
    "arrive for commit Commit q_empty at mma.last[1]": "the load waits for q_empty[0] first, whose "
    "commit covers the same products",
    "arrive for commit Commit q_empty at mma.last[3]": "the next tile waits for k_empty first",
    "drop Pending at compute.last[10]": "k_empty comes behind the last",
    "one group more Pending at compute.last[10]": "the same",
    "elected lanes Arrive out_empty at epilogue.last[5]": "the role has one warp",
    "elected lanes Arrive out_empty at epilogue.last[7]": "the role has one warp",
    "warps lanes Arrive out_empty at epilogue.last[5]": "the role has one warp",
    "warps lanes Arrive out_empty at epilogue.last[7]": "the role has one warp",
    "drop NamedSync tensor at consumer.end[0]": "a round that is open at exit holds nobody back",
}
EXPECTED = {  # what must be found first, for damages that leave no choice
    "count": {"FA0304"},
    "bytes": {"FA0305"},
    "half the bytes": {"FA0305"},
    "one box less": {"FA0305"},
    "double": {"FA0301", "FA0304"},
}


@cache
def judged(name: str) -> tuple[tuple[Mutant, tuple[Diagnostic, ...]], ...]:
    """All mutants of a schedule's program, with the errors of each (none: accepted)."""
    out = []
    for m in mutants(program(name)):
        try:
            verify(m.program)
        except Fa4genError as e:
            out.append((m, e.diagnostics))
        else:
            out.append((m, ()))
    return tuple(out)


@cache
def program(name: str) -> KernelProgram:
    return check(SCHEDULES / f"{name}.yaml").program.value


@pytest.mark.parametrize("name", SHIPPED)
def test_no_damage_survives(name: str) -> None:
    accepted = [m for m, found in judged(name) if not found]
    odd = [m.name for m in accepted if m.kind not in REORDERINGS and m.name not in HARMLESS]
    assert not odd


@pytest.mark.parametrize("name", SHIPPED)
def test_the_error_fits_the_damage(name: str) -> None:
    wrong = [
        (m.name, [d.code for d in found])
        for m, found in judged(name)
        if found and not EXPECTED.get(m.kind, {found[0].code}) & {d.code for d in found}
    ]
    assert not wrong


@pytest.mark.parametrize("name", SHIPPED)
def test_every_error_has_a_place_and_names(name: str) -> None:
    """A line of the schedule, a reason, and in the title the role or barrier that it is about."""
    p = program(name)
    names = {r.name for r in p.roles} | {b.name for b in p.barriers}
    for m, found in judged(name):
        for d in found:
            assert d.span is not None, (m.name, d.code)
            assert d.why, (m.name, d.code)
            assert any(n in d.title for n in names), (m.name, d.title)


def test_damages_are_many_and_of_all_kinds() -> None:
    kinds = Counter(m.kind for name in SHIPPED for m, _ in judged(name))
    codes = Counter(d.code for name in SHIPPED for _, found in judged(name) for d in found[:1])
    assert sum(kinds.values()) >= 300
    assert len(kinds) >= 15
    assert len(codes) >= 15
