"""Names: what is used exists, what exists is used, and every wait has an arriver."""

from dataclasses import replace

import pytest

from fa4gen.diag import Diagnostic
from fa4gen.dsl import load, variants
from fa4gen.ir.schedule import End, Schedule, Step, Steps
from fa4gen.scheduler.check_names import check
from fa4gen.target import TARGETS
from tests.scheduler.schedules import (
    SCHEDULES,
    blackwell,
    codes,
    hopper,
    with_barrier,
    with_buffer,
    with_operation,
    without,
)


def faults(s: Schedule) -> list[Diagnostic]:
    return check(s, TARGETS[s.target])


MEMBERS = [
    (path, variant)
    for path in sorted(SCHEDULES.glob("*.yaml"))
    for variant in (None, *variants(path))
]


@pytest.mark.parametrize(
    ("path", "variant"), MEMBERS, ids=[f"{p.stem}-{v or 'itself'}" for p, v in MEMBERS]
)
def test_shipped_schedules_and_their_variants_are_right(path: object, variant: str | None) -> None:
    assert faults(load(str(path), variant=variant)) == []


def test_an_unknown_operation_is_found_wherever_it_is_named() -> None:
    s = hopper()
    for step in (Step(operation="qkk", ahead=1),):
        steps = replace(s.steps_of("consumer"), block=(step, *s.steps_of("consumer").block))
        in_steps = replace(s, steps=tuple(steps if x.role == "consumer" else x for x in s.steps))
        assert codes(faults(in_steps)) == ["FA0201"]
    in_barrier = with_barrier(s, "q_full", before=((End(operation="qkk", instance="all"),),))
    assert codes(faults(in_barrier)) == ["FA0201"]
    in_turn = replace(s, turns=(replace(s.turns[0], last=Step(operation="qkk")),))
    assert codes(faults(in_turn)) == ["FA0201"]
    assert "write `qk`" in faults(in_turn)[0].fix


def test_an_unknown_item_and_a_ring_for_an_item() -> None:
    s = blackwell()
    unknown = faults(with_operation(s, "tma_o", reads=("o_ut",)))
    assert [(d.code, d.fix) for d in unknown] == [("FA0202", "write `o_out`")]
    ring = [d for d in faults(with_operation(s, "load_k", writes=("kv",))) if d.code == "FA0202"]
    assert ring[0].fix == "write `k` or `v`"
    overlay = faults(with_buffer(s, "o_out", overlays="p_out"))
    assert codes(overlay) == ["FA0202"]


def test_steps_of_an_unknown_role() -> None:
    s = blackwell()
    found = faults(replace(s, steps=(*s.steps, Steps(role="loads"))))
    assert [(d.code, d.fix) for d in found] == [("FA0203", "write `load`")]


def test_an_operation_without_and_with_two_roles() -> None:
    s = hopper()
    loads = replace(s.steps_of("load"), block=(*s.steps_of("load").block, Step(operation="tma_o")))
    two = replace(s, steps=tuple(loads if x.role == "load" else x for x in s.steps))
    found = [d for d in faults(two) if d.code == "FA0207"]
    assert "belongs to two roles, `load` and `consumer`" in found[0].title
    none = replace(s, steps=tuple(replace(x, after=()) for x in s.steps))
    assert [d.title for d in faults(none) if d.code == "FA0207"] == [
        "no role has `store_o` among its steps",
        "no role has `tma_o` among its steps",
    ]


def test_kinds_of_the_other_target() -> None:
    found = faults(replace(blackwell(), target="sm_90a"))
    assert "FA0205" in codes(found)
    assert any(d.fix == "write `wgmma`" for d in found)


