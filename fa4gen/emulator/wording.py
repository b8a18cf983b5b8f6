"""The machine's fault records in words."""

import ctypes
from collections.abc import Callable, Sequence

from fa4gen.emulator.ptx.module import PtxEntry, Statement
from fa4gen.emulator.report import Deadlock, Fault, Waiter

Memory = tuple[int, int, str, bool]  # address, bytes, name, initialised
GLOBAL = ("two CTAs write one address", "uninitialised global memory", "out of bounds")
NO_STATEMENT = Statement(opcode="", operands=(), guard=None, line=0, text="end of the kernel")


class RawFault(ctypes.Structure):
    """`Fault` of vm/vm.h."""

    _fields_ = (
        *((n, ctypes.c_int32) for n in "kind pc other_pc cta warp lane other_cta other_warp".split()),
        ("address", ctypes.c_uint64),
        *((n, ctypes.c_int64) for n in "abcd"),
    )


# Faults by number, as the enumeration of vm/vm.h (1 is the first).
NAMES = (
    "out of bounds", "misaligned address", "illegal operand", "unknown instruction", "diverged warp",
    "too many arrivals", "transaction bytes out of range", "barrier lapped", "no barrier here", "barrier initialised twice",
    "named barrier count", "named barrier overrun", "race: read before write is ordered", "race: write before read is ordered",
    "race: unordered writes", "missing proxy fence", "uninitialised shared memory", "uninitialised tensor memory",
    "uninitialised global memory", "tensor memory not allocated", "tensor memory lanes", "tensor memory leaked",
    "illegal descriptor", "barrier used before its initialisation is visible",
    "registers in use by wgmma", "missing wgmma.fence", "bulk copy unfinished at exit", "deadlock", "livelock",
    "two CTAs write one address", "trap", "CTA of the cluster does not run", "register count", "bytes of another phase", "barrier word touched",
)  # fmt: skip
STREAMS = ("", "fenced", "initialisation", "tensor memory load", "tensor memory store", "tensor core", "bulk copy", "wgmma", "cp.async")
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
    """A record in words, with the statement that it happened at; `memory` names global addresses."""
    kind = NAMES[raw.kind - 1]
    here, there = _statement(entry, raw.pc), _statement(entry, raw.other_pc)
    word = _WORDS.get(kind, _plain)
    barrier = raw.address & 0xFFFFFF if "barrier" in kind or "arrivals" in kind else None
    phases = {"too many arrivals": raw.c, "barrier lapped": raw.a, "bytes of another phase": raw.b}
    return Fault(
        kind=kind,
        message=word(raw) + _named(kind, raw.address, memory),
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
        text = f"mbarrier {raw.address:#x}, parity {want}, in phase {phase}: {pending} of {expected} arrivals missing"
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
    return "ready" if raw.a == 0 else "tensor memory columns, lanes of its own, or a poll that nothing answers"


def _bits(mask: int) -> str:
    return ", ".join(str(k) for k in range(64) if mask >> k & 1)


def _where(raw: RawFault) -> str:
    if raw.a == 1:
        lane = raw.address >> 16
        return f"tensor memory column {raw.address & 0xFFFF}, lanes {lane} to {lane + 15}"
    return f"shared memory {raw.address & 0xFFFFFF:#x} of CTA {raw.address >> 24} in the cluster"


def _race(raw: RawFault) -> str:
    by = "bytes that a barrier's phase brings" if raw.c == -1 else STREAMS[raw.c] if 0 <= raw.c < 9 else ""
    return f"{_where(raw)}; the other access{f' ({by})' if by else ''} is not ordered before this one"


def _proxy(raw: RawFault) -> str:
    return f"{_where(raw)}: written by ordinary stores, used asynchronously, without fence.proxy.async by the writer"


def _plain(raw: RawFault) -> str:
    return _where(raw) if NAMES[raw.kind - 1].startswith("uninitialised") else f"at {raw.address:#x}"


def _bounds(raw: RawFault) -> str:
    if raw.c:
        return f"{raw.a} bytes at global address {raw.address:#x}, which no given memory holds"
    return f"{raw.a} bytes at shared address {raw.address:#x}; the CTA's window ends at {raw.b:#x}"


_WORDS: dict[str, Callable[[RawFault], str]] = {
    "out of bounds": _bounds,
    "misaligned address": lambda r: f"{r.address:#x} is not a multiple of {r.a}",
    "unknown instruction": lambda _: "this emulator does not know it; nothing is skipped",
    "diverged warp": lambda r: f"all 32 lanes must execute it together; here {r.address:#010x}",
    "too many arrivals": lambda r: f"mbarrier {r.address & 0xFFFFFF:#x}: {r.a} arrivals where {r.b} of {r.d} are missing, phase {r.c}",
    "transaction bytes out of range": lambda r: f"mbarrier {r.address & 0xFFFFFF:#x}: {r.a} bytes pending",
    "barrier lapped": lambda r: f"mbarrier {r.address & 0xFFFFFF:#x} may complete phase {r.a} before warp {r.b} has seen the phase two before it",
    "named barrier count": lambda r: f"named barrier {r.address}: {r.a} threads" + (f", but {r.b} were given by others" if r.b >= 0 else " is no legal count"),
    "named barrier overrun": lambda r: f"named barrier {r.address}: {r.a} threads arrived, {r.b} expected",
    "race: read before write is ordered": _race,
    "race: write before read is ordered": _race,
    "race: unordered writes": _race,
    "missing proxy fence": _proxy,
    "tensor memory not allocated": lambda r: f"column or count {r.address}: {ALLOC.get(r.a, '')}",
    "tensor memory lanes": lambda r: f"address {r.address:#x} given {'by a warp' if r.b else 'by lanes that differ, or a partial warp,'} that may touch lanes {r.a} to {r.a + 31}",
    "tensor memory leaked": lambda r: f"{r.a} columns still allocated when the CTA's last warp ended",
    "illegal descriptor": lambda r: f"{r.address:#x}: {DESCRIPTOR.get(r.a, 'rank or alignment')}",
    "barrier used before its initialisation is visible": lambda r: f"mbarrier {r.address & 0xFFFFFF:#x}" + (": fence.mbarrier_init and a barrier must come between" if r.a else ""),
    "two CTAs write one address": lambda r: f"different values at {r.address:#x}",
    "uninitialised global memory": lambda r: f"read at {r.address:#x}",
    "CTA of the cluster does not run": lambda r: f"shared memory of CTA {r.a} in the cluster, which " + ("may not have started: no cluster barrier was passed" if r.b else "has exited"),
    "register count": lambda r: f"setmaxnreg {r.a} is not a multiple of 8 from 24 to 256",
    "bytes of another phase": lambda r: f"issued in phase {r.b}, landed in phase {r.a}",
    "registers in use by wgmma": lambda _: "touched before wgmma.wait_group",
    "missing wgmma.fence": lambda _: "accumulator or A registers were written since the last wgmma.fence",
    "bulk copy unfinished at exit": lambda _: "the warp ends without cp.async.bulk.wait_group for a copy from shared memory",
}  # fmt: skip
