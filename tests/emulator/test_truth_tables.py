"""A table for each synchronisation rule: a fault if and only if a fence or wait of it is missing.

Each rule is a small kernel with optional pieces and the condition under which it is sound. A sound
program must give no fault under any seed, and the right values; an unsound one must give a fault
under at least one seed. The formulas are the hardware's rules, as the PTX manual has them.
"""

import ctypes
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from fa4gen.emulator import machine
from fa4gen.emulator.ptx.parser import load_ptx

SEEDS = range(4)
HEADER = """.version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 __dynamic_shmem__0[];
.visible .entry kernel(.param .u64 p_out, .param .u64 p_in)
.reqntid {threads}, 1, 1
{{
.reg .pred %p<16>;
.reg .b32 %r<64>;
.reg .b32 %f<64>;
.reg .b64 %rd<32>;
ld.param.b64 %rd0, [p_out];
ld.param.b64 %rd1, [p_in];
mov.b32 %r0, __dynamic_shmem__0;
mov.u32 %r1, %tid.x;
shr.u32 %r2, %r1, 5;
and.b32 %r3, %r1, 31;
setp.eq.b32 %p0, %r1, 0;
setp.eq.b32 %p1, %r2, 0;
setp.eq.b32 %p2, %r2, 1;
shl.b32 %r4, %r1, 2;
add.s32 %r5, %r0, %r4;
shl.b32 %r6, %r3, 2;
add.s32 %r7, %r0, %r6;
cvt.u64.u32 %rd2, %r6;
add.s64 %rd3, %rd0, %rd2;
mov.u32 %r8, %cluster_ctarank;
"""
# registers every kernel starts with: %r0 smem, %r1 thread, %r2 warp, %r3 lane, %r7 smem + 4 lane,
# %rd0 output, %rd1 input, %rd3 output + 4 lane, %r8 rank in the cluster; %p0 thread 0, %p1 warp 0,
# %p2 warp 1. Barriers lie at smem + 0 and + 8, data from smem + 1024.


@dataclass(frozen=True)
class Rule:
    """`body(**pieces)` is the kernel; `sound(**pieces)` says whether it is right."""

    pieces: tuple[str, ...]
    body: Callable[..., str]
    sound: Callable[..., bool]
    threads: int = 64
    target: str = "sm_100a"
    cluster: int = 1
    value: Callable[[int], float] = lambda lane: lane + 1.0
    count: int = 32


def wait(address: str, parity: int = 0) -> str:
    return (
        "{ .reg .pred P; AGAIN: mbarrier.try_wait.parity.shared.b64 "
        f"P, [{address}], {parity}, 10000000; @P bra DONE; bra AGAIN; DONE: }}"
    )


def when(present: bool, text: str) -> str:
    return text if present else ""


def init(count: int, bars: int = 1) -> str:
    made = "".join(f"@%p0 mbarrier.init.shared.b64 [%r0+{8 * i}], {count};\n" for i in range(bars))
    return f"{made}@%p0 fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"


ANSWER = "@%p{who} ld.shared.b32 %r20, [%r7+1024];\n@%p{who} st.global.b32 [%rd3], %r20;\n"
LANE_VALUE = "add.s32 %r10, %r3, 1;\ncvt.rn.f32.s32 %r11, %r10;\n"


def mbarrier_handover(arrive: bool, waits: bool, count: int = 32) -> str:
    return (
        init(count)
        + LANE_VALUE
        + "@!%p1 bra CONSUMER;\nst.shared.b32 [%r7+1024], %r11;\n"
        + when(arrive, "mbarrier.arrive.shared.b64 %rd9, [%r0];\n")
        + "bra END;\nCONSUMER:\n"
        + when(waits, wait("%r0"))
        + ANSWER.format(who=2)
        + "END:\n"
    )


def arrival_count(right_count: bool) -> str:
    """32 lanes arrive; one too few are expected, and the last lane falls into the next phase."""
    return mbarrier_handover(arrive=True, waits=True, count=32 if right_count else 31)


def named_barrier(arrive: bool, sync: bool) -> str:
    return (
        LANE_VALUE
        + "@!%p1 bra CONSUMER;\nst.shared.b32 [%r7+1024], %r11;\n"
        + when(arrive, "bar.arrive 1, 64;\n")
        + "bra END;\nCONSUMER:\n"
        + when(sync, "bar.sync 1, 64;\n")
        + ANSWER.format(who=2)
        + "END:\n"
    )


