"""Time: lanes, warps, CTAs; what waits, what hangs, and that a seed decides it all."""

import numpy as np
import pytest

HANDOVER = """
setp.eq.b32 %p0, %r1, 0;
@%p0 mbarrier.init.shared.b64 [%r0], 1;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
WAIT = """
{{ .reg .pred P; AGAIN: mbarrier.try_wait.parity.shared.b64 P, [%r0], {parity}, 100;
@P bra DONE; bra AGAIN; DONE: }}
"""


def test_diverged_lanes_meet_again(execute) -> None:
    """A loop whose trip count differs by lane, then a shuffle of all lanes."""
    out = np.zeros(32, np.uint32)
    body = """
    mov.b32 %r5, 0; mov.b32 %r6, 0;
    LOOP: add.s32 %r6, %r6, %r5; add.s32 %r5, %r5, 1; setp.le.u32 %p1, %r5, %r1; @%p1 bra LOOP;
    setp.lt.u32 %p2, %r1, 7; @%p2 bra SMALL; add.s32 %r6, %r6, 1000; bra JOIN;
    SMALL: add.s32 %r6, %r6, 2000;
    JOIN: shfl.sync.bfly.b32 %r7, %r6, 1, 31, -1;
    mul.wide.u32 %rd5, %r1, 4; add.s64 %rd5, %rd0, %rd5; st.global.b32 [%rd5], %r7;
    """
    report = execute(body, out)
    assert not report.faulty, report
    own = [sum(range(t + 1)) + (2000 if t < 7 else 1000) for t in range(32)]
    assert out.tolist() == [own[t ^ 1] for t in range(32)]


def test_a_lane_may_wait_for_another_of_its_warp(execute) -> None:
    """Lane 0 spins on a barrier that lane 1 arrives at: independent thread scheduling."""
    out = np.zeros(1, np.uint32)
    body = (
        HANDOVER
        + "setp.eq.b32 %p1, %r1, 1; @!%p0 bra OTHER;\n"
        + WAIT.format(parity=0)
        + "st.global.b32 [%rd0], 5; bra END;\n"
        + "OTHER: @%p1 mbarrier.arrive.shared.b64 %rd9, [%r0];\nEND:"
    )
    report = execute(body, out)
    assert not report.faulty, report
    assert out[0] == 5


def test_shuffles_votes_and_reductions(execute) -> None:
    out = np.zeros((32, 8), np.uint32)
    body = """
    shfl.sync.up.b32 %r5|%p1, %r1, 3, 0, -1; shfl.sync.down.b32 %r6, %r1, 5, 31, -1;
    shfl.sync.idx.b32 %r7, %r1, 9, 0x181F, -1; setp.gt.u32 %p2, %r1, 19;
    vote.sync.ballot.b32 %r8, %p2, -1; redux.sync.add.s32 %r9, %r1, -1;
    elect.sync %r10|%p3, -1; shfl.sync.down.b32 %r13, %r1, 5, 0x181F, -1;
    selp.b32 %r11, 1, 0, %p3; selp.b32 %r12, 1, 0, %p1;
    mul.wide.u32 %rd5, %r1, 32; add.s64 %rd5, %rd0, %rd5;
    st.global.v4.b32 [%rd5], {%r5, %r6, %r7, %r8};
    st.global.v4.b32 [%rd5+16], {%r9, %r13, %r11, %r12};
    """
    report = execute(body, out)
    assert not report.faulty, report
    for t, row in enumerate(out.tolist()):
        up = t - 3 if t >= 3 else t
        down = t + 5 if t + 5 <= 31 else t
        idx = (t & 24) | (9 & 7)
        ballot = sum(1 << k for k in range(20, 32))
        segment = t + 5 if t % 8 + 5 <= 7 else t
        assert row == [up, down, idx, ballot, 496, segment, int(t == 0), int(t >= 3)]


def test_a_barrier_that_nobody_completes_is_a_deadlock_with_names(execute) -> None:
    body = HANDOVER + "setp.gt.u32 %p1, %r1, 31; @%p1 bra END;\n" + WAIT.format(parity=0) + "END:"
    report = execute(body, threads=64)
    assert report.deadlock is not None
    (waiter,) = report.deadlock.waiters
    assert (waiter.cta, waiter.warp) == (0, 0)
    assert "1 of 1 arrivals missing" in waiter.waits_for
    assert "try_wait" in waiter.ptx


def test_a_wrong_byte_count_is_a_deadlock_that_tells_the_bytes(execute) -> None:
    source = np.zeros(64, np.uint32)
    body = (
        HANDOVER
        + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 272;\n"
        + "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        + " [%r0+1024], [%rd0], 256, [%r0];\n"
        + WAIT.format(parity=0)
    )
    report = execute(body, source)
    assert report.deadlock is not None
    assert "16 transaction bytes outstanding" in str(report.deadlock)


def test_a_named_barrier_that_is_short_of_threads_tells_who_came(execute) -> None:
    body = "setp.lt.u32 %p1, %r1, 64; @%p1 bar.sync 3, 96;"
    report = execute(body, threads=96)
    assert report.deadlock is not None
    assert "named barrier 3: 64 of 96 threads arrived (warps 0, 1)" in str(report.deadlock)


@pytest.mark.parametrize("also", ["", "st.shared.b32 [%r0], 7;"])
def test_spinning_on_memory_that_nobody_writes_ends(execute, also: str) -> None:
    flag = np.zeros(1, np.uint32)
    body = f"SPIN: {also} ld.global.b32 %r5, [%rd0]; setp.eq.b32 %p1, %r5, 0; @%p1 bra SPIN;"
    report = execute(body, flag)
    assert report.deadlock is not None
    assert "spins" in str(report.deadlock)


def test_a_cta_may_wait_for_one_that_starts_later(execute) -> None:
    """A lock in global memory: CTA k waits until CTA k + 1 has counted up."""
    flag = np.zeros(1, np.uint32)
    body = """
    mov.u32 %r5, %ctaid.x; mov.b32 %r6, 3; sub.s32 %r6, %r6, %r5; setp.eq.b32 %p0, %r1, 0;
    @!%p0 bra END;
    SPIN: ld.acquire.gpu.global.b32 %r7, [%rd0]; setp.lt.u32 %p1, %r7, %r6; @%p1 bra SPIN;
    red.release.gpu.global.add.u32 [%rd0], 1;
    END:
    """
    report = execute(body, flag, grid=(4, 1, 1))
    assert not report.faulty, report
    assert flag[0] == 4
    assert report.ctas == 4


COUNT = """
setp.eq.b32 %p0, %r1, 0; @%p0 st.shared.b32 [%r0+64], 0; bar.sync 0;
atom.shared.add.u32 %r5, [%r0+64], 1;
mov.u32 %r6, %ctaid.x; mad.lo.s32 %r7, %r6, 128, %r1; mul.wide.u32 %rd5, %r7, 4;
add.s64 %rd5, %rd0, %rd5; st.global.b32 [%rd5], %r5;
"""


def test_the_same_seed_gives_the_same_run_and_another_seed_another(execute) -> None:
    def order(seed: int, processes: int = 1) -> list[int]:
        out = np.zeros(8 * 128, np.uint32)
        report = execute(COUNT, out, threads=128, grid=(8, 1, 1), seed=seed, processes=processes)
        assert not report.faulty, report
        assert report.ctas == 8
        return out.tolist()

    assert order(1) == order(1)
    assert order(1) == order(1, processes=3)
    assert len({tuple(order(seed)) for seed in range(6)}) > 1


def test_the_seed_decides_when_a_copy_lands(execute) -> None:
    """Without a wait the reader sees the old or the new value: with some seed each."""
    source = np.full(4, 7, np.uint32)

    def seen(seed: int) -> int:
        out = np.zeros(1, np.uint32)
        body = (
            HANDOVER
            + "@%p0 st.shared.b32 [%r0+1024], 3; fence.proxy.async.shared::cta; bar.sync 0;\n"
            + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 16;\n"
            + "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            + " [%r0+1024], [%rd0], 16, [%r0];\n"
            + "@%p0 ld.shared.b32 %r5, [%r0+1024]; @%p0 st.global.b32 [%rd1], %r5;\n"
            + WAIT.format(parity=0)
        )
        report = execute(body, source, out, seed=seed, races=False)
        assert not report.faulty, report
        return int(out[0])

    assert {seen(seed) for seed in range(12)} == {3, 7}


def test_counts_are_of_warp_instructions(execute) -> None:
    report = execute("add.s32 %r5, %r1, 1;\n" * 10, threads=96, grid=(2, 1, 1))
    assert report.opcodes["add.s32"] == 60
    assert report.warp_instructions == 6 * (10 + 3)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ld.global.b32 %r5, [%rd0+4096];", "out of bounds"),
        ("ld.shared.b32 %r5, [%r0+65536];", "out of bounds"),
        ("st.shared.b32 [%r0+2], 0;", "misaligned address"),
        ("mbarrier.arrive.shared.b64 %rd9, [%r0+8];", "no barrier here"),
        ("frobnicate.b32 %r5, %r1;", "unknown instruction"),
        ("min.xorsign.abs.f32 %r5, %r6, %r7;", "unknown instruction"),
        ("trap;", "trap"),
        ("bar.sync 1, 48;", "named barrier count"),
        ("setmaxnreg.dec.sync.aligned.u32 20;", "register count"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r5}, [0]; st.global.b32 [%rd0], %r5;",
         "tensor memory not allocated"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 48;",
         "tensor memory not allocated"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 64;",
         "tensor memory leaked"),
        ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 64;\n"
         "tcgen05.st.sync.aligned.32x32b.x1.b32 [0x200000], {%r1};", "tensor memory lanes"),
    ],
)  # fmt: skip
def test_a_broken_rule_stops_with_its_line(execute, body: str, kind: str) -> None:
    report = execute(f"mov.b32 %r9, 0;\n{body}", np.zeros(8, np.uint32), threads=32)
    assert [f.kind for f in report.faults] == [kind]
    (fault,) = report.faults
    assert fault.ptx.split()[0].split(".")[0] in body or kind == "tensor memory leaked"


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        ("24", "240", ""),
        ("64", "240", "want 69632 registers"),
    ],
)
def test_register_budgets_are_added_up(execute, low: str, high: str, says: str) -> None:
    """Three warpgroups: one gives registers up, two take them."""
    body = f"""
    shr.u32 %r2, %r1, 5; setp.lt.u32 %p1, %r2, 4; setp.eq.u32 %p3, %r2, 6;
    @%p1 bra LOW; setmaxnreg.inc.sync.aligned.u32 {high}; bra END;
    LOW: setmaxnreg.dec.sync.aligned.u32 {low};
    END:
    """
    report = execute(body, threads=384)
    assert [f.kind for f in report.faults] == ["register count"] * bool(says)
    assert all(says in f.message for f in report.faults)


def test_a_warpgroup_should_agree_on_its_registers(execute) -> None:
    body = "shr.u32 %r2, %r1, 5; setp.eq.u32 %p3, %r2, 2; @%p3 setmaxnreg.dec.sync.aligned.u32 32;"
    report = execute(body, threads=128)
    assert not report.faulty, report
    assert [f.kind for f in report.warnings] == ["registers differ in a warpgroup"]


def test_an_arrival_too_many(execute) -> None:
    report = execute(HANDOVER + "mbarrier.arrive.shared.b64 %rd9, [%r0]; bar.sync 0;", threads=64)
    assert report.faults or report.races


def test_two_ctas_that_write_different_values_race(execute) -> None:
    out = np.zeros(1, np.uint32)
    different = "mov.u32 %r5, %ctaid.x; st.global.b32 [%rd0], %r5;"
    report = execute(different, out, grid=(2, 1, 1))
    assert [f.kind for f in report.races] == ["two CTAs write one address"]
    assert "a0 + 0 bytes" in report.races[0].message
    assert not execute("st.global.b32 [%rd0], 9;", out, grid=(2, 1, 1)).faulty


def test_reading_an_output_before_it_is_written(execute) -> None:
    out = np.zeros(32, np.uint32)
    body = "ld.global.b32 %r5, [%rd0]; st.global.b32 [%rd0+4], %r5;"
    assert [f.kind for f in execute(body, out, initialised=False).races] == [
        "uninitialised global memory"
    ]
    assert not execute(body, out).faulty


def test_negated_predicates_and_policies(execute) -> None:
    out = np.zeros(4, np.uint32)
    body = """
    setp.lt.u32 %p1, %r1, 4; setp.lt.and.u32 %p2|%p3, %r1, 8, !%p1;
    vote.sync.ballot.b32 %r5, !%p1, -1; vote.sync.ballot.b32 %r6, %p2, -1;
    vote.sync.ballot.b32 %r7, %p3, -1; createpolicy.fractional.L2::evict_last.b64 %rd9, 1.0;
    st.global.v4.b32 [%rd0], {%r5, %r6, %r7, 0};
    """
    report = execute(body, out)
    assert not report.faulty, report
    assert out.tolist() == [0xFFFFFFF0, 0xF0, 0xFFFFFF00, 0]


def test_an_interrupt_ends_the_workers(execute, monkeypatch) -> None:
    """The caller gets its exception, and nothing runs on in its memory."""
    import threading

    from fa4gen.emulator import machine

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    running = threading.active_count()
    original = machine.run
    monkeypatch.setattr(machine, "run", lambda *a, **k: original(*a, **k, progress=interrupted))
    flag = np.zeros(1, np.uint32)
    spin = "SPIN: add.s32 %r2, %r2, 1; st.global.b32 [%rd0], %r2; bra SPIN;"
    with pytest.raises(KeyboardInterrupt):
        execute(spin, flag, races=False)
    assert threading.active_count() == running
