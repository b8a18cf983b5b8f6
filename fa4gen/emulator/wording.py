"""The machine's fault records in words."""

import ctypes
from collections.abc import Sequence

from fa4gen.emulator.ptx.module import PtxEntry, Statement
from fa4gen.emulator.report import Deadlock, Fault, Waiter

Memory = tuple[int, int, str, bool]  # address, bytes, name, initialised
GLOBAL = ("two CTAs write one address", "uninitialised global memory", "out of bounds")
NO_STATEMENT = Statement(opcode="", operands=(), guard=None, line=0, text="end of the kernel")


class RawFault(ctypes.Structure):
    """`Fault` of vm/program.h."""

    _fields_ = (
        *(
            (n, ctypes.c_int32)
            for n in ["kind", "pc", "other_pc", "cta", "warp", "lane", "other_cta", "other_warp"]
        ),
        ("address", ctypes.c_uint64),
        *((n, ctypes.c_int64) for n in "abcd"),
    )


RACE = "{where}; the other access{who} is not ordered before this one"
# Faults by number, as `enum` in vm/vm.h has them (1 is the first), and what each says of a record.
# `bar` is the offset of an mbarrier; `where` and `who` are places and streams in words.
KINDS: tuple[tuple[str, str], ...] = (
    ("out of bounds", "{bounds}"),
    ("misaligned address", "{address:#x} is not a multiple of {a}"),
    ("illegal operand", "{address:#x}"),
    ("unknown instruction", "this emulator does not know it; nothing is skipped"),
    ("diverged warp", "all 32 lanes must execute it together; here {address:#010x}"),
    (
        "too many arrivals",
        "mbarrier {bar:#x}: {a} arrivals where {b} of {d} are missing, phase {c}",
    ),
    ("transaction bytes out of range", "mbarrier {bar:#x}: {a} bytes pending"),
    (
        "barrier lapped",
        "mbarrier {bar:#x} {lapped}",
    ),
    ("no barrier here", "no mbarrier was initialised at {bar:#x}"),
    ("barrier initialised twice", "mbarrier {bar:#x}"),
    ("named barrier count", "named barrier {address}: {a} threads{others}"),
    ("named barrier overrun", "named barrier {address}: {a} threads arrived, {b} expected"),
    ("race: read before write is ordered", RACE),
    ("race: write before read is ordered", RACE),
    ("race: unordered writes", RACE),
    (
        "missing proxy fence",
        "{where}: written by ordinary stores and used asynchronously,"
        " without fence.proxy.async by the writer",
    ),
    ("uninitialised shared memory", "{where}"),
    ("uninitialised tensor memory", "{where}"),
    ("uninitialised global memory", "read at {address:#x}"),
    ("tensor memory not allocated", "column or count {address}: {allocation}"),
    ("tensor memory lanes", "{address:#x} by {lanes}, which may touch lanes {a} and 31 more"),
    ("tensor memory leaked", "{a} columns still allocated when the CTA's last warp ended"),
    ("illegal descriptor", "{address:#x}: {descriptor}"),
    ("barrier used before its initialisation is visible", "mbarrier {bar:#x}{fence}"),
    ("registers in use by wgmma", "touched before wgmma.wait_group"),
    ("missing wgmma.fence", "accumulator or A registers were written since the last one"),
    (
        "bulk copy unfinished at exit",
        "the warp ends without cp.async.bulk.wait_group for a copy from shared memory",
    ),
    ("deadlock", ""),
    ("livelock", ""),
    ("two CTAs write one address", "different values at {address:#x}"),
    ("trap", ""),
    ("CTA of the cluster does not run", "shared memory of CTA {a} in the cluster, which {gone}"),
    ("register count", "{registers}"),
    ("bytes of another phase", "mbarrier {bar:#x}: issued in phase {b}, landed in phase {a}"),
    ("barrier word touched", "mbarrier {bar:#x}: an ordinary or bulk access of its word"),
    (
        "registers differ in a warpgroup",
        "setmaxnreg gives {a} to this warp and {b} to the first of its warpgroup",
    ),
    (
        "mask outside of the cluster",
        "{address:#x} for a cluster of {a}: CTAs that it has not, or none",
    ),
)
NAMES = tuple(name for name, _ in KINDS)
STREAMS = (
    "",
    "fenced",
    "initialisation",
    "tensor memory load",
    "tensor memory store",
    "tensor core",
    "bulk copy",
    "wgmma",
    "cp.async",
)
DESCRIPTOR = {
    1: "the tensor map is not one that this emulator knows (type, interleave or box)",
    2: "bits 48:46 of the descriptor must be 1",
    3: "the descriptor's layout type is none of none, 32B, 64B, 128B",
    4: "the descriptor's base offset is not 0",
    10: "the instruction descriptor asks for sparsity or saturation",
    11: "the instruction descriptor's operand types do not fit the kind",
    12: "M, N or the accumulator type of the instruction descriptor is illegal",
    13: "the accumulator's lane is not 0",
}
ALLOC = {
    1: "after relinquish_alloc_permit",
    2: "the number of columns is not a power of two from 32 to 512, or the pair disagrees",
    3: "these columns are not allocated: dealloc of what is not held",
    4: "this column is not allocated",
}


