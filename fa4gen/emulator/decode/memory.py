"""Loads, stores, atomics, address conversion, and copies of every kind."""

from fa4gen.emulator.decode.alu import slot_width, width_of
from fa4gen.emulator.decode.encoder import SHARED_BASE, Encoder, Ins, NotUnderstood
from fa4gen.emulator.ptx.module import (
    Address,
    Immediate,
    Operand,
    Register,
    Statement,
    Symbol,
    Vector,
)

SPACES = {"global": 0, "shared": 1, "shared::cta": 1, "param": 3, "shared::cluster": 4, "const": 0}
WIDE_ADDRESS = 0x4000
ATOMS = ("add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec")
ATOM_TYPES = ("u32", "s32", "u64", "s64", "f32", "f64", "f16x2", "bf16x2")
GROUP2, MULTICAST, OWN_CTA, REDUCE = 1, 2, 4, 8


def _space(parts: list[str]) -> int:
    return next((SPACES[p] for p in parts if p in SPACES), 2)


def items(operand: Operand) -> tuple[Operand, ...]:
    """The elements of a vector, or the operand itself."""
    return operand.items if isinstance(operand, Vector) else (operand,)


def address(e: Encoder, ins: Ins, operand: Operand, slot: int = 1) -> None:
    """Puts `[base + offset]` into o[slot] and imm; a wide base sets its flag."""
    if not isinstance(operand, Address):
        raise NotUnderstood
    base = operand.base
    ins.imm = operand.offset
    if isinstance(base, Register):
        ins.o[slot] = e.read(base)
        ins.mods |= WIDE_ADDRESS if base.kind == "b64" else 0
    elif isinstance(base, Symbol) and base.name in e.params:
        ins.imm += e.params[base.name]
    elif isinstance(base, Symbol) and base.name in e.shared_at:
        ins.o[slot] = e.constant(SHARED_BASE + e.shared_at[base.name] + operand.offset, 32)
        ins.imm = 0
    elif isinstance(base, Immediate):
        ins.o[slot] = e.constant(base.value, 32)
    else:
        raise NotUnderstood


def offset_register(e: Encoder, operand: Operand, width: int = 32) -> tuple[int, int]:
    """`[base + offset]` as a slot and an offset, for instructions with several addresses."""
    if not isinstance(operand, Address) or operand.coordinates:
        raise NotUnderstood
    base = operand.base
    if isinstance(base, Symbol) and base.name in e.shared_at:
        return e.constant(SHARED_BASE + e.shared_at[base.name], 32), operand.offset
    return e.read(base, width), operand.offset


def load_store(e: Encoder, s: Statement) -> Ins:
    """ld and st, with vectors and all spaces."""
    parts = s.parts
    kind = parts[-1]
    load = parts[0] == "ld"
    if parts[1:2] == ["async"] or "local" in parts:
        raise NotUnderstood
    data, at = s.operands if load else s.operands[::-1]
    if kind == "b128":
        return _load_store_128(e, parts, data, at)
    width = width_of(kind)
    ins = Ins(op="LD" if load else "ST")
    address(e, ins, at)
    ins.mods |= _space(parts) | width // 8 << 4
    elements = items(data)
    if load:
        wide = any(isinstance(x, Register) and x.kind == "b64" for x in elements)
        ins.mods |= (kind[0] == "s") << 12 | wide << 13
        ins.ext = [e.write(x) for x in elements]
    else:
        ins.ext = [e.read(x, 64 if width == 64 else 32) for x in elements]
    return ins


def _load_store_128(e: Encoder, parts: list[str], data: Operand, at: Operand) -> Ins:
    ins = Ins(op=parts[0].upper())
    address(e, ins, at)
    low = e.write(data)
    ins.ext = [low, low + 256]  # the halves of a 128-bit slot
    ins.mods |= _space(parts) | 8 << 4 | 1 << 13
    return ins