@pytest.mark.parametrize("name", ["qk", "pv", "scale", "store_o"])
def test_an_instance_that_is_forgotten(name: str) -> None:
    s = blackwell()

    def drop(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        return tuple(x for x in steps if (x.operation, x.instance) != (name, 1))

    role = s.operation(name).role
    found = replace(
        s,
        steps=tuple(
            replace(x, block=drop(x.block), after=drop(x.after)) if x.role == role else x
            for x in s.steps
        ),
    )
    assert [(d.code, d.title) for d in faults(found)] == [("FA0206", f"`{name}[1]` is never done")]


def test_ends_say_which_instance() -> None:
    s = blackwell()
    nobody = with_barrier(s, "s_full", after=((End(operation="qk"),),))
    assert codes(faults(nobody)) == ["FA0206"]
    single = with_barrier(s, "s_full", before=((End(operation="load_k", instance="same"),),))
    assert codes(faults(single)) == ["FA0206"]


def test_operands_are_counted() -> None:
    s = blackwell()
    assert codes(faults(with_operation(s, "sum", reads=("s",)))) == ["FA0209"]
    assert codes(faults(with_operation(s, "exp", writes=("p", "s")))) == ["FA0209"]
    assert codes(faults(with_operation(s, "qk", updates=("o",)))) == ["FA0209"]


def test_a_side_without_anybody() -> None:
    s = blackwell()
    assert [d.title for d in faults(with_barrier(s, "s_full", after=()))] == [
        "nobody arrives at `s_full`"
    ]
    assert [d.title for d in faults(with_barrier(s, "s_full", before=()))] == [
        "nobody waits for `s_full`"
    ]
    unread = faults(with_operation(s, "pv", b="k", reads=("p", "k")))
    assert {d.title for d in unread if d.code == "FA0212"} == {
        "`kv_full`: nobody reads `v`, so its slots are never free again",
        "`kv_empty`: nobody reads `v`, so its slots are never free again",
    }


@pytest.mark.parametrize("name", ["kv_full", "kv_empty"])
def test_each_side_of_a_ring_is_needed_once(name: str) -> None:
    s = blackwell()
    missing = faults(replace(s, barriers=without(s.barriers, name)))
    assert codes(missing) == ["FA0213"]
    again = next(b for b in s.barriers if b.name == name)
    twice = faults(replace(s, barriers=(*s.barriers, replace(again, name="again"))))
    assert codes(twice) == ["FA0213"]


def test_a_ring_is_filled_in_its_order() -> None:
    other = blackwell(**{"steps.load.block": "load_v load_k"})
    assert [(d.code, d.fix) for d in faults(other)] == [("FA0221", "write `ring: [v, k]`")]
    assert (
        faults(blackwell(**{"steps.load.block": "load_v load_k", "buffers.kv.ring": "[v, k]"}))
        == []
    )
    twice = faults(blackwell(**{"steps.load.block": "load_k load_v load_k"}))
    assert codes(twice) == ["FA0221"]


def test_what_nothing_uses() -> None:
    s = hopper()
    spare = replace(s.buffer_of("o_out"), name="spare")
    assert codes(faults(replace(s, buffers=(*s.buffers, spare)))) == ["FA0214"]
    idle = replace(s.role("load"), name="idle")
    assert codes(faults(replace(s, roles=(*s.roles, idle)))) == ["FA0214"]


def test_one_name_for_two_things() -> None:
    s = hopper()
    two_barriers = replace(s, barriers=(*s.barriers, s.barriers[1]))
    assert "FA0216" in codes(faults(two_barriers))
    two_buffers = replace(s, buffers=(*s.buffers, s.buffer_of("p")))
    assert codes(faults(two_buffers)) == ["FA0216"]


def test_a_load_completes_on_one_mbarrier() -> None:
    s = hopper()
    none = faults(replace(s, barriers=without(s.barriers, "q_full")))
    assert [d.code for d in none] == ["FA0217"]
    again = replace(s.barriers[0], name="again")
    two = faults(replace(s, barriers=(*s.barriers, again)))
    assert "`load_q` completes on one mbarrier, not on q_full and again" in two[0].title


def test_levels() -> None:
    s = hopper()
    loads = s.steps_of("load")
    ahead = replace(loads, tile=(replace(loads.tile[0], ahead=1),))
    assert codes(faults(replace(s, steps=(ahead, *s.steps[1:])))) == ["FA0218"]
    consumer = s.steps_of("consumer")
    early = replace(
        consumer, block=(*consumer.block, Step(operation="store_o")), after=consumer.after[1:]
    )
    assert codes(faults(replace(s, steps=(loads, early)))) == ["FA0218"]


def test_a_ring_is_filled_for_each_block() -> None:
    s = hopper(**{"steps.load.tile": "load_q load_k", "steps.load.block": "load_v"})
    assert [(d.code, d.fix) for d in faults(s)] == [("FA0218", "move it to `block`")]


def test_turns_stand_around_steps_of_a_role_with_instances() -> None:
    s = hopper()
    turn = s.turns[0]
    late = replace(turn, first=Step(operation="qk", ahead=0))
    assert codes(faults(replace(s, turns=(late,)))) == ["FA0219"]
    backwards = replace(turn, first=turn.last, last=turn.first)
    assert codes(faults(replace(s, turns=(backwards,)))) == ["FA0219"]
    alone = replace(
        turn, role="load", first=Step(operation="load_k"), last=Step(operation="load_v")
    )
    assert codes(faults(replace(s, turns=(alone,)))) == ["FA0219"]
    single = replace(s, index=replace(s.index, count=1))
    assert "FA0219" in codes(faults(single))


def test_asynchronous_units_reach_no_named_barrier() -> None:
    s = blackwell()
    assert codes(faults(with_barrier(s, "s_full", kind="named"))) == ["FA0220"]
    assert faults(with_barrier(s, "stats_full", kind="named")) == []
