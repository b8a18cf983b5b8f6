"""mbarrier phases: counted in full, so that a barrier that runs ahead of a waiter is seen."""

import numpy as np

INIT = """
shr.u32 %r2, %r1, 5; setp.eq.b32 %p0, %r1, 0; setp.eq.b32 %p1, %r1, 32; setp.lt.u32 %p2, %r1, 32;
@%p0 mbarrier.init.shared.b64 [%r0], {count}; @%p0 mbarrier.init.shared.b64 [%r0+8], 1;
@%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
"""


def wait(parity: int, offset: int = 0) -> str:
    return (
        "{ .reg .pred P; AGAIN: mbarrier.try_wait.parity.shared.b64 "
        f"P, [%r0+{offset}], {parity}, 100; @P bra DONE; bra AGAIN; DONE: }}\n"
    )


def arrive(offset: int = 0) -> str:
    return f"mbarrier.arrive.shared.b64 %rd9, [%r0+{offset}];\n"


def test_a_handshake_in_both_directions_is_clean(execute) -> None:
    """Warp 1 arrives three times; each time it waits until warp 0 has seen the one before."""
    producer = "".join(f"@%p1 {arrive()}" + wait(i % 2, 8) for i in range(3))
    consumer = "".join(wait(i % 2) + f"@%p0 {arrive(8)}" for i in range(3))
    body = INIT.format(count=1) + f"@%p2 bra A;\n{producer}bra END;\nA:\n{consumer}END:"
    for seed in range(6):
        report = execute(body, threads=64, seed=seed)
        assert not report.faulty, report


def test_a_barrier_that_can_lap_its_waiter_is_reported_under_every_seed(execute) -> None:
    """The same without the way back: three phases may pass before warp 0 looks."""
    producer = f"@%p1 {arrive()}" * 3
    body = INIT.format(count=1) + f"@%p2 bra A;\n{producer}bra END;\nA:\n{wait(0)}END:"
    for seed in range(8):
        report = execute(body, threads=64, seed=seed)
        assert report.deadlock or {f.kind for f in report.races} == {"barrier lapped"}


def test_arrivals_beyond_the_count_in_one_phase(execute) -> None:
    body = INIT.format(count=3) + "mbarrier.arrive.shared.b64 %rd9, [%r0], 2; bar.sync 0;"
    report = execute(body, threads=64)
    assert report.faulty


def test_a_state_names_the_phase_that_it_was_taken_in(execute) -> None:
    out = np.zeros(1, np.uint32)
    body = (
        INIT.format(count=1)
        + "@!%p0 bra END; mbarrier.arrive.shared.b64 %rd8, [%r0];\n"
        + "{ .reg .pred P; AGAIN: mbarrier.try_wait.shared.b64 P, [%r0], %rd8, 100;"
        + " @P bra DONE; bra AGAIN; DONE: }\nst.global.b32 [%rd0], 6;\nEND:"
    )
    report = execute(body, out, threads=64)
    assert not report.faulty, report
    assert out[0] == 6


def test_expected_bytes_may_come_after_the_copy(execute) -> None:
    """The transaction count may be negative for a while."""
    source, out = np.full(4, 11, np.uint32), np.zeros(1, np.uint32)
    body = (
        INIT.format(count=1)
        + "@!%p0 bra END;\n"
        + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        + " [%r0+1024], [%rd0], 16, [%r0];\n"
        + "mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 16;\n"
        + wait(0)
        + "ld.shared.b32 %r5, [%r0+1024]; st.global.b32 [%rd1], %r5;\nEND:"
    )
    for seed in range(6):
        out[0] = 0
        report = execute(body, source, out, threads=64, seed=seed)
        assert not report.faulty, report
        assert out[0] == 11


def test_barrier_words_are_not_data(execute) -> None:
    report = execute(INIT.format(count=1) + "ld.shared.b32 %r5, [%r0+8];", threads=64)
    assert "barrier word touched" in {f.kind for f in report.faults}


def test_a_barrier_may_be_set_up_anew_after_inval_only(execute) -> None:
    again = "@%p0 mbarrier.init.shared.b64 [%r0], 2;"
    report = execute(INIT.format(count=1) + again, threads=64)
    assert {f.kind for f in report.races} == {"barrier initialised twice"}
    report = execute(INIT.format(count=1) + "@%p0 mbarrier.inval.shared.b64 [%r0];" + again)
    assert not report.faulty, report