def barrier_init(sync: bool) -> str:
    return (
        "@%p0 mbarrier.init.shared.b64 [%r0], 32;\n"
        + when(sync, "bar.sync 0;\n")
        + LANE_VALUE
        + "@!%p2 bra WAITER;\nst.shared.b32 [%r7+1024], %r11;\n"
        + "mbarrier.arrive.shared.b64 %rd9, [%r0];\nbra END;\nWAITER:\n"
        + "bar.warp.sync -1;\n"
        + wait("%r0")
        + ANSWER.format(who=1)
        + "END:\n"
    )


def proxy_fence(fence: bool, barrier: bool) -> str:
    return (
        LANE_VALUE
        + "@%p2 st.shared.b32 [%r7+1024], %r11;\n"
        + when(fence, "@%p2 fence.proxy.async.shared::cta;\n")
        + when(barrier, "bar.sync 1, 64;\n")
        + "add.s32 %r12, %r0, 1024;\n"
        + "@%p0 cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r12], 128;\n"
        + "@%p0 cp.async.bulk.commit_group;\n@%p0 cp.async.bulk.wait_group 0;\n"
    )


def source_reuse(commit: bool, waits: bool) -> str:
    """A bulk store's source is overwritten by the thread that issued it."""
    return (
        LANE_VALUE
        + "@%p1 st.shared.b32 [%r7+1024], %r11;\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
        + "add.s32 %r12, %r0, 1024;\n@!%p0 bra END;\n"
        + "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r12], 128;\n"
        + when(commit, "cp.async.bulk.commit_group;\n")
        + when(waits, "cp.async.bulk.wait_group.read 0;\n")
        + "st.shared.b32 [%r12], 0;\nst.shared.b32 [%r12+4], 0;\nEND:\n"
    )


def bulk_load(waits: bool, right_bytes: bool) -> str:
    size = 128 if right_bytes else 112
    return (
        init(1)
        + "add.s32 %r12, %r0, 1024;\n@!%p0 bra LOADED;\n"
        + f"mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], {size};\n"
        + "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        + " [%r12], [%rd1], 128, [%r0];\nLOADED:\nbar.warp.sync -1;\n"
        + when(waits, wait("%r0"))
        + ANSWER.format(who=1)
    )


def stage_reuse(release: bool, waits: bool) -> str:
    """A stage is loaded, read, released, and loaded again."""
    load = (
        "mbarrier.arrive.expect_tx.shared.b64 %rd9, [%r0], 128;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%r12], [%rd4], 128, [%r0];\n"
    )
    return (
        "@%p0 mbarrier.init.shared.b64 [%r0], 1;\n@%p0 mbarrier.init.shared.b64 [%r0+8], 32;\n"
        + "@%p0 fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
        + "add.s32 %r12, %r0, 1024;\nadd.s32 %r13, %r0, 8;\nadd.s64 %rd4, %rd1, 128;\n"
        + "@%p2 bra READER;\n@!%p0 bra END;\n"
        + load
        + when(waits, wait("%r13"))
        + "mov.b64 %rd4, %rd1;\n"
        + load
        + "bra END;\nREADER:\n"
        + wait("%r0")
        + "ld.shared.b32 %r20, [%r7+1024];\nadd.f32 %r21, %r20, %r20;\n"
        + when(release, "mbarrier.arrive.shared.b64 %rd9, [%r13];\n")
        + wait("%r0", 1)
        + ANSWER.format(who=2)
        + "END:\nbar.sync 0;\n"
    )


def cp_async(waits: bool, barrier: bool) -> str:
    return (
        "@!%p1 bra READER;\nmul.wide.u32 %rd5, %r3, 4;\nadd.s64 %rd5, %rd1, %rd5;\n"
        + "add.s32 %r12, %r7, 1024;\ncp.async.ca.shared.global [%r12], [%rd5], 4, 4;\n"
        + when(waits, "cp.async.wait_all;\n")
        + "READER:\n"
        + when(barrier, "bar.sync 1, 64;\n")
        + ANSWER.format(who=2)
    )


TMEM = (
    "@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0+16], 64;\n"
    "bar.sync 0;\nld.shared.b32 %r30, [%r0+16];\n"
)
TMEM_END = "bar.sync 0;\n@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r30, 64;\n"


