"""Dataflow: mistakes that barriers do not see, since all accesses stay ordered."""

from dataclasses import replace

import pytest

from fa4gen.diag import Diagnostic
from fa4gen.dsl import load, variants
from fa4gen.ir.schedule import Schedule, Step
from fa4gen.scheduler.check_dataflow import check
from fa4gen.target import TARGETS
from tests.scheduler.schedules import (
    SCHEDULES,
    blackwell,
    codes,
    hopper,
    with_operation,
    without,
)

MEMBERS = [
    (path, variant)
    for path in sorted(SCHEDULES.glob("*.yaml"))
    for variant in (None, *variants(path))
]


def faults(s: Schedule) -> list[Diagnostic]:
    return check(s, TARGETS[s.target])


def with_block(s: Schedule, role: str, *names: str) -> Schedule:
    """A role's block steps, given anew ('qk+1' runs ahead)."""
    block = tuple(
        Step(operation=name, ahead=int(ahead or 0))
        for name, _, ahead in (n.partition("+") for n in names)
    )
    steps = tuple(replace(x, block=block) if x.role == role else x for x in s.steps)
    return replace(s, steps=steps)


@pytest.mark.parametrize(
    ("path", "variant"), MEMBERS, ids=[f"{p.stem}-{v or 'itself'}" for p, v in MEMBERS]
)
def test_shipped_schedules_and_their_variants_are_right(path: object, variant: str | None) -> None:
    assert faults(load(str(path), variant=variant)) == []


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("softmax", {"updates": ("o",)}, "`softmax` takes `o` for S"),
        ("convert", {"reads": ("k",)}, "`convert` takes `k` for S"),
        ("convert", {"reads": ("p",), "writes": ("s",)}, "`convert` takes `p` for S"),
        ("rescale", {"updates": ("s",)}, "`rescale` takes `s` for O"),
        ("tma_o", {"reads": ("q",)}, "`tma_o` takes `q` for the output tile"),
        ("load_q", {"writes": ("o_out",)}, "`load_q` is loaded; `o_out` is the output tile"),
    ],
)
def test_a_tile_means_one_thing(name: str, change: dict[str, object], words: str) -> None:
    found = faults(with_operation(hopper(), name, **change))
    assert codes(found) == ["FA0222"]
    assert any(words in d.title for d in found)


def test_what_is_read_as_q_k_or_v_is_loaded() -> None:
    s = with_operation(hopper(), "load_k", writes=("v",))
    assert [d.title for d in faults(s)] == ["`k` is K for `qk`, and nobody loads it"]


def test_operands_of_products_may_not_change_places() -> None:
    s = with_operation(hopper(), "qk", a="k", b="q", reads=("k", "q"))
    assert {d.code for d in faults(s)} == {"FA0222"}  # an item is loaded from its namesake
    swapped = with_operation(hopper(), "pv", a="v", b="p", reads=("v", "p"))
    assert codes(faults(swapped)) == ["FA0222"]


@pytest.mark.parametrize(
    "name", ["sum", "rescale", "scale", "final_stats", "exp", "qk", "pv", "tma_o"]
)
def test_nothing_may_be_missing(name: str) -> None:
    s = blackwell()
    found = faults(replace(s, operations=without(s.operations, name)))
    assert "FA0223" in codes(found)


def test_nothing_is_done_twice() -> None:
    twice = faults(
        with_block(hopper(), "consumer", "qk", "softmax", "convert", "rescale", "pv", "pv")
    )
    assert [d.title for d in twice] == ["`pv` is done twice"]
    s = blackwell()
    again = replace(s.operation("sum"), name="sum2")
    softmax = s.steps_of("softmax")
    longer = replace(softmax, block=(*softmax.block, Step(operation="sum2")))
    steps = tuple(longer if x is softmax else x for x in s.steps)
    found = faults(replace(s, operations=(*s.operations, again), steps=steps))
    assert [d.title for d in found] == ["`sum2` does what `sum` does already"]


@pytest.mark.parametrize(
    ("block", "right"),
    [
        (("scores", "stats", "exp", "sum"), True),
        (("stats", "scores", "exp", "sum"), False),
        (("scores", "exp", "stats", "sum"), False),
        (("scores", "stats", "sum", "exp"), False),
        (("scores+1", "stats", "exp", "sum"), True),
        (("scores", "stats+1", "exp", "sum"), False),
    ],
)
def test_registers_hold_what_was_made_before(block: tuple[str, ...], right: bool) -> None:
    found = faults(with_block(blackwell(), "softmax", *block))
    assert codes(found) == ([] if right else ["FA0224"])


def test_registers_belong_to_one_role() -> None:
    s = with_operation(blackwell(), "sum", role="correction")
    assert codes(faults(s)) == ["FA0224"]
