"""Arithmetic, comparisons, moves and conversions."""

from fa4gen.emulator.decode.encoder import SHARED_START, Encoder, Ins, NotUnderstood
from fa4gen.emulator.ptx.module import (
    Immediate,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Statement,
    Symbol,
    Vector,
)

ROUNDING = {"rn": 0, "rz": 1, "rm": 2, "rp": 3, "rna": 0}
FTZ, SAT, NAN, ABS, WHOLE, RELU = 4, 8, 16, 32, 128, 256
NEGATED = 0x20000  # of setp's third operand
COMPARE = {"eq": 0, "ne": 1, "lt": 2, "le": 3, "gt": 4, "ge": 5, "lo": 2, "ls": 3, "hi": 4, "hs": 5}
COMPARE |= {"equ": 6, "neu": 7, "ltu": 8, "leu": 9, "gtu": 10, "geu": 11, "num": 12, "nan": 13}
TYPES = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
WRAPPING = {"add", "sub", "and", "or", "xor", "not"}
SIGNED = {"div", "rem", "min", "max"}


def width_of(kind: str) -> int:
    """Bits of a PTX type name; packed types by their whole."""
    if kind == "pred":
        return 1
    if kind.endswith("x2"):
        return 64 if kind == "f32x2" else 32
    return int("".join(c for c in kind if c.isdigit()))


def slot_width(kind: str) -> int:
    """Bits of the slot that holds the type."""
    return 64 if width_of(kind) == 64 else 1 if kind == "pred" else 32


def modifiers(parts: list[str]) -> int:
    """Rounding, flush, saturation and kin as bits."""
    mods = 0
    for p in parts:
        mods |= ROUNDING.get(p, 0)
        mods |= {"ftz": FTZ, "sat": SAT, "NaN": NAN, "abs": ABS, "relu": RELU}.get(p, 0)
    return mods


def simple(e: Encoder, op: str, s: Statement, kind: str, *, mods: int = 0, mods2: int = 0) -> Ins:
    """`d, a[, b[, c[, e]]]`, all sources of one width."""
    ins = Ins(op=op, mods=mods, mods2=mods2)
    ins.o[0], ins.flags = e.dest(s.operands[0])
    for k, operand in enumerate(s.operands[1:]):
        ins.o[1 + k] = e.read(operand, slot_width(kind))
    return ins


def known(s: Statement, allowed: str) -> None:
    """Refuses a statement with a modifier that is not among the allowed ones."""
    if set(s.parts[1:-1]) - set(allowed.split()):
        raise NotUnderstood


def arithmetic(e: Encoder, s: Statement) -> Ins:
    """add sub mul mad fma div rem min max neg abs and or xor not shl shr."""
    parts = s.parts
    name, kind = parts[0], parts[-1]
    if parts[-2:-1] == ["f32"] and kind in ("bf16", "f16"):
        known(s, "rn f32")
        return simple(e, f"{name.upper()}_F32_MIXED", s, "f32", mods2=int(kind == "bf16"))
    if kind == "pred":
        return simple(e, f"{name.upper()}_PRED", s, kind)
    if kind in HALVES:
        return _half(e, s, name, kind)
    if kind[0] == "f":
        return _float(e, s, name, kind)
    if name in ("min", "max") and parts[1:] == ["relu", "s32"]:
        return simple(e, f"{name.upper()}RELU_S32", s, kind)
    known(s, "lo hi wide")
    if name in ("mul", "mad"):
        return _multiply(e, s, name, kind)
    return _integer(e, s, name, kind)


def _integer(e: Encoder, s: Statement, name: str, kind: str) -> Ins:
    bits = width_of(kind)
    sign = "S" if kind[0] == "s" else "U"
    if name in ("shl", "shr"):
        ins = Ins(op=f"SHL_B{bits}" if name == "shl" else f"SHR_{sign}{bits}")
        ins.o[0], ins.flags = e.dest(s.operands[0])
        ins.o[1], ins.o[2] = e.read(s.operands[1], slot_width(kind)), e.read(s.operands[2])
        return ins
    if name in ("neg", "abs"):
        return simple(e, f"{name.upper()}_S{bits}", s, kind)
    if name in SIGNED:
        return simple(e, f"{name.upper()}_{sign}{bits}", s, kind)
    if name in WRAPPING:
        return simple(e, f"{name.upper()}_B{bits}", s, kind)
    raise NotUnderstood


def _multiply(e: Encoder, s: Statement, name: str, kind: str) -> Ins:
    up, bits = name.upper(), width_of(kind)
    if "wide" in s.parts:
        ins = Ins(op=f"{up}WIDE_{kind.upper()}")
        ins.o[0], ins.flags = e.dest(s.operands[0])
        ins.o[1], ins.o[2] = e.read(s.operands[1]), e.read(s.operands[2])
        if name == "mad":
            ins.o[3] = e.read(s.operands[3], 64 if bits == 32 else 32)
        return ins
    return simple(e, f"{up}HI_{kind.upper()}" if "hi" in s.parts else f"{up}_B{bits}", s, kind)