def tmem_handover(wait_st: bool, barrier: bool) -> str:
    """Warps 0 and 4 reach the same lanes of tensor memory: one stores, the other loads."""
    return (
        TMEM
        + LANE_VALUE
        + "setp.eq.b32 %p4, %r2, 4;\n@%p4 bra READER;\n@!%p1 bra JOIN;\n"
        + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r30], {%r11};\n"
        + when(wait_st, "tcgen05.wait::st.sync.aligned;\n")
        + when(barrier, "bar.arrive 1, 64;\n")
        + "bra JOIN;\nREADER:\n"
        + when(barrier, "bar.sync 1, 64;\n")
        + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r30];\ntcgen05.wait::ld.sync.aligned;\n"
        + "st.global.b32 [%rd3], %r20;\nJOIN:\n"
        + TMEM_END
    )


def tmem_reuse(wait_ld: bool, barrier: bool) -> str:
    """Warp 0 loads what warp 4 then overwrites; its registers are used only afterwards."""
    return (
        TMEM
        + LANE_VALUE
        + "setp.eq.b32 %p4, %r2, 4;\n@%p4 bra WRITER;\n@!%p1 bra JOIN;\n"
        + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r30], {%r11};\ntcgen05.wait::st.sync.aligned;\n"
        + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r30];\n"
        + when(wait_ld, "tcgen05.wait::ld.sync.aligned;\n")
        + when(barrier, "bar.arrive 1, 64;\n")
        + "bar.sync 2, 64;\nst.global.b32 [%rd3], %r20;\n"
        + "bra JOIN;\nWRITER:\n"
        + when(barrier, "bar.sync 1, 64;\n")
        + "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r30], {0};\ntcgen05.wait::st.sync.aligned;\n"
        + "bar.arrive 2, 64;\nJOIN:\n"
        + TMEM_END
    )


# 128 rows of 64 bf16 ones at smem + 1024 (A and B), 128-byte swizzle: one K step of 16 gives 16
FILL = "shl.b32 %r14, %r1, 7;\nadd.s32 %r14, %r14, %r0;\n" + "".join(
    f"st.shared.v4.b32 [%r14+{1024 + 16 * i}], {{%r15, %r15, %r15, %r15}};\n" for i in range(8)
)
DESCRIPTOR = (
    "add.s32 %r16, %r0, 1024;\nshr.u32 %r16, %r16, 4;\nand.b32 %r16, %r16, 16383;\n"
    "or.b32 %r16, %r16, 0x10000;\n"
)


def mma(fence: bool, barrier: bool, commit: bool, waits: bool) -> str:
    arrive = (
        "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r0];\n"
        if commit
        else "mbarrier.arrive.shared.b64 %rd9, [%r0];\n"
    )
    return (
        init(1)
        + TMEM
        + "mov.b32 %r15, 0x3F803F80;\n"
        + FILL
        + when(fence, "fence.proxy.async.shared::cta;\n")
        + when(barrier, "bar.sync 0;\n")
        + DESCRIPTOR
        + "mov.b64 %rd10, {%r16, 0x40004040};\nmov.b32 %r17, 0x08100490;\n"
        + "@!%p0 bra ISSUED;\n"
        + "tcgen05.mma.cta_group::1.kind::f16 [%r30], %rd10, %rd10, %r17, 0;\n"
        + arrive
        + "ISSUED:\nbar.warp.sync -1;\n@!%p1 bra JOIN;\n"
        + when(waits, wait("%r0"))
        + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r30];\ntcgen05.wait::ld.sync.aligned;\n"
        + "st.global.b32 [%rd3], %r20;\nJOIN:\n"
        + TMEM_END
    )


def unwritten_operand(b_written: bool) -> str:
    """Half of A's rows were never written, as where a tile is not full; B's must have been."""
    b = FILL.replace("%r0;", "%r31;")
    return (
        init(1)
        + TMEM
        + "mov.b32 %r15, 0x3F803F80;\nsetp.lt.u32 %p6, %r1, 64;\n"
        + "@!%p6 bra OTHERS;\n"
        + FILL
        + "bra WRITTEN;\nOTHERS:\nadd.s32 %r31, %r0, 8192;\n"
        + when(b_written, b)
        + "WRITTEN:\nfence.proxy.async.shared::cta;\nbar.sync 0;\n"
        + DESCRIPTOR
        + "mov.b64 %rd10, {%r16, 0x40004040};\nadd.s32 %r32, %r16, 1024;\n"
        + "mov.b64 %rd11, {%r32, 0x40004040};\nmov.b32 %r17, 0x08100490;\n"
        + "@!%p0 bra ISSUED;\n"
        + "tcgen05.mma.cta_group::1.kind::f16 [%r30], %rd10, %rd11, %r17, 0;\n"
        + "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r0];\n"
        + "ISSUED:\nbar.warp.sync -1;\n@!%p1 bra JOIN;\n"
        + wait("%r0")
        + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r30];\ntcgen05.wait::ld.sync.aligned;\n"
        + "st.global.b32 [%rd3], %r20;\nJOIN:\n"
        + TMEM_END
    )


