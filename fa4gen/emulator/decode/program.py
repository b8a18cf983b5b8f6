"""Decodes a whole entry into the arrays that the machine reads."""

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fa4gen.emulator.decode import alu, memory, sync, tensor
from fa4gen.emulator.decode.encoder import Encoder, Ins, NotUnderstood
from fa4gen.emulator.ptx.module import (
    Address,
    Negated,
    Operand,
    Pair,
    PtxEntry,
    Register,
    Statement,
    Vector,
)

VM = Path(__file__).parent.parent / "vm"
Decoder = Callable[[Encoder, Statement], Ins]

FAMILIES: dict[str, Decoder] = {
    "add sub mul mad fma div rem min max neg abs and or xor not shl shr": alu.arithmetic,
    "ex2 lg2 rcp rsqrt sqrt sin cos tanh": alu.approximation,
    "popc clz brev bfind prmt shf dp2a dp4a copysign testp": alu.bits,
    "bfe bfi": alu.fields,
    "lop3": alu.lop3,
    "mov": alu.move,
    "selp": alu.select,
    "setp set": alu.compare,
    "cvt": alu.convert,
    "ld st ldu": memory.load_store,
    "atom red": memory.atomic,
    "cvta mapa isspacep": memory.converted_address,
    "cp": memory.copy,
    "ldmatrix stmatrix": memory.matrix,
    "bra ret exit trap": sync.control,
    "shfl": sync.shuffle,
    "vote match redux elect activemask": sync.vote,
    "mbarrier": sync.mbarrier,
    "bar barrier": sync.barrier,
    "fence membar griddepcontrol setmaxnreg nanosleep": sync.fence,
    "prefetch prefetchu applypriority discard pmevent": sync.hint,
    "createpolicy": sync.policy,
    "clusterlaunchcontrol": sync.launch_control,
    "tcgen05": tensor.tcgen05,
    "wgmma": tensor.wgmma,
}
DECODERS = {name: decoder for names, decoder in FAMILIES.items() for name in names.split()}
STORES_FIRST = ("st", "red", "stmatrix")  # first operand is an address, not a destination


def opcode_numbers() -> dict[str, int]:
    """The machine's own numbering, from the header that its C code is compiled with."""
    text = (VM / "opcodes.h").read_text().split("enum {")[0]
    return {
        name: n
        for n, name in enumerate(re.findall(r"OP\((\w+)\)", text.replace("OPCODES(OP)", "")))
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """The arrays of `Program` in vm/program.h; the statements in `unknown` stop the run."""

    instructions: bytes
    ext: bytes
    constants: bytes
    uses: bytes
    use_ext: bytes
    specials: bytes
    count: int
    reg_bytes: int
    param_bytes: int
    smem_bytes: int
    uses_wgmma: bool
    unknown: tuple[int, ...]


def decode(entry: PtxEntry, dynamic_smem_bytes: int) -> Decoded:
    """Decodes every statement. What is not understood becomes an instruction that stops the run."""
    e = Encoder(entry, dynamic_smem_bytes, opcode_numbers())
    e.read_somewhere = _read_registers(entry)
    packed, ext = bytearray(), list[int]()
    uses, use_ext, unknown = list[int](), list[int](), list[int]()
    for number, s in enumerate(entry.statements):
        try:
            ins = DECODERS[s.parts[0]](e, s)
            if ins.op not in e.opcodes:
                raise NotUnderstood
        except (NotUnderstood, KeyError, IndexError, ValueError, StopIteration):
            ins = Ins(op="UNKNOWN")
            unknown.append(number)
        packed += e.pack(ins, s, ext)
        for slots in _uses(e, s):
            uses += [len(use_ext), len(slots)]
            use_ext += sorted(slots)
    end = Statement(opcode="ret", operands=(), guard=None, line=0, text="ret")
    packed += e.pack(Ins(op="RET"), end, ext)
    uses += [0, 0, 0, 0]
    return Decoded(
        instructions=bytes(packed),
        ext=_ints(ext or [0]),
        constants=bytes(e.constants) + bytes(64),
        uses=_ints(uses),
        use_ext=_ints(use_ext or [0]),
        specials=_ints([n for pair in e.specials.items() for n in pair]),
        count=len(entry.statements) + 1,
        reg_bytes=e.reg_bytes + 256,
        param_bytes=entry.param_bytes,
        smem_bytes=e.static_bytes + dynamic_smem_bytes,
        uses_wgmma=any(s.opcode.startswith("wgmma") for s in entry.statements),
        unknown=tuple(unknown),
    )


def _ints(values: list[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def _read_registers(entry: PtxEntry) -> set[int]:
    found: set[int] = set()
    for s in entry.statements:
        sources, _ = _split(s)
        found |= {r.index for r in _registers(sources)}
    return found


def _registers(operands: Iterable[Operand]) -> Iterator[Register]:
    for o in operands:
        if isinstance(o, Register):
            yield o
        elif isinstance(o, Negated):
            yield o.register
        elif isinstance(o, Vector):
            yield from _registers(o.items)
        elif isinstance(o, Pair):
            yield from _registers((o.first, o.second))
        elif isinstance(o, Address):
            yield from _registers((o.base, *o.coordinates))


def _uses(e: Encoder, s: Statement) -> tuple[set[int], set[int]]:
    """128-byte slots read and written."""
    sources, destinations = _split(s)
    return e.slots(_registers(sources)), e.slots(_registers(destinations))


def _split(s: Statement) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """Operands read, and operands written; an accumulator in registers is both."""
    none: tuple[Operand, ...] = ()
    stores = s.parts[0] in STORES_FIRST or s.parts[:2] == ["tcgen05", "st"]
    if stores or not s.operands or isinstance(s.operands[0], Address):
        return s.operands, none
    if s.opcode.startswith("wgmma.mma"):
        return s.operands, s.operands[:1]
    if s.parts[0] in ("bar", "barrier", "bra") or s.parts[:2] == ["tcgen05", "dealloc"]:
        return s.operands, none
    return s.operands[1:], s.operands[:1]
