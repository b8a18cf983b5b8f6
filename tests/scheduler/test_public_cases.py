"""Hangs and races that users of attention kernels reported in public, as small pipelines.

Each faulty one is refused with the barrier, the role and the iteration; each repaired one is
accepted.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.driver import check
from fa4gen.ir.program import KernelProgram
from fa4gen.scheduler.check_counts import check_counts
from fa4gen.scheduler.check_program import prove
from fa4gen.scheduler.verify import verify
from tests.pipelines.counterexamples import empty_tile, parity_restarts, warps_of_a_role
from tests.pipelines.small import (
    Barrier,
    Pipeline,
    R,
    Role,
    Stmt,
    W,
    arrive,
    fence,
    free,
    issue,
    load,
    pending,
    same,
    sync,
    to_system,
    touch,
    wait,
)


def errors(p: Pipeline) -> tuple[Diagnostic, ...]:
    """What the checker says of a small pipeline: counts first, then every word."""
    system = to_system(p)
    try:
        found = tuple(check_counts(system))
        if found:
            raise Fa4genError(found)
        prove(system)
    except Fa4genError as e:
        return e.diagnostics
    return ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """`codes`: of the faulty one, any of them; `names`: what its errors must mention."""

    source: str
    faulty: Pipeline
    repaired: Pipeline
    codes: tuple[str, ...]
    names: tuple[str, ...]


RING = {"f": Barrier(stages=2), "e": Barrier(stages=2)}
FILL = (free("e"), load("f", W("x"), name="k"))
USE = (wait("f"), touch(R("x"), name="qk"), arrive("e"))


def pipe(*roles: Role, bars: dict[str, Barrier] | None = None, **more: object) -> Pipeline:
    return Pipeline("case", roles, bars or RING, {"x": 2}, **more)


def several_empty_tiles(fixed: bool) -> Pipeline:
    """B105: for each empty tile the correction role is told once, and awaits the output once in
    two.
    """
    bars = {"out_full": Barrier(), "out_empty": Barrier()}
    write = (free("out_empty"), touch(W("o", a=0), name="zeros"), arrive("out_full"))
    take = (wait("out_full"), touch(R("o", a=0), name="store"), arrive("out_empty"))
    skip = take if fixed else (wait("out_full"),)
    roles = (Role("correction", last=write, none=write), Role("epilogue", last=take, none=skip))
    return Pipeline("empty tiles in a row", roles, bars, {"o": 1})


def no_work_arrives(fixed: bool) -> Pipeline:
    """B110: without blocks a role arrives at a named barrier and comes round again, not waiting."""
    bars = {"meet": Barrier(count=2, named=True)}
    body = (sync("meet"),)
    roles = (
        Role("load", last=body, none=body if fixed else (arrive("meet"), arrive("meet"))),
        Role("compute", last=body, none=body),
    )
    return Pipeline("no work", roles, bars, {})


def never_released(fixed: bool) -> Pipeline:
    """B118: the consumer never releases."""
    use = USE if fixed else USE[:2]
    return pipe(Role("load", **same(*FILL)), Role("mma", **same(*use)))


def released_once(fixed: bool) -> Pipeline:
    """B118 again: it releases a slot in the loop, and not in its first block."""
    return pipe(Role("load", **same(*FILL)), Role("mma", first=USE if fixed else USE[:2], rest=USE))


def one_iteration(fixed: bool) -> Pipeline:
    """B121: with one trip the bytes are armed in the loop's body only, which then does not run."""
    first: tuple[Stmt, ...] = FILL if fixed else ()
    rest = FILL if fixed else (*FILL, *FILL)
    return (
        pipe(
            Role("load", first=first, rest=rest),
            Role("mma", last=(wait("f"), arrive("e")), rest=USE),
        )
        if not fixed
        else pipe(Role("load", first=FILL, rest=FILL), Role("mma", **same(*USE)))
    )


def prologue(fixed: bool) -> Pipeline:
    """B124: a prologue of two loads, although a tile may have one block."""
    if fixed:
        return pipe(Role("load", **same(*FILL)), Role("mma", **same(*USE)))
    ahead = load("f", W("x", b=1), name="k")
    return pipe(
        Role("load", first=(*FILL, free("e"), ahead), rest=(free("e"), ahead)),
        Role("mma", **same(*USE)),
    )


def two_producers(fixed: bool) -> Pipeline:
    """B127: one operand comes by TMA, the other by the threads' own copies, on one barrier."""
    bars = {"f": Barrier(2 if fixed else 1), "e": Barrier()}
    copy = (free("e"), touch(W("y"), name="copy"), arrive("f"))
    roles = (
        Role("load", **same(free("e"), load("f", W("x"), name="k"))),
        Role("copy", **same(*copy)),
        Role("mma", **same(wait("f"), touch(R("x"), R("y"), name="qk"), arrive("e"))),
    )
    return Pipeline("two producers", roles, bars, {"x": 1, "y": 1})


