"""Runs a launch: one entry of a PTX module over a grid, in the virtual machine.

Global pointers are addresses of this process. The machine is C (folder `vm`).
"""

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence

from fa4gen.diag import error
from fa4gen.emulator.build import machine_library
from fa4gen.emulator.decode.program import Decoded, decode
from fa4gen.emulator.ptx.module import PtxEntry, PtxModule
from fa4gen.emulator.ptx.parser import load_ptx
from fa4gen.emulator.report import RACES, WARNINGS, Report
from fa4gen.emulator.wording import NAMES, RawFault, deadlock_of, fault_of

__all__ = ["load_ptx", "run"]
Dim3 = tuple[int, int, int]
SMEM_LIMIT_BYTES = (
    232448  # what a block may opt in to on sm_90a and sm_100a (CUDA programming guide)
)
MAX_CLUSTER, MAX_THREADS = 16, 1024  # with the non-portable size; CUDA programming guide
MAX_FAULTS = 256
SPIN_LIMIT = 5_000_000  # warp instructions without a store, arrival or completion by anybody


# What PTX bounds and does not define: ex2.approx (2 ulp), lg2.approx (2^-22), rcp.approx (1 ulp),
# and the order and rounding of wgmma's sums. In the order of PERTURB_* in vm/program.h.
APPROXIMATIONS = ("ex2", "lg2", "rcp", "wgmma")


