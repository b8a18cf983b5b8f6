"""The tensor cores against torch's float64 products, over layouts, shapes and types."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

SPAN = {0: 16, 1: 32, 2: 64, 3: 128}  # bytes of a swizzle's row
KIND = {
    "bf16": ("f16", torch.bfloat16, 2, 1),
    "f16": ("f16", torch.float16, 2, 0),
    "e4m3": ("f8f6f4", torch.float8_e4m3fn, 1, 0),
    "e5m2": ("f8f6f4", torch.float8_e5m2, 1, 1),
    "tf32": ("tf32", torch.float32, 4, 2),
}  # instruction kind, torch's type, bytes, type code


def place(
    matrix: torch.Tensor, mode: int, mn_major: bool, size: int
) -> tuple[np.ndarray, int, int]:
    """Bytes of a (rows, k) operand in shared memory laid out from offset 0, its LBO and SBO."""
    rows, k = matrix.shape
    raw = matrix.contiguous().view(torch.uint8).numpy().reshape(rows, k, size)
    out = np.zeros(65536, np.uint8)
    width, per = SPAN[mode], 16 // size
    if mn_major:
        block = width // size
        lbo, sbo = (k * width, 8 * width) if mode else (rows // per * 128, 128)
    else:
        lbo, sbo = (16, 8 * width) if mode else (rows * 16, 128)
    for r in range(rows):
        for x in range(k):
            if mn_major and mode:
                at = r % block * size + r // block * lbo + x % 8 * width + x // 8 * sbo
            elif mn_major:
                at = r % per * size + r // per * sbo + x % 8 * 16 + x // 8 * lbo
            elif mode:
                at = r % 8 * width + r // 8 * sbo + x * size
            else:
                at = r % 8 * 16 + r // 8 * sbo + x % per * size + x // per * lbo
            at ^= (at >> 7 & ((1 << mode) - 1)) << 4
            out[at : at + size] = raw[r, x]
    return out, lbo, sbo


COPY_IN = """
setp.eq.b32 %p0, %r1, 0; shr.u32 %r2, %r1, 5; setp.eq.b32 %p1, %r2, 0;
@%p0 mbarrier.init.shared.b64 [%r0+64512], 1;
@%p0 fence.mbarrier_init.release.cluster;
shl.b32 %r3, %r1, 2;
FILL: add.s32 %r4, %r0, %r3; cvt.u64.u32 %rd10, %r3;
add.s64 %rd11, %rd0, %rd10; ld.global.b32 %r5, [%rd11];
st.shared.b32 [%r4+1024], %r5; add.s32 %r3, %r3, 512; setp.lt.s32 %p2, %r3, {size}; @%p2 bra FILL;
fence.proxy.async.shared::cta;
bar.sync 0;
"""


def body(idesc: int, kind: str, a: int, b: int, columns: int, *, size: int) -> str:
    """One MMA over data copied to shared memory + 1024, D written out by its four warps."""
    out = "".join(f"add.s32 %r9, %r8, {c}; {load(c)}" for c in range(0, columns, 8))
    return (
        COPY_IN.format(size=size)
        + "@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0+64520], 256;\n"
        + "bar.sync 0;\n"
        + "ld.shared.b32 %r6, [%r0+64520]; shr.u32 %r7, %r0, 4; cvt.u64.u32 %rd20, %r7;\n"
        + f"mov.b64 %rd21, {a}; add.s64 %rd21, %rd21, %rd20;\n"
        + f"mov.b64 %rd22, {b}; add.s64 %rd22, %rd22, %rd20;\n"
        + f"mov.b32 %r20, {idesc};\n"
        + f"@%p0 tcgen05.mma.cta_group::1.kind::{kind} [%r6], %rd21, %rd22, %r20, 0;\n"
        + f"@%p0 tcgen05.mma.cta_group::1.kind::{kind} [%r6], %rd21, %rd22, %r20, 1;\n"
        + "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
        + " [%r0+64512];\n"
        + "{ .reg .pred P; AGAIN: mbarrier.try_wait.parity.shared.b64 P, [%r0+64512], 0, 100;"
        + " @P bra DONE; bra AGAIN; DONE: }\n"
        + "shl.b32 %r8, %r2, 21; add.s32 %r8, %r8, %r6;\n"
        + f"mul.wide.u32 %rd12, %r1, {4 * columns}; add.s64 %rd12, %rd1, %rd12;\n"
        + out
        + "tcgen05.wait::ld.sync.aligned; bar.sync 0;\n"
        + "@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 256;\n"
    )


def load(column: int) -> str:
    names = ", ".join(f"%r{30 + i}" for i in range(8))
    stores = "".join(f"st.global.b32 [%rd12+{4 * (column + i)}], %r{30 + i};" for i in range(8))
    return f"tcgen05.ld.sync.aligned.32x32b.x8.b32 {{{names}}}, [%r9]; {stores}\n"


@pytest.mark.parametrize(
    ("kind", "m", "n", "mode", "a_major", "b_major"),
    [
        ("bf16", 128, 128, 3, 0, 0),
        ("bf16", 128, 64, 3, 0, 1),
        ("bf16", 128, 128, 3, 1, 1),
        ("f16", 64, 32, 2, 0, 0),
        ("f16", 128, 32, 2, 1, 0),
        ("f16", 64, 24, 1, 0, 0),
        ("bf16", 128, 16, 0, 0, 0),
        ("bf16", 128, 16, 0, 1, 1),
        ("e4m3", 128, 64, 3, 0, 0),
        ("e5m2", 128, 32, 1, 0, 0),
        ("tf32", 128, 32, 3, 0, 0),
    ],
)
def test_tcgen05_multiplies(execute, kind, m, n, mode, a_major, b_major) -> None:
    name, dtype, size, code = KIND[kind]
    k = 32 // size
    torch.manual_seed(0)
    a, b = torch.randn(m, k).to(dtype), torch.randn(n, k).to(dtype)
    if kind == "tf32":
        a, b = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (a, b))
    data = np.zeros(63488, np.uint8)
    descriptors = []
    for t, major, at in ((a, a_major, 0), (b, b_major, 32768 - 2048)):
        at = at // 1024 * 1024
        bytes_, lbo, sbo = place(t, mode, bool(major), size)
        data[at : at + 24576] = bytes_[:24576]
        layout = {0: 0, 1: 6, 2: 4, 3: 2}[mode]
        descriptors.append(
            (1024 + at) >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | 1 << 46 | layout << 61
        )
    idesc = (
        1 << 4
        | code << 7
        | code << 10
        | a_major << 15
        | b_major << 16
        | n // 8 << 17
        | m // 16 << 24
    )
    out = np.full((128, n), np.nan, np.float32)
    signed = [d - (1 << 64) if d >> 63 else d for d in descriptors]
    text = body(idesc, name, *signed, n, size=63488)
    report = execute(text, data.view(np.uint32), out, threads=128)
    faults = [f for f in (*report.faults, *report.races) if m == 128 or "uninit" not in f.kind]
    assert not faults, faults[0]
    want = 2 * (a.double() @ b.double().T)
    rows = range(m) if m == 128 else [r % 16 + 32 * (r // 16) for r in range(m)]
    got = torch.tensor(out[list(rows)]).double()
    assert (got - want).abs().max() < 1e-4 * max(1, want.abs().max())


@pytest.mark.parametrize(
    ("n", "a_major", "b_major", "registers"),
    [(64, 0, 0, False), (128, 0, 1, False), (24, 1, 0, False), (64, 0, 0, True), (128, 0, 1, True)],
)
def test_wgmma_multiplies(execute, n, a_major, b_major, registers) -> None:
    torch.manual_seed(1)
    a, b = torch.randn(64, 16).bfloat16(), torch.randn(n, 16).bfloat16()
    data = np.zeros(63488, np.uint8)
    signed = []
    for t, major, at in ((a, a_major, 0), (b, b_major, 30720)):
        bytes_, lbo, sbo = place(t, 3, bool(major), 2)
        data[at : at + 24576] = bytes_[:24576]
        d = (1024 + at) >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | 1 << 62
        signed.append(d)
    accumulators = ", ".join(f"%r{30 + i}" for i in range(n // 2))
    zeros = "".join(f"mov.b32 %r{30 + i}, 0;" for i in range(n // 2))
    shape = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{accumulators}}}"
    fragments = (
        "and.b32 %r6, %r1, 31; shr.u32 %r7, %r6, 2; and.b32 %r8, %r6, 3; shl.b32 %r8, %r8, 2;\n"
        "shl.b32 %r9, %r2, 4; add.s32 %r7, %r7, %r9; shl.b32 %r7, %r7, 5; add.s32 %r7, %r7, %r8;\n"
        "cvt.u64.u32 %rd14, %r7; add.s64 %rd14, %rd2, %rd14;\n"
        "ld.global.b32 %r20, [%rd14]; ld.global.b32 %r21, [%rd14+256];\n"
        "ld.global.b32 %r22, [%rd14+16]; ld.global.b32 %r23, [%rd14+272];\n"
    )
    operand = (
        f"{{%r20, %r21, %r22, %r23}}, %rd22, 1, 1, 1, {b_major}"
        if registers
        else (f"%rd21, %rd22, 1, 1, 1, {a_major}, {b_major}")
    )
    stores = "".join(
        f"st.global.b32 [%rd12+{4 * (8 * (i // 4) + i % 2 + 8 * n * (i // 2 % 2))}], %r{30 + i};"
        for i in range(n // 2)
    )
    text = (
        COPY_IN.format(size=63488)
        + "shr.u32 %r7, %r0, 4; cvt.u64.u32 %rd20, %r7;\n"
        + f"mov.b64 %rd21, {signed[0]}; add.s64 %rd21, %rd21, %rd20;\n"
        + f"mov.b64 %rd22, {signed[1]}; add.s64 %rd22, %rd22, %rd20;\n"
        + (fragments if registers else "")
        + zeros
        + f"\nwgmma.fence.sync.aligned;\n{shape}, {operand};\n{shape}, {operand};\n"
        + "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n"
        + "and.b32 %r6, %r1, 31; shr.u32 %r7, %r6, 2; shl.b32 %r9, %r2, 4; add.s32 %r7, %r7, %r9;\n"
        + f"mul.lo.s32 %r7, %r7, {4 * n}; and.b32 %r8, %r6, 3; shl.b32 %r8, %r8, 3;\n"
        + "add.s32 %r7, %r7, %r8; cvt.u64.u32 %rd12, %r7; add.s64 %rd12, %rd1, %rd12;\n"
        + stores
    )
    out = np.full((64, n), np.nan, np.float32)
    rows = a.view(torch.int16).numpy().copy()
    report = execute(text, data.view(np.uint32), out, rows, threads=128, target="sm_90a")
    assert not report.faulty, report
    want = 2 * (a.double() @ b.double().T)
    assert (torch.tensor(out).double() - want).abs().max() < 1e-4 * want.abs().max()
    moved = np.full((64, n), np.nan, np.float32)
    execute(
        text, data.view(np.uint32), moved, rows, threads=128, target="sm_90a", perturb=("wgmma",)
    )
    bound = 3 * 2.0**-22 * (a.double().abs() @ b.double().abs().T)  # of two sums, the second on top
    off = torch.tensor(moved).double() - torch.tensor(out).double()
    assert off.abs().max() > 0
    assert (off.abs() <= bound + 2.0**-23 * want.abs()).all()


SHAPES = {
    "32x32b": (32, lambda t, r: (t, r), 1),
    "16x64b": (16, lambda t, r: (t // 4 + 8 * (t % 2), 2 * r + t // 2 % 2), 1),
    "16x128b": (16, lambda t, r: (t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4), 2),
    "16x256b": (
        16,
        lambda t, r: (t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2),
        4,
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_tensor_memory_shapes_name_the_cells_that_the_manual_names(execute, shape) -> None:
    """Written row by row (32x32b), read through the shape."""
    _, cell, per = SHAPES[shape]
    times = 4
    names = [f"%r{40 + i}" for i in range(per * times)]
    fill = "".join(f"shl.b32 %r5, %r1, 8; add.s32 %r{60 + i}, %r5, {i};" for i in range(32))
    written = ", ".join(f"%r{60 + i}" for i in range(32))
    stores = "".join(f"st.global.b32 [%rd12+{4 * i}], {n};" for i, n in enumerate(names))
    text = (
        "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;\n"
        "ld.shared.b32 %r6, [%r0];\n"
        + fill
        + f"tcgen05.st.sync.aligned.32x32b.x32.b32 [%r6], {{{written}}};\n"
        + "tcgen05.wait::st.sync.aligned;\n"
        + f"tcgen05.ld.sync.aligned.{shape}.x{times}.b32 {{{', '.join(names)}}}, [%r6];\n"
        + f"mul.wide.u32 %rd12, %r1, {4 * len(names)}; add.s64 %rd12, %rd0, %rd12;\n"
        + stores
        + "tcgen05.wait::ld.sync.aligned; tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 32;\n"
    )
    out = np.zeros((32, len(names)), np.uint32)
    report = execute(text, out)
    assert not report.faulty, report
    for t in range(32):
        for r in range(len(names)):
            row, column = cell(t, r)
            assert out[t, r] == row * 256 + column