def atomic(e: Encoder, s: Statement) -> Ins:
    """atom and red."""
    parts = s.parts
    kind = parts[-1]
    name = next((p for p in parts if p in ATOMS), "")
    kind = {"b32": "u32", "b64": "u64"}.get(kind, kind)
    if kind not in ATOM_TYPES or not name or "async" in parts:
        raise NotUnderstood
    ins = Ins(op="ATOM", mods2=ATOMS.index(name) | ATOM_TYPES.index(kind) << 8)
    rest = list(s.operands)
    if parts[0] == "atom":
        to = rest.pop(0)
        if isinstance(to, Vector):
            raise NotUnderstood
        ins.o[0] = e.write(to)
    address(e, ins, rest.pop(0))
    width = slot_width(kind)
    ins.mods |= _space(parts) | width // 8 << 4
    ins.ext = [e.read(x, width) for x in items(rest[0])]
    if name == "cas":
        ins.o[3] = e.read(rest[1], width)
    return ins


def converted_address(e: Encoder, s: Statement) -> Ins:
    """cvta, mapa, isspacep."""
    parts = s.parts
    ins = Ins(op="MOV_B64")
    ins.o[0], ins.flags = e.dest(s.operands[0])
    source = s.operands[1]
    wide = isinstance(source, Register) and source.kind == "b64"
    if parts[0] == "isspacep":
        ins.op = "ISSPACEP"
        ins.o[1] = e.read(source, 64)
        ins.mods = {"global": 0, "shared": 1, "shared::cta": 1, "shared::cluster": 1}.get(
            parts[1], 2
        )
        return ins
    if parts[0] == "mapa":
        ins.op, ins.mods = "MAPA", int(wide)
        ins.o[1], ins.o[2] = e.read(source), e.read(s.operands[2])
        return ins
    to = parts[1] == "to"
    space = parts[2] if to else parts[1]
    if space.startswith("shared"):
        if isinstance(source, Symbol):
            raise NotUnderstood
        ins.op = "CVTA_TO_SHARED" if to else "CVTA_SHARED"
        ins.mods = int(wide)
    elif space == "param":
        ins.op = "CVTA_TO_PARAM" if to else "CVTA_PARAM"
    elif space not in ("global", "const"):
        raise NotUnderstood
    ins.o[1] = e.read(source, 64)
    return ins


def tensor_copy(e: Encoder, s: Statement) -> Ins:
    """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor in tile mode."""
    parts = s.parts
    if {"im2col", "tile::gather4", "tile::scatter4", "im2col_no_offs"} & set(
        parts
    ) or "prefetch" in parts:
        if "prefetch" in parts:
            return Ins(op="HINT")
        raise NotUnderstood
    spaces = [p for p in parts if p.split("::")[0] in ("shared", "global")]
    load = spaces[0].startswith("shared")
    ins = Ins(op="TMA_LOAD" if load else "TMA_STORE")
    smem, where = (s.operands[0], s.operands[1]) if load else (s.operands[1], s.operands[0])
    ins.o[1], ins.imm = offset_register(e, smem)
    if not isinstance(where, Address):
        raise NotUnderstood
    ins.o[2], ins.mods2 = e.read(where.base, 64), where.offset
    ins.ext = [e.read(c) for c in where.coordinates]
    ins.mods = GROUP2 if "cta_group::2" in parts else 0
    if load:
        ins.o[3], ins.target = offset_register(e, s.operands[2])
        ins.mods |= OWN_CTA if spaces[0] == "shared::cta" else 0
        if "multicast::cluster" in parts:
            ins.mods |= MULTICAST
            ins.o[4] = e.read(s.operands[3])
    elif parts[1] == "reduce":
        ins.mods |= REDUCE | ATOMS.index(next(p for p in parts if p in ATOMS)) << 8
    return ins


