"""CTA pairs: one MMA over both CTAs' memory, allocation together, commits to both; and the other
operand forms of the Blackwell tensor core."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

# Every CTA copies its 32 KiB of bf16 rows (128 bytes each: 64 columns, 128-byte swizzle) to shared
# memory + 1024, A at offset 0, B at 16384, then meets its peer.
BEGIN = """
setp.eq.b32 %p0, %r1, 0; shr.u32 %r2, %r1, 5; setp.eq.b32 %p1, %r2, 0;
mov.u32 %r7, %cluster_ctarank; setp.eq.b32 %p4, %r7, 0; and.pred %p5, %p0, %p4;
@%p0 mbarrier.init.shared.b64 [%r0+64512], 1;
@%p0 fence.mbarrier_init.release.cluster;
mul.wide.u32 %rd9, %r7, 32768; add.s64 %rd0, %rd0, %rd9;
shl.b32 %r3, %r1, 2;
FILL: add.s32 %r4, %r0, %r3; cvt.u64.u32 %rd10, %r3; add.s64 %rd11, %rd0, %rd10;
ld.global.b32 %r5, [%rd11]; st.shared.b32 [%r4+1024], %r5;
add.s32 %r3, %r3, 512; setp.lt.s32 %p2, %r3, 32768; @%p2 bra FILL;
fence.proxy.async.shared::cta;
@%p1 tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%r0+64520], 256;
bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;
ld.shared.b32 %r6, [%r0+64520];
mov.b64 %rd21, 0x4000404000010080; mov.b64 %rd22, 0x4000404000010480;
"""
WAIT = """
{ .reg .pred P; AGAIN: mbarrier.try_wait.parity.shared.b64 P, [%r0+64512], 0, 100;
@P bra DONE; bra AGAIN; DONE: }
"""
END = """
tcgen05.wait::ld.sync.aligned; bar.sync 0; barrier.cluster.arrive; barrier.cluster.wait;
@%p1 tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %r6, 256;
"""


def read_columns(columns: int) -> str:
    """Thread t writes D's lane t, all columns, to the output's row 128 rank + t."""
    text = (
        "shl.b32 %r8, %r2, 21; add.s32 %r8, %r8, %r6; mul.lo.s32 %r10, %r7, 128;\n"
        f"add.s32 %r10, %r10, %r1; mul.wide.u32 %rd12, %r10, {4 * columns};\n"
        "add.s64 %rd12, %rd1, %rd12;\n"
    )
    names = [f"%r{30 + i}" for i in range(16)]
    for c in range(0, columns, 16):
        text += f"add.s32 %r9, %r8, {c};\n"
        text += f"tcgen05.ld.sync.aligned.32x32b.x16.b32 {{{', '.join(names)}}}, [%r9];\n"
        text += "".join(f"st.global.b32 [%rd12+{4 * (c + i)}], {n};" for i, n in enumerate(names))
    return text


def swizzled(rows: torch.Tensor) -> np.ndarray:
    """(n, 64) bf16 rows as they lie in shared memory: 16-byte chunk c of row r at c xor r mod 8."""
    n = rows.shape[0]
    chunks = rows.contiguous().view(torch.int16).numpy().reshape(n, 8, 8)
    return np.stack([chunks[r][[c ^ r % 8 for c in range(8)]] for r in range(n)]).reshape(-1)


def memory(parts: list[tuple[torch.Tensor, torch.Tensor]]) -> np.ndarray:
    made = np.zeros((len(parts), 16384), np.int16)
    for m, (a, b) in zip(made, parts, strict=True):
        m[: a.numel()] = swizzled(a)
        m[8192 : 8192 + b.numel()] = swizzled(b)
    return made.view(np.uint32)


@pytest.mark.parametrize("m", [128, 256])
def test_a_pair_multiplies_together(execute, m: int) -> None:
    """Each CTA holds half of A's rows and half of B's; the even one issues for both."""
    n = 64
    torch.manual_seed(2)
    a, b = torch.randn(m, 64).bfloat16(), torch.randn(n, 64).bfloat16()
    data = memory([(a[: m // 2], b[: n // 2]), (a[m // 2 :], b[n // 2 :])])
    columns = n if m == 256 else n // 2
    out = np.full((256, columns), np.nan, np.float32)
    idesc = 1 << 4 | 1 << 7 | 1 << 10 | n // 8 << 17 | m // 16 << 24
    steps = "".join(
        f"add.s64 %rd23, %rd21, {2 * k}; add.s64 %rd24, %rd22, {2 * k};\n"
        f"@%p5 tcgen05.mma.cta_group::2.kind::f16 [%r6], %rd23, %rd24, {idesc}, {int(k > 0)};\n"
        for k in range(4)
    )
    body = (
        BEGIN.replace("{group}", "2")
        + steps
        + "mov.b16 %h1, 3;\n@%p5 tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
        + ".multicast::cluster.b64 [%r0+64512], %h1;\n"
        + WAIT
        + read_columns(columns)
        + END.replace("{group}", "2")
    )
    for seed in range(3):
        report = execute(body, data, out, threads=128, grid=(2, 1, 1), cluster=(2, 1, 1), seed=seed)
        assert not report.faulty, report
        want = a.double() @ b.double().T
        lanes = torch.tensor(out).double().reshape(2, 128, columns)
        if m == 256:
            got = lanes.reshape(256, n)
        else:  # lanes 64 and up hold the second half of the columns
            got = torch.cat([torch.cat([x[:64], x[64:]], 1) for x in lanes])
        assert (got - want).abs().max() < 1e-4 * want.abs().max()


def test_half_a_pair_cannot_allocate(execute) -> None:
    body = """
    mov.u32 %r7, %cluster_ctarank; setp.eq.b32 %p4, %r7, 0;
    @%p4 tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r0], 32;
    """
    report = execute(body, grid=(2, 1, 1), cluster=(2, 1, 1))
    assert report.deadlock is not None
    assert [w.cta for w in report.deadlock.waiters] == [0]


def single(idesc: int, setup: str, a: str, extra: str, accumulate: str = "0") -> str:
    """One K step in one CTA."""
    return (
        BEGIN.replace("{group}", "1")
        + setup
        + f"@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r6], {a}, %rd22, {idesc}{extra},"
        + f" {accumulate};\n@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one"
        + ".shared::cluster.b64 [%r0+64512];\n"
        + WAIT
        + read_columns(32)
        + END.replace("{group}", "1")
    )


def ones() -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    torch.manual_seed(3)
    a, b = torch.randn(128, 64).bfloat16(), torch.randn(32, 64).bfloat16()
    return a[:, :16].double(), b[:, :16].double(), memory([(a, b)])


IDESC = 1 << 4 | 1 << 7 | 1 << 10 | 4 << 17 | 8 << 24
PRESET = """
mov.b32 %r20, 0f41000000; shl.b32 %r21, %r2, 21; add.s32 %r21, %r21, %r6;
{ .reg .b32 c, at; mov.b32 c, 0;
SET: add.s32 at, %r21, c; tcgen05.st.sync.aligned.32x32b.x1.b32 [at], {%r20};
add.s32 c, c, 1; setp.lt.s32 %p6, c, 32; @%p6 bra SET; }
tcgen05.wait::st.sync.aligned; bar.sync 0;
"""  # D is 8 everywhere


@pytest.mark.parametrize(
    ("case", "idesc", "extra", "accumulate"),
    [
        ("negate", IDESC | 1 << 13, "", "0"),
        ("mask", IDESC, ", {%r24, %r25, %r25, %r25}", "1"),
        ("scale", IDESC, "", "1, 2"),
    ],
)
def test_fields_of_an_mma(execute, case: str, idesc: int, extra: str, accumulate: str) -> None:
    """A's sign, lanes that are not written, and D scaled by a power of two."""
    a, b, data = ones()
    out = np.full((128, 32), np.nan, np.float32)
    setup = PRESET + "mov.b32 %r24, 0x0000FF00; mov.b32 %r25, 0;\n"
    report = execute(single(idesc, setup, "%rd21", extra, accumulate), data, out, threads=128)
    assert not report.faulty, report
    product = a @ b.T
    want = {"negate": -product, "mask": product + 8, "scale": product + 2}[case]
    if case == "mask":
        want[8:16] = 8
    assert (torch.tensor(out).double() - want).abs().max() < 1e-4


def test_a_may_come_from_tensor_memory(execute) -> None:
    """Row r of A in lane r, two bf16 a column."""
    a, b, data = ones()
    out = np.full((128, 32), np.nan, np.float32)
    words = a.bfloat16().contiguous().view(torch.int32).numpy().copy()
    registers = ", ".join(f"%r{70 + i}" for i in range(8))
    loads = "".join(f"ld.global.b32 %r{70 + i}, [%rd16+{4 * i}];" for i in range(8))
    setup = (
        "mul.wide.u32 %rd15, %r1, 32; add.s64 %rd16, %rd2, %rd15;\n"
        + loads
        + "shl.b32 %r21, %r2, 21; add.s32 %r21, %r21, %r6; add.s32 %r22, %r6, 64;\n"
        + f"tcgen05.st.sync.aligned.32x32b.x8.b32 [%r21+64], {{{registers}}};\n"
        + "tcgen05.wait::st.sync.aligned; bar.sync 0;\n"
    )
    report = execute(single(IDESC, setup, "[%r22]", ""), data, out, words, threads=128)
    assert not report.faulty, report
    assert (torch.tensor(out).double() - a @ b.T).abs().max() < 1e-4
