"""Hangs and faults of clusters and barriers that users reported in public, as small kernels: the
faulty one ends in a report, the repaired one is clean."""

import numpy as np
import pytest

from tests.emulator.test_copies import DUMP, INIT, WAIT, tensor_map

RANK = "mov.u32 %r7, %cluster_ctarank; setp.eq.b32 %p1, %r7, 0; and.pred %p3, %p0, %p1;\n"
MEET = "barrier.cluster.arrive; barrier.cluster.wait;\n"


@pytest.mark.parametrize(("mask", "clean"), [(3, True), (7, False), (9, False), (0, False)])
def test_a_multicast_mask_names_ctas_of_the_cluster(execute, mask: int, clean: bool) -> None:
    """NVIDIA/cutlass#3658 (B115): the mask named a CTA outside of the cluster."""
    source, out = np.arange(64, dtype=np.float32).reshape(8, 8), np.zeros((2, 64), np.float32)
    body = (
        INIT
        + RANK
        + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 256;\n"
        + MEET
        + f"add.s32 %r5, %r0, 1024; mov.b16 %h1, {mask};\n"
        + "@%p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        + ".multicast::cluster [%r5], [%rd1, {0, 0}], [%r0], %h1;\n"
        + WAIT
        + "mul.wide.u32 %rd5, %r7, 256; add.s64 %rd0, %rd0, %rd5;\n"
        + DUMP.format(size=256)
        + MEET
    )
    maps = [tensor_map(source, (8, 8), kind="f32")]
    report = execute(body, out, maps=maps, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert report.faulty is not clean, report
    if clean:
        assert (out.reshape(2, 8, 8) == source).all()
    else:
        assert [f.kind for f in report.faults] == ["mask outside of the cluster"]


@pytest.mark.parametrize("clean", [True, False])
def test_a_barrier_is_initialised_before_it_is_used(execute, clean: bool) -> None:
    """NVIDIA/cutlass#2364 (B120): arrive-and-expect was taken for the initialisation."""
    init = INIT if clean else "setp.eq.b32 %p0, %r1, 0; bar.sync 0;\n"
    body = init + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 0;\n" + WAIT
    report = execute(body)
    assert report.faulty is not clean, report
    if not clean:
        assert [f.kind for f in report.faults] == ["no barrier here"]


@pytest.mark.parametrize(("armed", "clean"), [(512, True), (256, False)])
def test_the_leader_of_a_pair_awaits_the_bytes_of_both(execute, armed: int, clean: bool) -> None:
    """Dao-AILab/flash-attention AI/DEBUG_2CTA.md i (B138): armed with the bytes of one CTA."""
    source, out = np.arange(128, dtype=np.float32), np.zeros(128, np.float32)
    body = (
        INIT
        + RANK
        + f"@%p3 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], {armed};\n"
        + MEET
        + "mapa.shared::cluster.u32 %r3, %r0, 0; mul.lo.s32 %r4, %r7, 256; add.s32 %r5, %r3, %r4;\n"
        + "mul.wide.u32 %rd5, %r7, 256; add.s64 %rd1, %rd1, %rd5;\n"
        + "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
        + "[%r5+1024], [%rd1], 256, [%r3];\n"
        + "@!%p1 bra END;\n"
        + WAIT
        + DUMP.format(size=512)
        + "END:\n"
        + MEET
    )
    for seed in range(4):
        report = execute(body, out, source, grid=(2, 1, 1), cluster=(2, 1, 1), seed=seed)
        assert report.faulty is not clean, report
        assert not clean or (out == source).all()