def mma_operand_reuse(waits: bool) -> str:
    """The operand's rows are overwritten by the thread that issued the MMA."""
    return (
        init(1)
        + TMEM
        + "mov.b32 %r15, 0x3F803F80;\n"
        + FILL
        + "fence.proxy.async.shared::cta;\nbar.sync 0;\n"
        + DESCRIPTOR
        + "mov.b64 %rd10, {%r16, 0x40004040};\nmov.b32 %r17, 0x08100490;\n"
        + "@!%p0 bra ISSUED;\n"
        + "tcgen05.mma.cta_group::1.kind::f16 [%r30], %rd10, %rd10, %r17, 0;\n"
        + "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r0];\n"
        + when(waits, wait("%r0"))
        + "st.shared.b32 [%r0+1024], 0;\n"
        + "ISSUED:\nbar.warp.sync -1;\n@!%p1 bra JOIN;\n"
        + wait("%r0")
        + "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r20}, [%r30];\ntcgen05.wait::ld.sync.aligned;\n"
        + "st.global.b32 [%rd3], %r20;\nJOIN:\n"
        + TMEM_END
    )


def wgmma(proxy_fence: bool, barrier: bool, fence: bool, commit: bool, waits: bool) -> str:
    registers = ", ".join(f"%f{i}" for i in range(4))
    return (
        "mov.b32 %r15, 0x3F803F80;\n"
        + "".join(f"mov.b32 %f{i}, 0;\n" for i in range(4))
        + FILL
        + when(proxy_fence, "fence.proxy.async.shared::cta;\n")
        + when(barrier, "bar.sync 0;\n")
        + DESCRIPTOR
        + "mov.b64 %rd10, {%r16, 0x40000040};\n"
        + when(fence, "wgmma.fence.sync.aligned;\n")
        + f"wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {{{registers}}}, %rd10, %rd10,"
        + " 1, 1, 1, 0, 0;\n"
        + when(commit, "wgmma.commit_group.sync.aligned;\n")
        + when(waits, "wgmma.wait_group.sync.aligned 0;\n")
        + "@%p1 st.global.b32 [%rd3], %f0;\n"
    )


PEER = "setp.eq.b32 %p5, %r8, 0;\nmapa.shared::cluster.u32 %r18, %r7, 1;\n"
CLUSTER = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n"


def cluster_store(started: bool, release: bool) -> str:
    """CTA 0 writes to CTA 1's shared memory; CTA 1 reads it."""
    arrive = "barrier.cluster.arrive.release" if release else "barrier.cluster.arrive.relaxed"
    return (
        PEER
        + LANE_VALUE
        + when(started, CLUSTER)
        + "@%p5 st.shared::cluster.b32 [%r18+1024], %r11;\n"
        + f"{arrive}.aligned;\nbarrier.cluster.wait.acquire.aligned;\n@%p5 bra END;\n"
        + ANSWER.format(who=1)
        + "END:\n"
    )


def remote_arrive(fence: bool, sync: bool) -> str:
    """CTA 0 arrives at CTA 1's barrier, whose init must have reached it."""
    return (
        PEER
        + LANE_VALUE
        + "@%p0 mbarrier.init.shared.b64 [%r0], 32;\n"
        + when(fence, "@%p0 fence.mbarrier_init.release.cluster;\n")
        + when(
            sync, "barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n"
        )
        + "mapa.shared::cluster.u32 %r19, %r0, 1;\n@!%p5 bra WAITER;\n"
        + "st.shared::cluster.b32 [%r18+1024], %r11;\n"
        + "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r19];\nbra END;\nWAITER:\n"
        + wait("%r0").replace("parity.shared", "parity.acquire.cluster.shared::cta")
        + ANSWER.format(who=1)
        + f"END:\n{CLUSTER}"
    )


