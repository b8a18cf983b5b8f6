"""Every word: whole pipelines, and small ones on which naive checks are wrong."""

from dataclasses import replace

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.scheduler.check_program import prove
from fa4gen.scheduler.closure import closure
from fa4gen.scheduler.deep_rings import handshakes, prove_shallow
from fa4gen.scheduler.run import Rules, run_word
from tests.pipelines import counterexamples as c
from tests.pipelines.examples import fa4, fenced, hopper, pair
from tests.pipelines.small import (
    SECTIONS,
    Barrier,
    Pipeline,
    R,
    Role,
    W,
    arrive,
    free,
    sync,
    to_system,
    touch,
    wait,
)

ORDER = Rules(kinds=False)
WHOLE = [
    (fa4(3), 46, 7),
    (fa4(2), 37, 7),
    (hopper(2), 40, 9),
    (hopper(1), 15, 6),
    (hopper(2, pingpong=False), None, None),
    (hopper(2, overlap=False), None, None),
    (pair(2), 21, 6),
]


@pytest.mark.parametrize(("pipeline", "frontiers", "letters"), WHOLE)
def test_whole_pipelines_are_sound(
    pipeline: Pipeline, frontiers: int | None, letters: int | None
) -> None:
    """With the number of frontiers and the bound that the theory's own program finds."""
    verdict = closure(to_system(pipeline), ORDER)
    assert not verdict.faults
    assert verdict.self_contained
    if frontiers is not None:
        assert (verdict.frontiers, verdict.letters) == (frontiers, letters)


def test_one_slot_for_keys_and_values_hangs() -> None:
    verdict = closure(to_system(fa4(1)), ORDER)
    assert {f.kind for f in verdict.faults} == {"deadlock"}
    assert verdict.word == (2,)


@pytest.mark.parametrize("order", [("QK0", "QK1", "PV0", "PV1"), ("QK0", "PV0", "QK1", "PV1")])
def test_qk_before_the_pv_whose_p_it_overwrites(order: tuple[str, ...]) -> None:
    assert closure(to_system(fa4(3, order)), ORDER).faults


EXPECTED = [
    (c.mixed_arrivals(), {"mixed"}),
    (c.mixed_arrivals(1), set()),
    (c.last_block(), {"race"}),
    (c.last_block(True), set()),
    (c.empty_tile(), {"deadlock"}),
    (c.empty_tile(True), set()),
    (c.parity_restarts(), {"race", "mixed", "lapped"}),
    (c.parity_restarts(True), set()),
    (c.warps_of_a_role(), set()),
    (c.warps_of_a_role(2), {"race", "lapped"}),
    (c.warps_of_a_role(2, False), set()),
    (c.one_name_two_pairs(), {"mixed"}),
    (c.one_name_two_pairs(False), set()),
    (c.loads_in_order(), {"race"}),
    (c.loads_in_order(True), set()),
    (c.exit_early(), {"drain"}),
    (c.exit_early(True), set()),
    (c.ring_depth(1, 2), {"race"}),
    (c.ring_depth(2, 2), set()),
    (c.ring_order(), {"race"}),
    (c.ring_order(True), set()),
    (c.once_a_tile(), {"early"}),
    (c.once_a_tile(False), set()),
    (c.watcher(), {"lapped"}),
    (c.shared_turns(), {"mixed"}),
    (c.scheduler(), set()),
    (c.scheduler(2, 2), {"race", "lapped"}),
    (c.scheduler(2, 3), {"deadlock"}),
]


@pytest.mark.parametrize(("pipeline", "kinds"), EXPECTED, ids=lambda x: getattr(x, "name", None))
def test_counterexamples(pipeline: Pipeline, kinds: set[str]) -> None:
    assert {f.kind for f in closure(to_system(pipeline), ORDER).faults} == kinds


def test_what_rests_on_the_tensor_pipe() -> None:
    """Without its order across accumulators the forward races; the operations are named."""
    system = to_system(fa4(3))
    faults = run_word(system, (3,), Rules(kinds=False, unit_order=False)).faults
    assert {f.kind for f in faults} == {"race"}
    assert not run_word(system, (3,), ORDER).faults


@pytest.mark.parametrize("stages", [4, 10])
def test_deep_rings_are_proved_shallow(stages: int) -> None:
    system = to_system(fenced(fa4(stages)))
    assert [r.shallow for r in handshakes(system)] == [3]
    verdict = prove_shallow(system)
    assert verdict is not None
    assert verdict.shallow == (("kv", stages, 3),)


def test_a_ring_out_of_form_is_not_proved_shallow() -> None:
    """Released in another order than filled: nothing is claimed."""
    assert prove_shallow(to_system(c.ring_order())) is None


def test_rounds_of_a_named_barrier_have_no_number() -> None:
    """A role that arrives twice a round is no run-away: its arrivals only look ahead of rounds."""
    body = (sync("turn"), touch(W("x"), R("x")), arrive("turn"))
    role = Role("alone", start=(arrive("turn"),), first=body, rest=body, end=(sync("turn"),))
    turn = Barrier(count=2, named=True)
    verdict = closure(to_system(Pipeline("turn", (role,), {"turn": turn}, {"x": 1})))
    assert not verdict.faults
    assert verdict.frontiers < 5


def test_a_role_that_falls_behind_without_bound() -> None:
    """It begins a tile when another role has ended it: however many blocks that has."""
    roles = (
        Role("fast", first=(free("e"), touch(W("x", a=0))), last=(arrive("f"),)),
        Role("slow", first=(wait("f"),), rest=(touch(R("x", a=0)),), last=(arrive("e"),)),
    )
    bars = {"f": Barrier(), "e": Barrier()}
    system = to_system(Pipeline("behind", roles, bars, {"x": 1}, empty_tiles=False))
    with pytest.raises(Fa4genError) as caught:
        prove(system)
    (found,) = caught.value.diagnostics
    assert found.code == "FA0327"
    assert "`slow` is left behind" in found.title
    assert "`slow` waits on `f`" in found.label


def test_the_forward_owes_every_fence() -> None:
    """Each of its fences and tensor memory waits, dropped or moved behind the next wait, is
    missed."""
    whole = fenced(fa4(3))
    assert not closure(to_system(whole)).faults
    fences = 0
    for n, role in enumerate(whole.roles):
        for section in SECTIONS:
            body = role.section(section)
            for i, s in enumerate(body):
                if s.kind in ("fence", "settle_load", "settle_store"):
                    fences += 1
                    roles = list(whole.roles)
                    roles[n] = replace(role, **{section: (*body[:i], *body[i + 1 :])})
                    less = replace(whole, roles=tuple(roles))
                    kinds = {f.kind for f in closure(to_system(less)).faults}
                    assert kinds == {"race"}, (role.name, section, i, s.kind)
    assert fences == 20