def other_range(fixed: bool) -> Pipeline:
    """B131: the producer's range of blocks is one longer than the consumer's."""
    extra = () if fixed else (free("e"), load("f", W("x", b=1), name="k"))
    return pipe(Role("load", **same(*FILL), last=extra), Role("mma", **same(*USE)))


def elected_lane(fixed: bool) -> Pipeline:
    """B134: one lane arrives for others that still read."""
    return warps_of_a_role(2, elected=not fixed)


def freed_too_soon(fixed: bool) -> Pipeline:
    """B136: tensor memory is freed by one warp while the reduce warp still reads."""
    bars = {"f": Barrier(), "e": Barrier(), "done": Barrier()}
    roles = (
        Role(
            "mma",
            first=(free("e"), touch(W("acc"), name="mma"), arrive("f")),
            rest=(free("e"), touch(W("acc"), name="mma"), arrive("f")),
            end=(*((wait("done"),) if fixed else ()), touch(W("acc", rank=9), name="dealloc")),
        ),
        Role(
            "reduce",
            **same(wait("f"), touch(R("acc"), name="read"), arrive("e")),
            end=(arrive("done"),) if fixed else (),
        ),
    )
    return Pipeline("dealloc", roles, bars if fixed else {k: bars[k] for k in "fe"}, {"acc": 1})


def nobody_waits(fixed: bool) -> Pipeline:
    """B137: a barrier completes a phase that nobody waits for."""
    use = USE if fixed else (touch(R("x"), name="qk"), arrive("e"))
    return pipe(Role("load", **same(*FILL)), Role("mma", **same(*use)))


def tail_waits(fixed: bool) -> Pipeline:
    """B140: the producer drains, the consumer has left early."""
    use = dict(same(*USE)) if fixed else {"first": USE[:2], "rest": (arrive("e"), *USE[:2])}
    return pipe(Role("load", **same(*FILL), end=(free("e"), free("e"))), Role("mma", **use))


def more_than_there_are(fixed: bool) -> Pipeline:
    """B116: the producer goes on loading, a ring ahead, when there are no more tiles."""
    extra = () if fixed else (free("e"), load("f", W("x", b=1), name="k")) * 2
    return pipe(Role("load", **same(*FILL), end=extra), Role("mma", **same(*USE)))


def past_the_last_tile(fixed: bool) -> Pipeline:
    """B116 again: a copy is still at work when everyone has gone."""
    store = issue("store", R("x"), name="copy")
    role = Role("load", **same(touch(W("x"), name="fill"), fence(), store, pending("store", 1)))
    end = (pending("store", 0),) if fixed else ()
    role = Role("load", first=role.first, rest=role.rest, end=end)
    return Pipeline("copies at exit", (role,), {}, {"x": 2}, {"store": False})


