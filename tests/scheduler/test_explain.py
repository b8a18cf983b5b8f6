"""What is shown of a proof: paths that really lead through what was run, pictures, hints."""

import xml.etree.ElementTree as ET
from functools import cache

import pytest

from fa4gen.driver import check
from fa4gen.ir.program import KernelProgram
from fa4gen.ir.verified import Verified
from fa4gen.scheduler.closure import closure
from fa4gen.scheduler.draw import drawing, svg, terminal
from fa4gen.scheduler.evidence import hazards
from fa4gen.scheduler.explain import explain
from fa4gen.scheduler.hints import hints, without
from fa4gen.scheduler.instantiate import instantiate
from fa4gen.scheduler.model import Do
from tests.pipelines.examples import fa4, fenced
from tests.pipelines.small import (
    Barrier,
    Pipeline,
    R,
    Role,
    W,
    arrive,
    free,
    load,
    same,
    to_system,
    touch,
    wait,
)
from tests.scheduler.schedules import SCHEDULES

SHIPPED = ("fwd_hd128", "fwd_hd64", "fwd_hd128_sm90", "fwd_hd64_sm90")


@cache
def shipped(name: str) -> Verified[KernelProgram]:
    return check(SCHEDULES / f"{name}.yaml").program


@pytest.mark.parametrize("name", SHIPPED)
def test_every_hazard_has_a_path_of_real_steps(name: str) -> None:
    """It begins with the earlier access, ends with the later, and each barrier on it has both
    sides.
    """
    system = instantiate(shipped(name).value)
    found = list(hazards(system))
    assert len(found) > 20
    for h in found:
        assert h.path, (h.earlier, h.later)
        assert h.path[0][0].place == h.earlier
        last = h.path[-1][0].place.action
        assert last.role == h.later.action.role
        for (step, bar), (then, _) in zip(h.path, h.path[1:], strict=False):
            if bar >= 0:
                assert step.place.action.bar == bar
                assert step.place.action.do in (Do.ARRIVE, Do.COMMIT, Do.LOAD, Do.SYNC)
                assert then.place.action.bar == bar
                assert then.place.action.do in (Do.WAIT, Do.SYNC)


def test_a_ring_is_explained_by_its_barriers() -> None:
    text = explain(shipped("fwd_hd128"))
    assert "load_k → arrives at `kv_full` → `mma` waits → qk" in text
    assert "pv → `mma` commits to `kv_empty` → `load` waits → load_k" in text
    assert "columns 64-111 (p over s): `qk` of `mma` after `pv` of `mma`" in text
    assert "`stats_empty` is implied in the loop, and needed at its ends" in text


@pytest.mark.parametrize("name", SHIPPED)
def test_pictures(name: str) -> None:
    """SVG that parses, with a box for every operation; the terminal's lanes are the same."""
    d = drawing(instantiate(shipped(name).value))
    tree = ET.fromstring(svg(d))
    space = "{http://www.w3.org/2000/svg}"
    assert len(tree.findall(f"{space}rect")) == len(d.boxes)
    assert len(tree.findall(f"{space}path")) == len(d.arrows) > 10
    assert all(lane in terminal(d).splitlines()[0] for lane in d.lanes)
    for a in d.arrows:
        assert d.boxes[a.source].step < d.boxes[a.target].step


def redundant() -> Pipeline:
    """A second handshake beside the first orders nothing more."""
    bars = {"f": Barrier(), "e": Barrier(), "again": Barrier()}
    a = Role("a", **same(free("e"), load("f", W("x")), arrive("again")))
    b = Role("b", **same(wait("f"), wait("again"), touch(R("x")), arrive("e")))
    return Pipeline("redundant", (a, b), bars, {"x": 1})


def test_a_redundant_barrier_is_named() -> None:
    system = to_system(redundant())
    assert not closure(system).faults
    assert [(h.barrier, h.seams) for h in hints(system)] == [("again", False)]


def test_the_second_release_of_q_comes_with_the_first() -> None:
    """Commits cover all that was issued before: the theory finds the same one barrier to spare."""
    system = to_system(fenced(fa4(3)))
    assert [(h.barrier, h.seams) for h in hints(system)] == [("qe1", False)]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_hint_is_what_the_proof_says(name: str) -> None:
    system = instantiate(shipped(name).value)
    for h in hints(system):
        less = without(system, h.barrier)
        assert less is not None
        assert bool(closure(less).faults) == h.seams