def _half(e: Encoder, s: Statement, name: str, kind: str) -> Ins:
    order = ("add", "sub", "mul", "fma", "min", "max", "neg", "abs", "ex2", "tanh")
    if name not in order:
        raise NotUnderstood
    parts = s.parts
    known(s, "rn ftz NaN relu sat approx")
    how = ("bf" in kind) | 2 * kind.endswith("x2") | 4 * ("ftz" in parts) | 8 * ("NaN" in parts)
    how |= 16 * ("relu" in parts) | 32 * ("sat" in parts)
    return simple(e, "ARITH_HALF", s, kind, mods=order.index(name), mods2=how)


def _float(e: Encoder, s: Statement, name: str, kind: str) -> Ins:
    known(s, "rn rz rm rp ftz sat NaN abs full approx")
    mods = modifiers(s.parts[1:])
    if name == "mad":
        name = "fma"
    if kind == "f64" and mods & 3:
        raise NotUnderstood
    if kind == "f64":
        return simple(e, f"{name.upper()}_F64", s, kind)
    suffix = "F32X2" if kind == "f32x2" else "F32"
    if name in ("neg", "abs"):
        if mods & FTZ:
            raise NotUnderstood
        return simple(e, f"{name.upper()}_F32", s, kind)
    three = name in ("min", "max") and len(s.operands) == 4
    return simple(e, f"{name.upper()}_{suffix}", s, kind, mods=mods, mods2=int(three))


def approximation(e: Encoder, s: Statement) -> Ins:
    """ex2 lg2 rcp rsqrt sqrt sin cos tanh."""
    parts = s.parts
    kind = parts[-1]
    if kind in HALVES:
        return _half(e, s, parts[0], kind)
    known(s, "rn approx ftz full")
    if kind == "f64":
        return simple(e, f"{parts[0].upper()}_F64", s, kind)
    return simple(e, f"{parts[0].upper()}_F32", s, kind, mods=modifiers(parts[1:]))


def bits(e: Encoder, s: Statement) -> Ins:
    """popc clz brev bfind bfe bfi prmt shf dp2a dp4a copysign testp."""
    parts = s.parts
    name, kind = parts[0], parts[-1]
    up = name.upper()
    mods = 0
    op = f"{up}_{kind.upper()}"
    if name == "bfind":
        mods = int("shiftamt" in parts)
    elif name == "prmt":
        modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
        op, mods = up, 1 + modes.index(parts[2]) if len(parts) > 2 else 0
    elif name == "shf":
        op, mods = f"SHF_{parts[1].upper()}", int("clamp" in parts)
    elif name in ("dp2a", "dp4a"):
        op, mods = up, (parts[-2][0] == "s") | 2 * (parts[-1][0] == "s") | 4 * ("hi" in parts)
    elif name == "testp":
        order = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
        mods = order.index(parts[1])
    return simple(e, op, s, "b32" if name == "prmt" else kind, mods=mods)


def fields(e: Encoder, s: Statement) -> Ins:
    """bfe and bfi: positions and lengths are 32 bits wide whatever the type."""
    kind = s.parts[-1]
    ins = Ins(op=f"{s.parts[0].upper()}_{kind.upper()}")
    ins.o[0], ins.flags = e.dest(s.operands[0])
    values = len(s.operands) - 3
    for k, operand in enumerate(s.operands[1:]):
        ins.o[1 + k] = e.read(operand, slot_width(kind) if k < values else 32)
    return ins


def lop3(e: Encoder, s: Statement) -> Ins:
    """lop3.b32 with its immediate table."""
    table = s.operands[4]
    if not isinstance(table, Immediate) or s.opcode != "lop3.b32":
        raise NotUnderstood
    ins = Ins(op="LOP3", imm=table.value)
    ins.o[0], ins.flags = e.dest(s.operands[0])
    ins.o[1:4] = [e.read(o) for o in s.operands[1:4]]
    return ins


def move(e: Encoder, s: Statement) -> Ins:
    """mov, with vectors on either side, and addresses of symbols."""
    kind = s.parts[-1]
    to, source = s.operands
    width = width_of(kind)
    if kind == "b128":
        return _move_128(e, to, source)
    if isinstance(to, Vector):
        op = {(64, 2): "UNPACK_2X32", (32, 2): "UNPACK_2X16", (64, 4): "UNPACK_4X16"}
        ins = Ins(op=op[width, len(to.items)])
        for k, item in enumerate(to.items):
            ins.o[k] = e.write(item)
        ins.o[4] = e.read(source, 64 if width == 64 else 32)
        return ins
    if isinstance(source, Vector):
        op = {(64, 2): "PACK_2X32", (32, 2): "PACK_2X16", (64, 4): "PACK_4X16"}
        ins = Ins(op=op[width, len(source.items)])
        ins.o[0], ins.flags = e.dest(to)
        for k, item in enumerate(source.items):
            ins.o[1 + k] = e.read(item, 32)
        return ins
    if isinstance(source, Special) and source.name.startswith(("%clock", "%globaltimer")):
        ins = Ins(op="CLOCK")
        ins.o[0], ins.flags = e.dest(to)
        ins.o[1] = ins.o[2] = e.constant(0, 64)
        return ins
    if isinstance(source, Symbol) and source.name in e.shared_at:
        return _shared_address(e, to, source, width)
    if width == 1:
        return simple(e, "MOV_PRED", s, "pred")
    if isinstance(source, Special) and width == 64:
        ins = simple(e, "CVT", s, "u32")
        ins.mods2 = TYPES.index("u32") | TYPES.index("u64") << 8
        return ins
    return simple(e, "MOV_B64" if width == 64 else "MOV_B32", s, kind)


