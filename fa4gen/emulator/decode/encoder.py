"""Lays one entry out for the machine: register slots, constants, lists, 72-byte instructions."""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field

from fa4gen.emulator.ptx.module import (
    Immediate,
    Operand,
    PtxEntry,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
)

LAYOUT = struct.Struct("<HHi8iiiqIiIi")  # Ins of vm/program.h
NONE = -(2**31)
SHARED_BASE = 0x400  # as in vm/vm.h
SLOT_BYTES = {"pred": 4, "b16": 128, "b32": 128, "b64": 256, "b128": 512}
DEST = {"pred": 3, "b16": 1, "b32": 1, "b64": 2}
COLLECTIVE = 0x8000  # flag: all lanes of the mask in o[7] must be here

# Number of each special register in vm/scheduler.c, `special`.
SPECIALS = {
    **{f"%tid.{d}": n for n, d in enumerate("xyz")},
    **{f"%ntid.{d}": 3 + n for n, d in enumerate("xyz")},
    **{f"%ctaid.{d}": 6 + n for n, d in enumerate("xyz")},
    **{f"%nctaid.{d}": 9 + n for n, d in enumerate("xyz")},
    "%laneid": 12,
    "%warpid": 13,
    "%nwarpid": 14,
    **{f"%clusterid.{d}": 15 + n for n, d in enumerate("xyz")},
    **{f"%nclusterid.{d}": 18 + n for n, d in enumerate("xyz")},
    **{f"%cluster_ctaid.{d}": 21 + n for n, d in enumerate("xyz")},
    **{f"%cluster_nctaid.{d}": 24 + n for n, d in enumerate("xyz")},
    "%cluster_ctarank": 27,
    "%cluster_nctarank": 28,
    "%lanemask_eq": 29,
    "%lanemask_lt": 30,
    "%lanemask_le": 31,
    "%lanemask_gt": 32,
    "%lanemask_ge": 33,
    "%smid": 34,
    "%dynamic_smem_size": 35,
    "%total_smem_size": 35,
    "%nsmid": 36,
}
SHARED_START = 37


class NotUnderstood(Exception):  # noqa: N818 - it is caught and becomes an instruction that stops
    """A statement that this emulator does not know."""


@dataclass(slots=True, kw_only=True)
class Ins:
    """One numeric instruction, field by field as `Ins` of vm/program.h."""

    op: str
    flags: int = 0
    o: list[int] = field(default_factory=lambda: [NONE] * 8)
    ext: list[int] = field(default_factory=list)
    n: int = 0
    imm: int = 0
    mods: int = 0
    mods2: int = 0
    target: int = 0


@dataclass(slots=True)
class Encoder:
    """Slots and constants of one entry."""

    entry: PtxEntry
    dynamic_smem_bytes: int
    opcodes: dict[str, int]
    offsets: list[int] = field(default_factory=list)
    reg_bytes: int = 0
    constants: bytearray = field(default_factory=bytearray)
    constant_at: dict[tuple[int, int], int] = field(default_factory=dict)
    specials: dict[int, int] = field(default_factory=dict)
    shared_at: dict[str, int] = field(default_factory=dict)
    static_bytes: int = 0
    params: dict[str, int] = field(default_factory=dict)
    read_somewhere: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Gives every register its bytes, and every shared variable its offset."""
        at = 0
        for register in sorted(self.entry.registers, key=lambda r: SLOT_BYTES[r.kind] < 128):
            size = SLOT_BYTES[register.kind]
            if not self.offsets:
                self.offsets = [0] * len(self.entry.registers)
            self.offsets[register.index] = at
            at += size
        self.reg_bytes = -(-at // 256) * 256
        self.params = {p.name: p.offset for p in self.entry.params}
        self._place_shared()

    def _place_shared(self) -> None:
        at = 0
        dynamic = [s for s in self.entry.shared if not s.bytes]
        for s in self.entry.shared:
            if s.bytes:
                at = -(-at // s.align) * s.align
                self.shared_at[s.name] = at
                at += s.bytes
        align = max((s.align for s in dynamic), default=1)
        at = -(-at // align) * align if dynamic else at
        for s in dynamic:
            self.shared_at[s.name] = at
        self.static_bytes = at

    # ---- operands -------------------------------------------------------------------------
    def constant(self, value: int, width: int) -> int:
        """A constant of `width` 1 (predicate), 32 or 64 bits, the same in every lane."""
        bits = 32 if width == 1 else width
        value = (0xFFFFFFFF if value & 1 else 0) if width == 1 else value & ((1 << bits) - 1)
        key = (value, width)
        if key not in self.constant_at:
            while len(self.constants) % (8 if width == 64 else 4):
                self.constants += b"\0"
            self.constant_at[key] = ~len(self.constants)
            count = 1 if width == 1 else 32
            self.constants += value.to_bytes(bits // 8, "little") * count
        return self.constant_at[key]

    def special(self, number: int) -> int:
        """The slot of a special register, filled when a warp starts."""
        if number not in self.specials:
            self.specials[number] = self.reg_bytes
            self.reg_bytes += 128
        return self.specials[number]

    def read(self, operand: Operand, width: int = 32) -> int:
        """Where a source of `width` bits (1 for a predicate) is read."""
        if isinstance(operand, Register):
            return self.offsets[operand.index]
        if isinstance(operand, Immediate):
            if operand.width == 64 and width == 32:
                raise NotUnderstood
            return self.constant(operand.value, width)
        if isinstance(operand, Special) and operand.name in SPECIALS:
            return self.special(SPECIALS[operand.name])
        if isinstance(operand, Symbol):
            if operand.name in self.params:
                return self.constant(self.params[operand.name], width)
            raise NotUnderstood
        raise NotUnderstood

    def write(self, operand: Operand) -> int:
        """Where a destination is written; `_` is nowhere."""
        if isinstance(operand, Sink):
            return NONE
        if isinstance(operand, Register):
            return self.offsets[operand.index]
        raise NotUnderstood

    def dest(self, operand: Operand) -> tuple[int, int]:
        """A destination and its DEST_ flag."""
        kind = operand.kind if isinstance(operand, Register) else "b32"
        return self.write(operand), DEST.get(kind, 0)

    def slots(self, registers: Iterable[Register]) -> set[int]:
        """128-byte slots of the general registers among them."""
        found: set[int] = set()
        for r in registers:
            if r.kind != "pred":
                first = self.offsets[r.index] // 128
                found |= set(range(first, first + SLOT_BYTES[r.kind] // 128))
        return found

    def guard(self, statement: Statement) -> int:
        """The guard as the machine reads it."""
        g = statement.guard
        return -1 if g is None else self.offsets[g.register.index] * 2 + g.negated

    def pack(self, ins: Ins, statement: Statement, ext: list[int]) -> bytes:
        """The 72 bytes of an instruction; its operand list goes to `ext`."""
        at = len(ext)
        ext += ins.ext
        return LAYOUT.pack(
            self.opcodes[ins.op],
            ins.flags,
            self.guard(statement),
            *ins.o,
            at,
            ins.n or len(ins.ext),
            ins.imm,
            ins.mods & 0xFFFFFFFF,
            ins.target,
            ins.mods2 & 0xFFFFFFFF,
            statement.line,
        )
