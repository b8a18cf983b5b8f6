"""Tensor copies, bulk copies and their reductions, against index arithmetic in numpy."""

import itertools
import struct

import numpy as np
import pytest

DTYPE = {"bf16": (10, 2), "f32": (7, 4), "u8": (0, 1)}
SWIZZLE = {"none": 0, "32": 1, "64": 2, "128": 3}


def tensor_map(
    array: np.ndarray, box: tuple[int, ...], *, kind: str = "bf16", swizzle: str = "none"
) -> bytes:
    """The 128 bytes for a C-ordered array; dimensions and box are given innermost first."""
    code, size = DTYPE[kind]
    dims = array.shape[::-1]
    strides = [s // 16 for s in array.strides[::-1][1:]] + [0] * (5 - len(dims))
    d = [x - 1 for x in dims] + [0] * (5 - len(dims))
    b = [x - 1 for x in box] + [0] * (5 - len(box))
    assert array.itemsize == size
    q = [0] * 16
    q[0] = array.ctypes.data
    q[1] = len(dims) - 1 << 4 | code << 7 | SWIZZLE[swizzle] << 13 | strides[0] << 32
    q[2] = strides[1] | strides[2] << 32
    q[3] = strides[3]
    q[4], q[5] = d[0] | d[1] << 32, d[2] | d[3] << 32
    q[6] = d[4] | b[0] << 56
    q[7] = b[1] | b[2] << 8 | b[3] << 16 | b[4] << 24
    return struct.pack("<16Q", *q)


def swizzled(linear: int, mode: str) -> int:
    """The place of a byte of shared memory, by the rule on absolute address bits."""
    masks = {"none": 0, "32": 1, "64": 3, "128": 7}
    return linear ^ ((linear >> 7 & masks[mode]) << 4)


INIT = """
setp.eq.b32 %p0, %r1, 0;
@%p0 mbarrier.init.shared.b64 [%r0], 1;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;
"""
WAIT = """
{ .reg .pred P; AGAIN: mbarrier.try_wait.parity.shared.b64 P, [%r0], 0, 100;
@P bra DONE; bra AGAIN; DONE: }
"""
# copies %r20 bytes of shared memory at %r0 + 1024 to the array at %rd1
DUMP = """
mov.b32 %r10, %r1; shl.b32 %r10, %r10, 2;
LOOP:
add.s32 %r11, %r0, %r10; ld.shared.b32 %r12, [%r11+1024];
cvt.u64.u32 %rd20, %r10; add.s64 %rd21, %rd0, %rd20; st.global.b32 [%rd21], %r12;
add.s32 %r10, %r10, 128; setp.lt.s32 %p2, %r10, {size}; @%p2 bra LOOP;
"""


@pytest.mark.parametrize(
    ("swizzle", "box", "at"),
    [
        ("none", (16, 8, 2), (0, 0, 0)),
        ("32", (16, 16, 1), (16, 3, 1)),
        ("64", (32, 8, 2), (40, -3, 0)),
        ("128", (64, 16, 1), (-8, 6, 1)),
        ("128", (64, 8, 2), (24, 15, 2)),
        ("128", (64, 8, 1), (200, 0, 0)),
    ],
)
def test_a_load_places_every_element_and_fills_outside_with_zeros(
    execute, swizzle, box, at
) -> None:
    random = np.random.default_rng(0)
    source = random.integers(1, 2**16, (3, 20, 72), dtype=np.uint16)
    size = 2 * box[0] * box[1] * box[2]
    out = np.zeros(size // 2, np.uint16)
    body = (
        INIT
        + f"@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], {size};\n"
        + "mov.b64 %rd8, 0; add.s32 %r5, %r0, 1024;\n"
        + "@%p0 cp.async.bulk.tensor.3d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        + f".L2::cache_hint [%r5], [%rd1, {{{at[0]}, {at[1]}, {at[2]}}}], [%r0], %rd8;\n"
        + WAIT
        + DUMP.format(size=size)
    )
    for seed in range(3):
        report = execute(body, out, maps=[tensor_map(source, box, swizzle=swizzle)], seed=seed)
        assert not report.faulty, report
        want = np.zeros_like(out)
        for n, (k, j, i) in enumerate(itertools.product(*(range(b) for b in box[::-1]))):
            x, y, z = at[0] + i, at[1] + j, at[2] + k
            inside = 0 <= x < 72 and 0 <= y < 20 and 0 <= z < 3
            want[swizzled(0x800 + 2 * n, swizzle) - 0x800 >> 1] = source[z, y, x] if inside else 0
        assert (out == want).all()


def fill(count: int, kind: str = "f32") -> str:
    """Thread t of 32 writes words t, t + 32, ... of shared memory + 1024: word w holds w."""
    text = ""
    for n in range(count // 32):
        convert = "cvt.rn.f32.s32 %r11, %r10;" if kind == "f32" else "mov.b32 %r11, %r10;"
        text += f"add.s32 %r10, %r1, {32 * n}; {convert} shl.b32 %r12, %r10, 2;\n"
        text += "add.s32 %r12, %r12, %r0; st.shared.b32 [%r12+1024], %r11;\n"
    return text + "fence.proxy.async.shared::cta;\nbar.sync 0;\n"


def test_a_store_skips_what_is_outside(execute) -> None:
    target = np.full((4, 12), -1.0, np.float32)
    body = (
        "setp.eq.b32 %p0, %r1, 0; add.s32 %r5, %r0, 1024; mov.b64 %rd8, 0;\n"
        + fill(64)
        + "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint"
        + " [%rd0, {8, -1}], [%r5], %rd8;\n"
        + "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;\n"
    )
    report = execute(body, maps=[tensor_map(target, (8, 8), kind="f32")])
    assert not report.faulty, report
    want = np.full((4, 12), -1.0, np.float32)
    for row in range(8):
        for column in range(8):
            if 0 <= row - 1 < 4 and 8 + column < 12:
                want[row - 1, 8 + column] = row * 8 + column
    assert (target == want).all()


@pytest.mark.parametrize("tensor", [False, True])
def test_reductions_add(execute, tensor: bool) -> None:
    target = np.arange(64, dtype=np.float32).reshape(8, 8)
    before = target.copy()
    begin = "setp.eq.b32 %p0, %r1, 0; add.s32 %r5, %r0, 1024;\n" + fill(64)
    end = "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;\n"
    if tensor:
        body = (
            "@%p0 cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
            " [%rd0, {0, 0}], [%r5];\n"
        )
        report = execute(begin + body + end, maps=[tensor_map(target, (8, 8), kind="f32")])
    else:
        body = (
            "@%p0 cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%rd0], [%r5], 256;\n"
        )
        report = execute(begin + body + end, target, grid=(3, 1, 1))
    assert not report.faulty, report
    times = 1 if tensor else 3
    assert (target == before + times * np.arange(64).reshape(8, 8)).all()


def test_multicast_writes_the_same_offset_and_signals_each_cta(execute) -> None:
    source = np.arange(64, dtype=np.float32).reshape(8, 8)
    out = np.zeros((2, 64), np.float32)
    body = (
        INIT
        + "mov.u32 %r7, %cluster_ctarank; setp.eq.b32 %p1, %r7, 0; and.pred %p3, %p0, %p1;\n"
        + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 256;\n"
        + "barrier.cluster.arrive; barrier.cluster.wait;\n"
        + "add.s32 %r5, %r0, 1024; mov.b16 %h1, 3;\n"
        + "@%p3 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        + ".multicast::cluster [%r5], [%rd1, {0, 0}], [%r0], %h1;\n"
        + WAIT
        + "mul.wide.u32 %rd5, %r7, 256; add.s64 %rd0, %rd0, %rd5;\n"
        + DUMP.format(size=256)
        + "barrier.cluster.arrive; barrier.cluster.wait;\n"
    )
    maps = [tensor_map(source, (8, 8), kind="f32")]
    report = execute(body, out, maps=maps, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert not report.faulty, report
    assert (out.reshape(2, 8, 8) == source).all()


def test_an_unknown_map_is_a_fault(execute) -> None:
    source = np.zeros((8, 8), np.float32)
    raw = bytearray(tensor_map(source, (8, 8), kind="f32"))
    raw[9] |= 0x08  # interleave 16B
    body = (
        INIT
        + "mov.b64 %rd8, 0; @%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile"
        + ".mbarrier::complete_tx::bytes.L2::cache_hint [%r0+1024], [%rd0, {0, 0}], [%r0], %rd8;"
    )
    report = execute(body, maps=[bytes(raw)])
    assert [f.kind for f in report.faults] == ["illegal descriptor"]


def test_a_load_needs_its_descriptors_base_in_an_allocation_and_a_store_does_not(execute) -> None:
    """Ragged descriptors begin before their tensor; on an H200 loads through them fault."""
    everything = np.zeros((24, 8), np.float32)
    own = everything[8:16]
    maps = [tensor_map(everything, (8, 8), kind="f32")]
    load = (
        INIT
        + "@%p0 mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 256;\n"
        + "@%p0 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
        + " [%r0+1024], [%rd0, {0, 8}], [%r0];\n"
        + WAIT
    )
    store = (
        "mov.b32 %r9, 0; shl.b32 %r8, %r1, 3; add.s32 %r8, %r8, %r0;\n"
        "st.shared.v2.b32 [%r8+1024], {%r9, %r9};\n"
        "fence.proxy.async.shared::cta; bar.sync 0; setp.eq.b32 %p0, %r1, 0;\n"
        "@%p0 cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
        " [%rd0, {0, 8}], [%r0+1024];\n"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;\n"
    )
    assert [f.kind for f in execute(load, maps=maps, known=[own]).faults] == ["out of bounds"]
    assert not execute(load, maps=maps, known=[everything]).faulty
    stored = execute(store, maps=maps, known=[own])
    assert not stored.faulty, stored


def test_a_small_copy_reads_what_it_is_told_and_zeroes_the_rest(execute) -> None:
    source, out = np.arange(128, dtype=np.uint32) + 7, np.zeros(128, np.uint32)
    body = (
        "shl.b32 %r5, %r1, 4; add.s32 %r6, %r0, %r5; cvt.u64.u32 %rd5, %r5;\n"
        "add.s64 %rd6, %rd0, %rd5; add.s64 %rd7, %rd1, %rd5;\n"
        "and.b32 %r7, %r1, 3; shl.b32 %r7, %r7, 2;\n"
        "cp.async.cg.shared.global [%r6+1024], [%rd6], 16, %r7;\ncp.async.commit_group;\n"
        "cp.async.wait_group 0;\nld.shared.v4.b32 {%r10, %r11, %r12, %r13}, [%r6+1024];\n"
        "st.global.v4.b32 [%rd7], {%r10, %r11, %r12, %r13};"
    )
    report = execute(body, source, out)
    assert not report.faulty, report
    want = source.reshape(32, 4).copy()
    for thread in range(32):
        want[thread, thread % 4 :] = 0
    assert (out.reshape(32, 4) == want).all()