class _Range(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64), ("bytes", ctypes.c_uint64), ("initialised", ctypes.c_uint32),
        ("pad", ctypes.c_uint32), ("shadow", ctypes.c_void_p),
    )  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (
        *((n, ctypes.c_char_p) for n in ["ins", "ext", "consts", "uses", "use_ext"]),
        ("params", ctypes.c_void_p),
        *(
            (n, ctypes.c_int32)
            for n in ["count", "reg_bytes", "param_bytes", "smem_bytes", "nspecials"]
        ),
        ("specials", ctypes.c_char_p),
        ("uses_wgmma", ctypes.c_int32),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("program", _Program),
        *((n, ctypes.c_uint32 * 3) for n in ["grid", "block", "cluster"]),
        ("seed", ctypes.c_uint64),
        ("perturb", ctypes.c_uint32),
        ("pad", ctypes.c_uint32),
        ("races", ctypes.c_int32),
        ("nranges", ctypes.c_int32),
        ("ranges", ctypes.c_void_p),
        ("spin_limit", ctypes.c_uint64),
        ("faults", ctypes.c_void_p),
        ("max_faults", ctypes.c_int32),
        ("nfaults", ctypes.c_int32),
        ("op_counts", ctypes.c_void_p),
        ("instructions", ctypes.c_uint64),
        ("clusters_done", ctypes.c_uint64),
        ("deadlocked", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("next_cluster", ctypes.c_uint64),
        *((n, ctypes.c_int32) for n in ["active", "spinning"]),
    )


def run(
    module: PtxModule,
    entry: str,
    *,
    target: str,
    grid: Dim3,
    block: Dim3,
    cluster: Dim3 = (1, 1, 1),
    dynamic_smem_bytes: int = 0,
    params: Sequence[bytes] = (),
    memory: Sequence[tuple[int, int, str, bool]] = (),
    seed: int = 0,
    perturb: Collection[str] = (),
    races: bool = True,
    processes: int = 1,
    progress: Callable[[int, int], None] | None = None,
    smem_limit_bytes: int = SMEM_LIMIT_BYTES,
) -> Report:
    """Runs `entry` over the grid and reports.

    Args:
        module: what `load_ptx` gave.
        target: sm_90a or sm_100a; a module of another target is refused.
        grid, block, cluster: CTAs, threads, CTAs of a cluster.
        params: the bytes of each `.param`, in order.
        memory: what global memory the kernel may touch: address, bytes, name, and whether it holds
            values before the launch. None given: every address is allowed.
        seed: chooses the interleaving and when asynchronous operations take effect.
        perturb: names of APPROXIMATIONS whose results the seed displaces, within their bounds.
        races: whether happens-before is checked.
        processes: how many workers run clusters at once, as threads.
        progress: called with CTAs done and CTAs in all.

    Raises:
        Fa4genError: for arguments that no launch could have.
    """
    kernel = _checked(module, entry, target, (grid, block, cluster), params)
    began = time.perf_counter()
    program = _decoded(module, kernel, dynamic_smem_bytes)
    if program.smem_bytes > smem_limit_bytes:
        raise error(
            "FA0925",
            f"{entry[:60]} asks for {program.smem_bytes} bytes of shared memory",
            why=f"a block can have {smem_limit_bytes}",
        )
    launch, kept = _launch(program, kernel, params)
    launch.grid[:], launch.block[:], launch.cluster[:] = grid, block, cluster
    launch.perturb = sum(1 << n for n, name in enumerate(APPROXIMATIONS) if name in perturb)
    launch.seed, launch.races, launch.spin_limit = seed, int(races), SPIN_LIMIT
    ranges = _ranges(memory, races, kept)
    launch.nranges, launch.ranges = len(memory), ctypes.addressof(ranges)
    raws = (RawFault * MAX_FAULTS)()
    counts = (ctypes.c_uint64 * program.count)()
    launch.faults, launch.max_faults = ctypes.addressof(raws), MAX_FAULTS
    launch.op_counts = ctypes.addressof(counts)
    size = _product(cluster)
    _work(launch, max(1, processes), progress, size, _product(grid))
    found = list(raws[: launch.nfaults])
    waits = ("deadlock", "livelock")
    faults = [fault_of(kernel, r, memory) for r in found if NAMES[r.kind - 1] not in waits]
    opcodes: Counter[str] = Counter()
    for statement, count in zip(kernel.statements, counts, strict=False):
        if count:
            opcodes[statement.opcode] += count
    return Report(
        kernels=(entry,),
        races=tuple(f for f in faults if f.kind in RACES),
        faults=tuple(f for f in faults if f.kind not in RACES | WARNINGS),
        warnings=tuple(f for f in faults if f.kind in WARNINGS),
        deadlock=deadlock_of(kernel, found),
        warp_instructions=launch.instructions,
        opcodes=opcodes,
        ctas=launch.clusters_done * size,
        seconds=time.perf_counter() - began,
        races_checked=races,
    )


def _product(dims: Dim3) -> int:
    return dims[0] * dims[1] * dims[2]


def _decoded(module: PtxModule, kernel: PtxEntry, dynamic_smem_bytes: int) -> Decoded:
    found = module.decoded.get((kernel.name, dynamic_smem_bytes))
    if not isinstance(found, Decoded):
        found = decode(kernel, dynamic_smem_bytes)
        module.decoded[kernel.name, dynamic_smem_bytes] = found
    return found


def _checked(
    module: PtxModule,
    entry: str,
    target: str,
    dims: tuple[Dim3, Dim3, Dim3],
    params: Sequence[bytes],
) -> PtxEntry:
    grid, block, cluster = dims
    kernel = module.entries.get(entry)
    if kernel is None:
        raise error(
            "FA0923",
            f"{module.name} has no entry {entry!r}",
            fix=f"one of {', '.join(module.entries)}",
        )
    if module.target != target:
        raise error("FA0924", f"{module.name} is for {module.target}, not for {target}")
    if len(params) != len(kernel.params) or any(
        len(b) != p.bytes for b, p in zip(params, kernel.params, strict=True)
    ):
        raise error(
            "FA0926",
            f"{entry[:60]} takes parameters of {[p.bytes for p in kernel.params]} bytes",
            why=f"given were {[len(b) for b in params]}",
        )
    if _product(cluster) > MAX_CLUSTER or not 0 < _product(block) <= MAX_THREADS:
        raise error(
            "FA0904",
            f"a block of {block} threads in clusters of {cluster} CTAs",
            why=f"a block has up to {MAX_THREADS} threads, a cluster up to {MAX_CLUSTER} CTAs",
        )
    if any(g < 1 or c < 1 or g % c for g, c in zip(grid, cluster, strict=True)):
        raise error("FA0927", f"grid {grid} is not a multiple of the cluster {cluster}")
    return kernel


def _launch(
    program: Decoded, kernel: PtxEntry, params: Sequence[bytes]
) -> tuple[_Launch, list[object]]:
    launch = _Launch()
    p = launch.program
    space = bytearray(max(program.param_bytes, 1) + 64)
    for parameter, given in zip(kernel.params, params, strict=True):
        space[parameter.offset : parameter.offset + parameter.bytes] = given
    buffer = (ctypes.c_char * len(space)).from_buffer(space)
    p.ins, p.ext, p.consts = program.instructions, program.ext, program.constants
    p.uses, p.use_ext, p.specials = program.uses, program.use_ext, program.specials
    p.params = ctypes.addressof(buffer)
    p.count, p.reg_bytes, p.param_bytes = program.count, program.reg_bytes, program.param_bytes
    p.smem_bytes, p.uses_wgmma = program.smem_bytes, int(program.uses_wgmma)
    p.nspecials = len(program.specials) // 8
    return launch, [program, space, buffer]


def _ranges(
    memory: Sequence[tuple[int, int, str, bool]], races: bool, kept: list[object]
) -> ctypes.Array[_Range]:
    ranges = (_Range * max(1, len(memory)))()
    for r, (address, size, _, initialised) in zip(ranges, memory, strict=False):
        r.address, r.bytes, r.initialised = address, size, int(initialised)
        if races:
            shadow = (ctypes.c_uint32 * (size // 4 + 2))()
            kept.append(shadow)
            r.shadow = ctypes.addressof(shadow)
    return ranges


def _work(
    launch: _Launch,
    workers: int,
    progress: Callable[[int, int], None] | None,
    size: int,
    total: int,
) -> None:
    library = machine_library()
    threads = [
        threading.Thread(target=library.run_launch, args=(ctypes.byref(launch),), daemon=True)
        for _ in range(workers)
    ]
    for t in threads:
        t.start()
    try:
        for t in threads:
            while t.is_alive():
                t.join(0.2)
                if progress:
                    progress(min(launch.clusters_done * size, total), total)
    finally:  # an interrupt must not leave workers in memory that the caller frees
        launch.stop = 1
        for t in threads:
            t.join()
