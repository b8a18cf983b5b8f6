"""The Blackwell backward: tiles that lie on those of all groups, slots kept a block longer, P in
registers."""

from dataclasses import replace

import pytest

from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.driver import check as compiled
from fa4gen.dsl import load
from fa4gen.ir import program as ir
from fa4gen.ir.program import Access, KernelProgram, Umma
from fa4gen.ir.schedule import Schedule, Step
from fa4gen.scheduler import check_dataflow, check_memory, check_names, check_shapes
from fa4gen.scheduler.place import place
from fa4gen.scheduler.verify import verify
from fa4gen.target import TARGETS
from tests.scheduler.schedules import SCHEDULES, codes, with_buffer, with_operation

PATH = SCHEDULES / "bwd_hd128.yaml"


def backward(**settings: str) -> Schedule:
    return load(PATH, settings=settings)


def faults(s: Schedule) -> list[Diagnostic]:
    target = TARGETS[s.target]
    found = check_names.check(s, target) or check_dataflow.check(s, target)
    return found or [*check_memory.check(s, target), *check_shapes.check(s, target)]


def program() -> KernelProgram:
    return compiled(PATH, settings={"causal": "true"}).program.value


# tensor memory and shared memory ------------------------------------------------------------------
def test_tensor_memory_is_full_and_dq_lies_on_dp_of_both_groups() -> None:
    plan = place(backward())
    assert plan.columns["s"] == (0, 64)
    assert plan.columns["dp"] == (256, 320)
    assert plan.columns["dq"] == (256,)
    assert plan.widths["dq"] == 128
    assert plan.tmem_columns == 512


def test_what_has_no_instances_touches_those_of_all() -> None:
    made = program()
    (mma,) = (r for r in made.roles if r.name == "mma")
    dq = next(s for s in mma.rest if isinstance(s, Umma) and s.operation == "dsk")
    written = {(a.region, a.instance) for a in dq.accesses if a.write}
    assert {n for _, n in written} == {0, 1}
    (reduce,) = (r for r in made.roles if r.name == "reduce")
    read = {(a.region, a.instance) for a in accesses(reduce.rest, "take_dq") if not a.write}
    assert read == written


def accesses(body: tuple[ir.Stmt, ...], operation: str) -> tuple[Access, ...]:
    call = next(s for s in body if isinstance(s, ir.Call) and s.operation == operation)
    return call.accesses


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("dq", {"columns": (200,)}, "FA0403"),  # on dV too
        ("dq", {"overlays": None, "columns": (256,)}, "FA0403"),  # on dP, without saying so
        ("ds", {"columns": (256, 300)}, "FA0403"),  # the second outside its own dP
        ("dv_out", {"overlays": "lse"}, "FA0401"),  # a place that is too small makes room
    ],
)
def test_overlays_stay_inside_what_they_overlay(
    name: str, change: dict[str, object], code: str
) -> None:
    assert code in codes(faults(with_buffer(backward(), name, **change)))


def test_a_tile_over_one_without_instances_gets_room_for_all_of_its_own() -> None:
    wide = with_buffer(backward(), "dv_out", tile=(128, 128))
    (v,) = (p for p in place(wide).smem if p.buffer == "v")
    assert v.total_bytes == 2 * 128 * 128 * 2


# products -----------------------------------------------------------------------------------------
def test_a_product_of_all_groups_says_so() -> None:
    s = with_operation(backward(), "kq", options={})
    assert codes(faults(s)) == ["FA0206"]
    other = with_operation(backward(), "kq", options={"spans": "x"})
    assert codes(faults(other)) == ["FA0206"]


def test_parts_of_all_groups_make_the_tile() -> None:
    s = with_buffer(backward(), "s", tile=(128, 32))
    assert "FA0411" in codes(faults(s))


# slots --------------------------------------------------------------------------------------------
def test_the_slot_of_the_block_before_is_kept_for_dk() -> None:
    (mma,) = (r for r in program().roles if r.name == "mma")
    assert mma.rest[0] == ir.Keep(name="q_before", of="q_at")
    slots = {
        s.operation: {a.slot for a in s.accesses if a.region == "q"}
        for s in mma.rest
        if isinstance(s, Umma) and s.operation in ("kq", "dsq")
    }
    assert slots == {"kq": {"q_at"}, "dsq": {"q_before"}}


def damaged(change: object, remove: bool = False) -> list[str]:
    """Codes that the program is refused with once statements of the mma role's loop are changed."""
    made = program()

    def body(statements: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        return tuple(change(s) for s in statements if not (remove and isinstance(s, ir.Keep)))  # type: ignore[operator]

    roles = tuple(
        replace(r, segments=tuple(replace(x, body=body(x.body)) for x in r.segments))
        if r.name == "mma"
        else r
        for r in made.roles
    )
    with pytest.raises(Fa4genError) as caught:
        verify(replace(made, roles=roles))
    return codes(caught.value.diagnostics)


def test_a_slot_that_is_not_kept_is_refused() -> None:
    assert damaged(lambda s: s, remove=True) == ["FA0319"]


def test_the_slot_of_another_block_is_refused() -> None:
    def newest(s: ir.Stmt) -> ir.Stmt:
        if not isinstance(s, Umma) or s.operation != "dsq":
            return s
        moved = (replace(a, slot="q_at") if a.slot else a for a in s.accesses)
        return replace(s, accesses=tuple(moved))

    assert damaged(newest) == ["FA0319"]


# P in registers -----------------------------------------------------------------------------------
def test_dscores_needs_the_probabilities_of_its_own_role() -> None:
    s = backward()
    swapped = tuple(
        replace(x, block=(Step(operation="dscores"), Step(operation="probs")))
        if x.role == "compute"
        else x
        for x in s.steps
    )
    assert codes(faults(replace(s, steps=swapped))) == ["FA0224"]


@pytest.mark.parametrize("writes", [("ds",), ("ds_all",), ("ds_all", "ds_all")])
def test_ds_goes_to_both_memories(writes: tuple[str, ...]) -> None:
    assert "FA0222" in codes(faults(with_operation(backward(), "dscores", writes=writes)))


def test_dq_must_reach_global_memory() -> None:
    s = backward()
    without = tuple(o for o in s.operations if o.name != "reduce_dq")
    found = check_dataflow.check(replace(s, operations=without), TARGETS[s.target])
    assert [d.title for d in found] == [
        "nobody brings dQ to global memory: a `tma_reduce` or `reduce_tile` of it"
    ]


def test_half_a_tile_into_the_other_is_refused() -> None:
    with pytest.raises(Fa4genError) as caught:
        compiled(PATH, settings={"buffers.ds.columns": "[264, 328]"})
    assert codes(caught.value.diagnostics) == ["FA0603"]


def test_what_is_added_was_taken_before_by_the_same_role() -> None:
    s = backward()
    swapped = tuple(
        replace(x, block=(Step(operation="reduce_dq"), Step(operation="take_dq")))
        if x.role == "reduce"
        else x
        for x in s.steps
    )
    assert codes(faults(replace(s, steps=swapped))) == ["FA0224"]
    untaken = tuple(o for o in s.operations if o.name != "take_dq")
    found = check_dataflow.check(replace(s, operations=untaken), TARGETS[s.target])
    assert "`reduce_dq` takes `registers of reduce`, which nobody has made by then" in [
        d.title for d in found
    ]


def test_dq_is_free_before_it_is_added() -> None:
    (reduce,) = (r for r in program().roles if r.name == "reduce")
    kinds = [type(s).__name__ for s in reduce.rest]
    assert kinds == ["Wait", "Call", "TmemWait", "Arrive", "Call", "Advance"]