def fault_of(entry: PtxEntry, raw: RawFault, memory: Sequence[Memory] = ()) -> Fault:
    """A record in words, with its statement; `memory` names global addresses."""
    kind = NAMES[raw.kind - 1]
    here, there = _statement(entry, raw.pc), _statement(entry, raw.other_pc)
    barrier = raw.address & 0xFFFFFF if "barrier" in kind or "arrivals" in kind else None
    phases = {"too many arrivals": raw.c, "barrier lapped": raw.a, "bytes of another phase": raw.b}
    return Fault(
        kind=kind,
        message=_message(raw) + _named(kind, raw.address, memory),
        kernel=entry.name,
        ptx_line=here.line,
        ptx=here.text,
        source=here.source,
        cta=raw.cta,
        warp=raw.warp,
        lane=raw.lane,
        address=raw.address,
        barrier=barrier,
        phase=phases.get(kind),
        other_line=there.line if raw.other_pc >= 0 else None,
        other_ptx=there.text if raw.other_pc >= 0 else "",
        other_source=there.source if raw.other_pc >= 0 else "",
        other_cta=raw.other_cta if raw.other_cta >= 0 else None,
        other_warp=raw.other_warp if raw.other_warp >= 0 else None,
    )


def deadlock_of(entry: PtxEntry, raws: Sequence[RawFault]) -> Deadlock | None:
    """The deadlock among the records, if there is one."""
    waiters = []
    for raw in raws:
        if NAMES[raw.kind - 1] not in ("deadlock", "livelock"):
            continue
        here = _statement(entry, raw.pc)
        waiters.append(
            Waiter(
                cta=raw.cta, warp=raw.warp, ptx_line=here.line, ptx=here.text, source=here.source,
                waits_for=_waits(raw),
            )
        )  # fmt: skip
    return Deadlock(kernel=entry.name, waiters=tuple(waiters)) if waiters else None


def _named(kind: str, address: int, memory: Sequence[Memory]) -> str:
    if kind not in GLOBAL:
        return ""
    near = [(name, address - at) for at, size, name, _ in memory if at <= address < at + size]
    return "".join(f" = {name} + {offset} bytes" for name, offset in near)


def _statement(entry: PtxEntry, pc: int) -> Statement:
    return entry.statements[pc] if 0 <= pc < len(entry.statements) else NO_STATEMENT


def _waits(raw: RawFault) -> str:
    if NAMES[raw.kind - 1] == "livelock":
        return f"spins: {raw.address} warp instructions without any progress"
    if raw.a == 1:
        phase, want = raw.c >> 1, raw.c & 1
        pending, expected = raw.b >> 32, raw.b & 0xFFFFFFFF
        arrived, before = raw.d >> 32 & 0xFFFFFFFF, raw.d & 0xFFFFFFFF
        text = f"mbarrier {raw.address & 0xFFFFFF:#x}, parity {want}, in phase {phase}:"
        text += f" {pending} of {expected} arrivals missing"
        if raw.other_cta:
            text += f", {raw.other_cta} transaction bytes outstanding"
        missing = before & ~arrived
        if missing:
            text += f"; in the phase before also warps {_bits(missing)} arrived"
        elif arrived:
            text += f"; arrived: warps {_bits(arrived)}"
        return text
    if raw.a == 2:
        return (
            f"named barrier {raw.address}: {raw.b >> 32} of {raw.b & 0xFFFFFFFF} threads arrived"
            f" (warps {_bits(raw.d)})"
        )
    if raw.a == 3:
        return "the cluster barrier"
    return (
        "ready"
        if raw.a == 0
        else "tensor memory columns, lanes of its own, or a poll that nothing answers"
    )


def _bits(mask: int) -> str:
    return ", ".join(str(k) for k in range(64) if mask >> k & 1)


def _where(raw: RawFault) -> str:
    if raw.a == 1:
        lane = raw.address >> 16
        return f"tensor memory column {raw.address & 0xFFFF}, lanes {lane} to {lane + 15}"
    return f"shared memory {raw.address & 0xFFFFFF:#x} of CTA {raw.address >> 24} in the cluster"


def _message(raw: RawFault) -> str:
    stream = STREAMS[raw.c] if 0 <= raw.c < len(STREAMS) else "bytes that a barrier's phase brings"
    text: str = KINDS[raw.kind - 1][1].format(
        address=raw.address,
        bar=raw.address & 0xFFFFFF,
        a=raw.a,
        b=raw.b,
        c=raw.c,
        d=raw.d,
        where=_where(raw),
        who=f" ({stream})" if stream else "",
        bounds=_bounds(raw),
        others=f", but {raw.b} were given by others" if raw.b >= 0 else " is no legal count",
        allocation=ALLOC.get(raw.a, ""),
        lanes="a warp" if raw.b else "lanes that differ, or by a partial warp",
        descriptor=DESCRIPTOR.get(raw.a, "rank or alignment"),
        fence=": fence.mbarrier_init and a barrier must come between" if raw.a else "",
        lapped=_lapped(raw),
        registers=_registers(raw),
        gone="may not have started: no cluster barrier was passed" if raw.b else "has exited",
    )
    return text


def _lapped(raw: RawFault) -> str:
    if raw.c == 2:
        return f"is in a later phase: a wait for phase {raw.b} passes on phase {raw.a}"
    return f"may complete phase {raw.a} before warp {raw.b} saw the phase two before it"


def _registers(raw: RawFault) -> str:
    if raw.c == 2:
        return f"after all setmaxnreg the CTA's warps want {raw.a} registers; an SM has 65536"
    return f"setmaxnreg {raw.a} is not a multiple of 8 from 24 to 256"


def _bounds(raw: RawFault) -> str:
    if raw.c:
        return f"{raw.a} bytes at global address {raw.address:#x}, which no given memory holds"
    return f"{raw.a} bytes at shared address {raw.address:#x}; the CTA's window ends at {raw.b:#x}"