SIXTEEN = {"value": lambda _: 16.0}
RULES = {
    "mbarrier": Rule(
        ("arrive", "waits"), mbarrier_handover, lambda arrive, waits: arrive and waits
    ),
    "named barrier": Rule(("arrive", "sync"), named_barrier, lambda arrive, sync: arrive and sync),
    "arrival count": Rule(("right_count",), arrival_count, lambda right_count: right_count),
    "barrier init": Rule(("sync",), barrier_init, lambda sync: sync),
    "proxy fence": Rule(
        ("fence", "barrier"), proxy_fence, lambda fence, barrier: fence and barrier
    ),
    "bulk group": Rule(("commit", "waits"), source_reuse, lambda commit, waits: commit and waits),
    "bulk load": Rule(
        ("waits", "right_bytes"), bulk_load, lambda waits, right_bytes: waits and right_bytes
    ),
    "stage reuse": Rule(
        ("release", "waits"), stage_reuse, lambda release, waits: release and waits
    ),
    "cp.async": Rule(("waits", "barrier"), cp_async, lambda waits, barrier: waits and barrier),
    "tensor memory store": Rule(
        ("wait_st", "barrier"),
        tmem_handover,
        lambda wait_st, barrier: wait_st and barrier,
        threads=160,
    ),
    "tensor memory load": Rule(
        ("wait_ld", "barrier"),
        tmem_reuse,
        lambda wait_ld, barrier: wait_ld and barrier,
        threads=160,
    ),
    "tcgen05.mma": Rule(
        ("fence", "barrier", "commit", "waits"),
        mma,
        lambda fence, barrier, commit, waits: fence and barrier and commit and waits,
        threads=128,
        **SIXTEEN,
    ),
    "tcgen05.mma operand": Rule(
        ("waits",), mma_operand_reuse, lambda waits: waits, threads=128, **SIXTEEN
    ),
    "unwritten operand": Rule(
        ("b_written",), unwritten_operand, lambda b_written: b_written, threads=128, **SIXTEEN
    ),
    "wgmma": Rule(
        ("proxy_fence", "barrier", "fence", "commit", "waits"),
        wgmma,
        lambda **pieces: all(pieces.values()),
        threads=128,
        target="sm_90a",
        **SIXTEEN,
    ),
    "cluster barrier": Rule(
        ("started", "release"),
        cluster_store,
        lambda started, release: started and release,
        threads=32,
        cluster=2,
    ),
    "remote arrive": Rule(
        ("fence", "sync"),
        remote_arrive,
        lambda fence, sync: fence and sync,
        threads=32,
        cluster=2,
    ),
}
PROGRAMS = [
    pytest.param(rule, dict(zip(rule.pieces, bits, strict=True)), id=f"{name}-{bits}")
    for name, rule in RULES.items()
    for bits in itertools.product((False, True), repeat=len(rule.pieces))
]


def execute(rule: Rule, pieces: dict[str, bool], seed: int) -> tuple[list[str], torch.Tensor]:
    header = HEADER.format(target=rule.target, threads=rule.threads)
    module = load_ptx(f"{header}{rule.body(**pieces)}ret;\n}}\n", "rule.ptx")
    out, given = torch.full((32,), -1.0), torch.arange(1.0, 129.0)
    report = machine.run(
        module,
        "kernel",
        target=rule.target,
        grid=(rule.cluster, 1, 1),
        block=(rule.threads, 1, 1),
        cluster=(rule.cluster, 1, 1),
        dynamic_smem_bytes=32768,
        params=[bytes(ctypes.c_uint64(t.data_ptr())) for t in (out, given)],
        memory=[
            (out.data_ptr(), 128, "out", False),
            (given.data_ptr(), 512, "given", True),
        ],
        seed=seed,
        races=True,
        processes=1,
        progress=None,
    )
    hang = [str(report.deadlock)] if report.deadlock else []
    return [*hang, *map(str, (*report.faults, *report.races))], out


@pytest.mark.parametrize(("rule", "pieces"), PROGRAMS)
def test_a_fault_is_reported_if_and_only_if_a_piece_that_matters_is_missing(
    rule: Rule, pieces: dict[str, bool]
) -> None:
    want = torch.tensor([rule.value(lane) for lane in range(32)])
    runs = [execute(rule, pieces, seed) for seed in SEEDS]
    faults = [f for found, _ in runs for f in found]
    if rule.sound(**pieces):
        assert faults == []
        assert all(torch.equal(out, want) for _, out in runs)
    else:
        assert faults
