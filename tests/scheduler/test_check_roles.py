"""Warps and registers: the numbers of setmaxnreg, of a warpgroup, and of the register file."""

from dataclasses import replace

import pytest

from fa4gen.diag import Diagnostic
from fa4gen.ir.schedule import Role, Schedule
from fa4gen.scheduler.check_roles import check, launch_registers
from fa4gen.target import TARGETS
from tests.scheduler.schedules import SCHEDULES, blackwell, codes, hopper, with_barrier, with_role


def faults(s: Schedule) -> list[Diagnostic]:
    return check(s, TARGETS[s.target])


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_schedules_are_right(path: object) -> None:
    from fa4gen.dsl import load

    assert faults(load(str(path))) == []


@pytest.mark.parametrize(
    ("warps", "registers"), [(16, 128), (15, 128), (13, 128), (12, 168), (9, 168), (8, 256)]
)
def test_registers_at_the_launch(warps: int, registers: int) -> None:
    assert launch_registers(TARGETS["sm_100a"], warps) == registers


def test_sixteen_warps_and_no_more() -> None:
    assert faults(with_role(blackwell(), "load", warps=2)) == faults(blackwell()) == []
    found = faults(with_role(blackwell(), "load", warps=3))
    assert codes(found) == ["FA0501"]
    assert (
        "17 warps, a CTA may have 16: softmax 2 x 4, correction 4, mma 1, load 3" in found[0].title
    )


@pytest.mark.parametrize(("registers", "fix"), [(70, 64), (71, 64), (16, 24), (264, 256), (0, 24)])
def test_what_setmaxnreg_takes(registers: int, fix: int) -> None:
    found = [
        d
        for d in faults(with_role(blackwell(), "correction", registers=registers))
        if d.code == "FA0502"
    ]
    assert [d.fix for d in found] == [f"write `registers: {fix}`"]


def test_one_warpgroup_has_one_number() -> None:
    found = faults(with_role(blackwell(), "epilogue", registers=64))
    assert codes(found) == ["FA0503"]
    assert "`mma` (56) and `epilogue` (64 registers) share warpgroup 3" in found[0].title


def test_a_role_that_straddles_two_warpgroups_binds_both() -> None:
    s = blackwell()
    roles = tuple(replace(r, warps=2) if r.name == "mma" else r for r in s.roles)
    extra = Role(name="extra", warps=1, registers=24)
    found = faults(replace(s, roles=(*roles[:2], replace(roles[2], warps=4), extra)))
    assert codes(found) == ["FA0501"]  # 4 + 4 + 4 + 4 + 1


def test_the_sum_is_that_of_whole_warpgroups() -> None:
    assert faults(with_role(blackwell(), "softmax", registers=192)) == []
    found = faults(with_role(blackwell(), "softmax", registers=200))
    assert codes(found) == ["FA0504"]
    assert "67584 registers, an SM has 65536: 128 threads x (200 + 200 + 72 + 56)" in found[0].title
    three = hopper(**{"index.s": "3"})
    assert "FA0504" in codes(faults(three))  # 24 + 3 x 240 > 512


def test_the_limit_itself_is_allowed() -> None:
    s = with_role(with_role(blackwell(), "softmax", registers=200), "correction", registers=56)
    assert faults(s) == []  # 200 + 200 + 56 + 56 = 512


def test_active_warps() -> None:
    assert faults(with_role(hopper(), "load", active=4)) == []
    assert codes(faults(with_role(hopper(), "load", active=5))) == ["FA0506"]


def test_work_of_a_warpgroup_needs_a_whole_one() -> None:
    s = blackwell()
    first = next(r for r in s.roles if r.name == "mma")
    shifted = replace(s, roles=(first, *(r for r in s.roles if r.name != "mma")))
    found = [d for d in faults(shifted) if d.code == "FA0507"]
    assert {d.title.split("`")[3] for d in found} == {"softmax", "correction"}
    half = [d for d in faults(with_role(hopper(), "consumer", warps=2)) if d.code == "FA0507"]
    assert "`qk` needs a whole warpgroup; `consumer` has warps 4 … 5" in half[0].title


def test_tiles_leave_room_in_registers() -> None:
    assert faults(with_role(hopper(), "consumer", registers=168)) == []
    found = faults(with_role(hopper(), "consumer", registers=160))
    assert codes(found) == ["FA0508"]
    assert "160: s 64, p 32, o 64" in found[0].title


def test_fifteen_named_barriers() -> None:
    s = blackwell()
    two_sided = [
        "stats_full",
        "stats_empty",
        "out_full",
        "out_empty",
        "p_rest",
        "p_ready",
        "o_full",
    ]
    for name in two_sided:  # 14
        s = with_barrier(s, name, kind="named")
    assert faults(s) == []
    found = faults(with_barrier(s, "q_empty", kind="named"))
    assert codes(found) == ["FA0505"]
    assert found[0].title.startswith("16 named barriers, a CTA has 15 beside the one of all")
