"""The tensor cores: tcgen05.* and wgmma.*"""

import re

from fa4gen.emulator.decode.encoder import COLLECTIVE, NONE, Encoder, Ins, NotUnderstood
from fa4gen.emulator.decode.memory import items, offset_register
from fa4gen.emulator.ptx.module import Address, Immediate, Operand, Register, Statement, Vector

GROUP2, A_TMEM, SCALE_D = 1, 2, 4
DEAD = 0x200
KINDS = {"kind::f16": 0, "kind::tf32": 1, "kind::f8f6f4": 2, "kind::i8": 3}
SHAPES = ("32x32b", "16x64b", "16x128b", "16x256b", "16x32bx2")
FORMATS = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 3, "e5m2": 4, "u8": 5, "s8": 6}
COPIES = {"128x256b": 0, "128x128b": 1, "64x128b": 2, "32x128b": 4}


def tcgen05(e: Encoder, s: Statement) -> Ins:
    """tcgen05.*"""
    what, _, detail = s.parts[1].partition("::")
    group = GROUP2 if "cta_group::2" in s.parts else 0
    if what == "wait":
        return Ins(op="TC_WAIT", mods=int(detail == "st"), flags=COLLECTIVE)
    if what == "fence":
        return Ins(op="TC_FENCE")
    if what == "relinquish_alloc_permit":
        return Ins(op="TC_RELINQUISH", mods=group, flags=COLLECTIVE)
    forms = {
        "alloc": _allocation, "dealloc": _allocation, "ld": _access, "st": _access,
        "commit": _commit, "mma": _mma, "cp": _copy, "shift": _shift,
    }  # fmt: skip
    return forms[what](e, s, group)


def _allocation(e: Encoder, s: Statement, group: int) -> Ins:
    ins = Ins(op=f"TC_{s.parts[1].upper()}", mods=group, flags=COLLECTIVE)
    if s.parts[1] == "alloc":
        ins.o[1], ins.imm = offset_register(e, s.operands[0])
    else:
        ins.o[1] = e.read(s.operands[0])
    ins.o[2] = e.read(s.operands[1])
    return ins


def _commit(e: Encoder, s: Statement, group: int) -> Ins:
    ins = Ins(op="TC_COMMIT", mods=group)
    ins.o[1], ins.imm = offset_register(e, s.operands[0])
    if len(s.operands) > 1:
        ins.o[2] = e.read(s.operands[1])
    return ins


def _shift(e: Encoder, s: Statement, group: int) -> Ins:
    ins = Ins(op="TC_SHIFT", mods=group)
    ins.o[1], ins.imm = offset_register(e, s.operands[0])
    return ins


def _access(e: Encoder, s: Statement, _: int) -> Ins:
    parts = s.parts
    shape = next((p for p in parts if p in SHAPES), None)
    if shape is None or "red" in parts:
        raise NotUnderstood
    load = parts[1] == "ld"
    ins = Ins(op="TC_LD" if load else "TC_ST", flags=COLLECTIVE)
    rest = list(s.operands)
    data = rest.pop(0) if load else rest.pop()
    at = rest.pop(0)
    split = rest[0] if rest else Immediate(0)
    if not isinstance(split, Immediate):
        raise NotUnderstood
    ins.o[1], ins.imm = offset_register(e, at)
    pack = "pack::16b" in parts or "unpack::16b" in parts
    ins.mods = SHAPES.index(shape) << 4 | pack << 8 | split.value << 16
    if not load:
        ins.ext = [e.read(x) for x in items(data)]
        return ins
    # a register that no statement reads cannot be consumed: loading it touches nothing that matters
    dead = [isinstance(x, Register) and x.index not in e.read_somewhere for x in items(data)]
    ins.ext = [NONE if d else e.write(x) for d, x in zip(dead, items(data), strict=True)]
    ins.mods |= DEAD if all(dead) else 0
    return ins


def _mma(e: Encoder, s: Statement, group: int) -> Ins:
    parts = s.parts
    kind = next((KINDS[p] for p in parts if p in KINDS), None)
    if kind is None or {"ws", "sp", "ashift", "block_scale"} & set(parts):
        raise NotUnderstood
    ins = Ins(op="TC_MMA", mods=group | kind << 4)
    d, a, b, idesc, *rest = s.operands
    ins.o[1], ins.imm = offset_register(e, d)
    if isinstance(a, Address):
        ins.mods |= A_TMEM
        ins.o[2], ins.mods2 = offset_register(e, a)
    else:
        ins.o[2] = e.read(a, 64)
    ins.o[3], ins.o[4] = e.read(b, 64), e.read(idesc)
    if isinstance(rest[0], Vector):
        ins.ext = [e.read(x) for x in items(rest.pop(0))]
    ins.o[5] = e.read(rest.pop(0), 1)
    if rest:
        scale = rest[0]
        if not isinstance(scale, Immediate):
            raise NotUnderstood
        ins.mods |= SCALE_D | scale.value << 8
    return ins


def _copy(e: Encoder, s: Statement, group: int) -> Ins:
    parts = s.parts
    shape = next((COPIES[p] for p in parts if p in COPIES), None)
    if shape is None or any(p.startswith(("b8x16", "b6x16", "b4x16")) for p in parts):
        raise NotUnderstood
    ins = Ins(op="TC_CP", mods=group, mods2=shape + ("warpx2::01_23" in parts))
    ins.o[1], ins.imm = offset_register(e, s.operands[0])
    ins.o[2] = e.read(s.operands[1], 64)
    return ins


def wgmma(e: Encoder, s: Statement) -> Ins:
    """wgmma.*"""
    what = s.parts[1]
    if what == "fence":
        return Ins(op="WG_FENCE", flags=COLLECTIVE)
    if what == "commit_group":
        return Ins(op="WG_COMMIT", flags=COLLECTIVE)
    if what == "wait_group":
        return Ins(op="WG_WAIT", imm=_number(s.operands[0]), flags=COLLECTIVE)
    shape = re.search(r"\.m64n(\d+)k\d+\.(f32|f16)\.(\w+)\.(\w+)", s.opcode)
    if what != "mma_async" or shape is None or "sp" in s.parts:
        raise NotUnderstood
    d, a, b, p, *scales = s.operands
    in_registers = isinstance(a, Vector)
    sixteen = shape[3] in ("f16", "bf16")
    numbers = [_number(x) for x in scales]
    negate_a, negate_b = numbers[0] < 0, numbers[1] < 0
    majors = numbers[2:] if sixteen else []
    a_major, b_major = (0, majors[0]) if in_registers and majors else (tuple(majors) or (0, 0))
    ins = Ins(op="WG_MMA", flags=COLLECTIVE)
    ins.mods = FORMATS[shape[3]] | FORMATS[shape[4]] << 4 | int(shape[1]) << 8 | a_major << 20
    ins.mods |= b_major << 21 | negate_a << 22 | negate_b << 23 | (shape[2] == "f16") << 24
    ins.o[1] = NONE if in_registers else e.read(a, 64)
    ins.o[2], ins.o[3] = e.read(b, 64), e.read(p, 1)
    ins.ext = [e.write(x) for x in items(d)]
    ins.n = len(ins.ext)
    if in_registers:
        ins.ext += [e.read(x) for x in items(a)]
    return ins


def _number(operand: Operand) -> int:
    if not isinstance(operand, Immediate):
        raise NotUnderstood
    return operand.value