def _move_128(e: Encoder, to: Operand, source: Operand) -> Ins:
    if isinstance(to, Vector):
        ins = Ins(op="UNPACK_2X64")
        ins.o[0], ins.o[1] = (e.write(x) for x in to.items)
        ins.o[4] = e.read(source, 64)
        return ins
    if not isinstance(source, Vector):
        raise NotUnderstood
    ins = Ins(op="PACK_2X64")
    ins.o[0] = e.write(to)
    ins.o[1], ins.o[2] = (e.read(x, 64) for x in source.items)
    return ins


def _shared_address(e: Encoder, to: Operand, source: Symbol, width: int) -> Ins:
    start = e.special(SHARED_START)
    ins = Ins(op="ADD_B32")
    ins.o[0], ins.flags = e.dest(to)
    ins.o[1], ins.o[2] = start, e.constant(e.shared_at[source.name], 32)
    if width == 64:
        ins.op = "MADWIDE_U32"
        ins.o[2], ins.o[3] = e.constant(1, 32), e.constant(e.shared_at[source.name], 64)
    return ins


def select(e: Encoder, s: Statement) -> Ins:
    """selp; slct."""
    kind = s.parts[-1]
    if s.parts[0] != "selp":
        raise NotUnderstood
    wide = width_of(kind) == 64
    ins = simple(e, "SELP_B64" if wide else "SELP_B32", s, kind)
    ins.o[3] = e.read(s.operands[3], 1)
    return ins


def compare(e: Encoder, s: Statement) -> Ins:
    """setp and set."""
    parts = s.parts
    kind = parts[-1]
    how = COMPARE[parts[1]]
    if parts[0] == "set":
        ins = simple(e, "SET_B32", s, kind)
        ins.mods, ins.mods2 = how, (kind == "f32") | 2 * (parts[-2] == "f32")
        ins.imm = 3 if kind[0] == "s" else 2
        return ins
    boolean = next((n + 1 for n, b in enumerate(("and", "or", "xor")) if b in parts[2:-1]), 0)
    wide = slot_width(kind)
    ins = Ins(op="SETP_I")
    if kind in ("f32", "f64", "f16", "bf16"):
        ins.op = f"SETP_{kind.upper()}"
    else:
        ins.imm = {16: 0, 32: 2, 64: 4}[width_of(kind)] + (kind[0] == "s")
    ins.mods = how | boolean << 8 | ("ftz" in parts) << 16
    first = s.operands[0]
    pair = (first.first, first.second) if isinstance(first, Pair) else (first, Sink())
    ins.o[0], ins.o[3] = e.write(pair[0]), e.write(pair[1])
    ins.o[1], ins.o[2] = e.read(s.operands[1], wide), e.read(s.operands[2], wide)
    if boolean:
        condition = s.operands[3]
        if isinstance(condition, Negated):
            condition, ins.mods = condition.register, ins.mods | NEGATED
        ins.o[4] = e.read(condition, 1)
    return ins


def convert(e: Encoder, s: Statement) -> Ins:
    """cvt between all scalar types, and the packing ones."""
    parts = s.parts
    to, source = parts[-2], parts[-1]
    mods = modifiers(parts[1:-2]) | (FTZ if "ftz" in parts else 0)
    packs = {"f16x2": 0, "bf16x2": 1, "e4m3x2": 2, "e5m2x2": 3}
    if to in packs and source == "f32":
        op = "CVT_BF16X2_F32" if to == "bf16x2" and mods == 0 else "CVT_PACK"
        return simple(e, op, s, "f32", mods=mods, mods2=packs[to])
    if source in ("e4m3x2", "e5m2x2") and to == "f16x2":
        return simple(e, "CVT_UNPACK", s, "b32", mods=mods, mods2=packs[source])
    if to not in TYPES or source not in TYPES:
        raise NotUnderstood
    for p in parts[1:-2]:
        if p in ("rni", "rzi", "rmi", "rpi"):
            mods |= ROUNDING[p[:2]] | WHOLE
    if source[0] == "f" and to[0] in "us":
        mods &= ~WHOLE
    narrow = s.operands[0]
    register_bits = 32 if isinstance(narrow, Register) and narrow.kind == "b32" else 16
    ins = simple(e, "CVT", s, source, mods=mods)
    ins.mods2 = TYPES.index(source) | TYPES.index(to) << 8
    ins.imm = register_bits
    return ins