def bulk_copy(e: Encoder, s: Statement) -> Ins:
    """cp.async.bulk, cp.reduce.async.bulk and their groups."""
    parts = s.parts
    if "commit_group" in parts:
        return Ins(op="BULK_COMMIT")
    if "wait_group" in parts:
        return Ins(op="BULK_WAIT", imm=_immediate(s.operands[0]), mods=int("read" in parts))
    if "prefetch" in parts:
        return Ins(op="HINT")
    if "tensor" in parts:
        return tensor_copy(e, s)
    if "cp_mask" in parts:
        raise NotUnderstood
    spaces = [p for p in parts if p.split("::")[0] in ("shared", "global")]
    ops = {"global": "BULK_S2G", "shared": "BULK_G2S" if spaces[1] == "global" else "BULK_S2S"}
    ins = Ins(op=ops[spaces[0].split("::")[0]])
    to_global, from_global = spaces[0] == "global", spaces[1] == "global"
    ins.o[1], ins.imm = offset_register(e, s.operands[0], 64 if to_global else 32)
    ins.o[2], ins.target = offset_register(e, s.operands[1], 64 if from_global else 32)
    ins.o[3] = e.read(s.operands[2])
    if not to_global:
        ins.o[4], ins.mods2 = offset_register(e, s.operands[3])
        if "multicast::cluster" in parts:
            ins.mods |= MULTICAST
            ins.o[5] = e.read(s.operands[4])
    if parts[1] == "reduce":
        if not to_global:
            raise NotUnderstood
        ins.mods |= _reduction(parts)
    return ins


def _reduction(parts: list[str]) -> int:
    kind = parts[-1]
    types = {"f16": 6, "bf16": 7, "b32": 0, "b64": 2}
    types |= {t: n for n, t in enumerate(ATOM_TYPES)}
    if kind not in types:
        raise NotUnderstood
    name = next(p for p in parts if p in ATOMS)
    return REDUCE | ATOMS.index(name) << 8 | types[kind] << 16 | width_of(kind) // 8 << 20


def _immediate(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise NotUnderstood
    return operand.value


def small_copy(e: Encoder, s: Statement) -> Ins:
    """cp.async (4, 8 or 16 bytes a thread), its groups and its mbarrier arrival."""
    parts = s.parts
    if "commit_group" in parts:
        return Ins(op="CP_ASYNC_COMMIT")
    if "wait_group" in parts:
        return Ins(op="CP_ASYNC_WAIT", imm=_immediate(s.operands[0]))
    if "wait_all" in parts:
        return Ins(op="CP_ASYNC_WAIT", mods=1)
    if "mbarrier" in parts:
        ins = Ins(op="CP_ASYNC_ARRIVE", mods=int("noinc" in parts))
        ins.o[1], ins.imm = offset_register(e, s.operands[0])
        return ins
    ins = Ins(op="CP_ASYNC", mods=_immediate(s.operands[2]))
    ins.o[1], ins.imm = offset_register(e, s.operands[0])
    ins.o[2], ins.mods2 = offset_register(e, s.operands[1], 64)
    if len(s.operands) > 3:
        ins.o[3] = e.read(s.operands[3])
    if len(s.operands) > 4:
        raise NotUnderstood
    return ins


def copy(e: Encoder, s: Statement) -> Ins:
    """Everything that begins with cp."""
    return bulk_copy(e, s) if "bulk" in s.parts else small_copy(e, s)


def matrix(e: Encoder, s: Statement) -> Ins:
    """ldmatrix and stmatrix of 8x8 16-bit matrices."""
    parts = s.parts
    if "m8n8" not in parts or parts[-1] != "b16":
        raise NotUnderstood
    load = parts[0] == "ldmatrix"
    data, at = s.operands if load else s.operands[::-1]
    ins = Ins(op="LDMATRIX" if load else "STMATRIX", mods=int("trans" in parts))
    address(e, ins, at)
    ins.ext = [e.write(x) if load else e.read(x) for x in items(data)]
    return ins