CASES = [
    Case(
        source="flashinfer#1198 (B015)",
        faulty=empty_tile(),
        repaired=empty_tile(True),
        codes=("FA0301", "FA0303"),
        names=("`f`", "`A`", "without blocks"),
    ),
    Case(
        source="flash-attention#2258 (B105)",
        faulty=several_empty_tiles(False),
        repaired=several_empty_tiles(True),
        codes=("FA0301",),
        names=("`out_empty`", "`epilogue`", "without blocks"),
    ),
    Case(
        source="helion#3621 (B108)",
        faulty=parity_restarts(),
        repaired=parity_restarts(True),
        codes=("FA0310",),
        names=("`x0`", "`B`", "block 0 of tile 1"),
    ),
    Case(
        source="vllm#26026 (B110)",
        faulty=no_work_arrives(False),
        repaired=no_work_arrives(True),
        codes=("FA0301",),
        names=("`meet`", "`load`", "without blocks"),
    ),
    Case(
        source="cutlass#2404 (B118)",
        faulty=never_released(False),
        repaired=never_released(True),
        codes=("FA0325",),
        names=("`e`", "`load`"),
    ),
    Case(
        source="cutlass#2404 (B118), first block",
        faulty=released_once(False),
        repaired=released_once(True),
        codes=("FA0301",),
        names=("`e`", "`mma`", "tile of one block"),
    ),
    Case(
        source="tilelang#2566 (B121)",
        faulty=one_iteration(False),
        repaired=one_iteration(True),
        codes=("FA0301",),
        names=("`f`", "`load`", "tile of one block"),
    ),
    Case(
        source="tilelang#2443 (B124)",
        faulty=prologue(False),
        repaired=prologue(True),
        codes=("FA0301",),
        names=("`f`", "`mma`", "tile of one block"),
    ),
    Case(
        source="triton#8311 (B127)",
        faulty=two_producers(False),
        repaired=two_producers(True),
        codes=("FA0304",),
        names=("`f`", "`copy`", "2"),
    ),
    Case(
        source="flashinfer#3578 (B131)",
        faulty=other_range(False),
        repaired=other_range(True),
        codes=("FA0301",),
        names=("`f`", "`load`", "tile of one block"),
    ),
    Case(
        source="cudnn-frontend#426 (B134)",
        faulty=elected_lane(False),
        repaired=elected_lane(True),
        codes=("FA0310",),
        names=("`e`", "`reader.w1`", "block 0 of tile 0"),
    ),
    Case(
        source="PaddlePaddle/flash-attention#138 (B136)",
        faulty=freed_too_soon(False),
        repaired=freed_too_soon(True),
        codes=("FA0310",),
        names=("`acc`", "`reduce`", "`e`", "block 0 of tile 0"),
    ),
    Case(
        source="flashinfer#1046 (B137)",
        faulty=nobody_waits(False),
        repaired=nobody_waits(True),
        codes=("FA0325",),
        names=("`f`", "`load`"),
    ),
    Case(
        source="flash-attention AI/DEBUG_2CTA.md iii (B140)",
        faulty=tail_waits(False),
        repaired=tail_waits(True),
        codes=("FA0301", "FA0303"),
        names=("`e`", "`mma`"),
    ),
    Case(
        source="cutlass#2944 (B116), loads",
        faulty=more_than_there_are(False),
        repaired=more_than_there_are(True),
        codes=("FA0315",),
        names=("`k`", "`load`", "issued in the end"),
    ),
    Case(
        source="cutlass#2944 (B116)",
        faulty=past_the_last_tile(False),
        repaired=past_the_last_tile(True),
        codes=("FA0315",),
        names=("`copy`", "`load`", "tile 0"),
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.source)
def test_the_faulty_one_is_refused_and_the_repaired_one_accepted(case: Case) -> None:
    found = errors(case.faulty)
    assert found, "accepted"
    assert {d.code for d in found} & set(case.codes), [d.render() for d in found]
    said = "\n".join(d.render() for d in found)
    for name in case.names:
        assert name in said, said
    assert not errors(case.repaired), [d.render() for d in errors(case.repaired)]


SHIPPED = Path(__file__).parents[2] / "schedules"


def test_a_block_of_eight_keys_is_refused_with_its_reason() -> None:
    """triton#8932 (B128): a compiler's crash there."""
    with pytest.raises(Fa4genError) as caught:
        check(SHIPPED / "fwd_hd128.yaml", settings={"tile_n": "8"})
    said = "\n".join(d.render() for d in caught.value.diagnostics)
    assert "`pv`" in said
    assert "sums" in said


@pytest.mark.parametrize("name", ["fwd_hd128", "fwd_hd128_sm90"])
def test_two_loops_of_a_role_are_accepted(name: str) -> None:
    """triton#9728 (B129): blocks with a mask in one loop, blocks without in another."""
    program = check(SHIPPED / f"{name}.yaml", settings={"causal": "true"}).program.value
    assert any(len(r.segments) > 1 for r in program.roles)


def refused(program: KernelProgram) -> str:
    """What is said of a lowered program; empty if it is accepted."""
    try:
        verify(program)
    except Fa4genError as e:
        return "\n".join(d.render() for d in e.diagnostics)
    return ""


def test_a_barrier_that_nobody_initialises_is_refused() -> None:
    """cutlass#2364 (B120): barriers are initialised as declared, before any role begins; the one
    that is not declared is not. tests/emulator/test_public_cases.py has the same as PTX."""
    program = check(SHIPPED / "fwd_hd128.yaml").program.value
    assert not refused(program)
    less = tuple(b for b in program.barriers if b.name != "s_full")
    said = refused(replace(program, barriers=less))
    assert "FA0326" in said
    assert "no barrier `s_full[0]`" in said


def test_a_barrier_that_expects_the_bytes_of_half_its_loads_is_refused() -> None:
    """flash-attention AI/DEBUG_2CTA.md i (B138): two CTAs' loads, and the bytes of one expected."""
    program = check(SHIPPED / "fwd_hd128.yaml").program.value
    (ring,) = (b for b in program.barriers if b.name == "kv_full")
    halved = replace(ring, tx_bytes=ring.tx_bytes // 2)
    said = refused(
        replace(program, barriers=tuple(halved if b is ring else b for b in program.barriers))
    )
    assert "FA0305" in said
    assert f"`kv_full` is planned for {halved.tx_bytes} bytes a phase" in said


@pytest.mark.parametrize("target", ["sm_100a", "sm_103a"])
def test_a_scheduler_in_hardware_is_gated_and_another_is_named(tmp_path: Path, target: str) -> None:
    """flashinfer#4533 a (B113): the hardware's scheduler hung at its first launch on sm_103."""
    asked = tmp_path / "clc.yaml"
    asked.write_text(
        f"language: 1\nschedule: clc\nextends: {SHIPPED / 'fwd_hd128.yaml'}\ntarget: {target}\n"
        "levels: {tile: {scheduler: clc}}\n"
    )
    if target == "sm_100a":
        assert check(asked).program
        return
    with pytest.raises(Fa4genError) as caught:
        check(asked)
    (found,) = caught.value.diagnostics
    assert (found.code, found.span.line) == ("FA0225", 5)
    assert "`scheduler: dynamic`" in found.fix
    asked.write_text(asked.read_text().replace("clc}", "dynamic}"))
    assert check(asked).program
