"""Control flow, barriers, fences and operations across a warp's lanes."""

from fa4gen.emulator.decode.encoder import COLLECTIVE, NONE, Encoder, Ins, NotUnderstood
from fa4gen.emulator.decode.memory import address, offset_register
from fa4gen.emulator.ptx.module import (
    Address,
    Immediate,
    Label,
    Negated,
    Operand,
    Pair,
    Statement,
    Vector,
)

REMOTE, EXPECT, RELAXED, DROP, NOCOMPLETE, COMPLETE = 1, 2, 4, 8, 16, 32


def control(_: Encoder, s: Statement) -> Ins:
    """bra, ret, exit, trap."""
    name = s.parts[0]
    if name == "bra":
        label = s.operands[0]
        if not isinstance(label, Label):
            raise NotUnderstood
        return Ins(op="BRA", target=label.target)
    return Ins(op="RET" if name in ("ret", "exit") else "TRAP")


def _collective(e: Encoder, ins: Ins, mask: Operand | None) -> Ins:
    ins.flags |= COLLECTIVE
    if mask is not None and not (
        isinstance(mask, Immediate) and mask.value & 0xFFFFFFFF == 0xFFFFFFFF
    ):
        ins.o[7] = e.read(mask)
    return ins


def shuffle(e: Encoder, s: Statement) -> Ins:
    """shfl.sync."""
    ins = Ins(op="SHFL", mods=("up", "down", "bfly", "idx").index(s.parts[2]))
    to = s.operands[0]
    first, second = (to.first, to.second) if isinstance(to, Pair) else (to, None)
    ins.o[0] = e.write(first)
    ins.o[4] = e.write(second) if second is not None else NONE
    for k in (1, 2, 3):
        ins.o[k] = e.read(s.operands[k])
    return _collective(e, ins, s.operands[4])


def vote(e: Encoder, s: Statement) -> Ins:
    """vote.sync, match.sync, redux.sync, elect.sync, activemask."""
    parts = s.parts
    name = parts[0]
    if name == "activemask":
        ins = Ins(op="ACTIVEMASK")
        ins.o[0] = e.write(s.operands[0])
        return ins
    if name == "elect":
        to = s.operands[0]
        if not isinstance(to, Pair):
            raise NotUnderstood
        ins = Ins(op="ELECT")
        ins.o[0], ins.o[4] = e.write(to.first), e.write(to.second)
        return _collective(e, ins, s.operands[1])
    if name == "vote":
        ins = Ins(op="VOTE", mods=("ballot", "all", "any", "uni").index(parts[2]))
        source = s.operands[1]
        if isinstance(source, Negated):
            source, ins.mods2 = source.register, 1
        ins.o[0], ins.o[1] = e.write(s.operands[0]), e.read(source, 1)
        return _collective(e, ins, s.operands[2])
    if name == "match":
        ins = Ins(op="MATCH", mods=int(parts[1] == "all"), mods2=int(parts[-1] == "b64"))
        to = s.operands[0]
        pair = (to.first, to.second) if isinstance(to, Pair) else (to, None)
        ins.o[0] = e.write(pair[0])
        ins.o[4] = NONE if pair[1] is None else e.write(pair[1])
        ins.o[1] = e.read(s.operands[1], 64 if parts[-1] == "b64" else 32)
        return _collective(e, ins, s.operands[2])
    ops = ("add", "min", "max", "and", "or", "xor")
    ins = Ins(op="REDUX", mods=ops.index(parts[2]) | (parts[-1] == "s32") << 8)
    if parts[-1] == "f32":
        ins.mods |= 512 | 1024 * ("abs" in parts) | 2048 * ("NaN" in parts)
    ins.o[0], ins.o[1] = e.write(s.operands[0]), e.read(s.operands[1])
    return _collective(e, ins, s.operands[2])


def mbarrier(e: Encoder, s: Statement) -> Ins:
    """mbarrier.*"""
    parts = s.parts
    what = parts[1]
    rest = list(s.operands)
    if what in ("try_wait", "test_wait"):
        ins = Ins(op="MBAR_WAIT", mods2=("parity" in parts) | 2 * (what == "test_wait"))
        ins.o[0] = e.write(rest[0])
        address(e, ins, rest[1])
        ins.o[2] = e.read(rest[2], 32 if "parity" in parts else 64)
        ins.mods |= RELAXED if "relaxed" in parts else 0
        return ins
    if what == "pending_count":
        ins = Ins(op="MBAR_PENDING")
        ins.o[0], ins.o[1] = e.write(rest[0]), e.read(rest[1], 64)
        return ins
    remote = REMOTE if "shared::cluster" in parts else 0
    if what in ("init", "inval", "expect_tx", "complete_tx"):
        op = {"init": "MBAR_INIT", "inval": "MBAR_INVAL"}.get(what, "MBAR_TX")
        ins = Ins(op=op, mods=remote | (COMPLETE if what == "complete_tx" else 0))
        address(e, ins, rest[0])
        if len(rest) > 1:
            ins.o[2] = e.read(rest[1])
        return ins
    if what not in ("arrive", "arrive_drop"):
        raise NotUnderstood
    mods = remote | EXPECT * ("expect_tx" in parts) | RELAXED * ("relaxed" in parts)
    mods |= DROP * (what == "arrive_drop") | NOCOMPLETE * ("noComplete" in parts)
    ins = Ins(op="MBAR_ARRIVE", mods=mods)
    ins.o[0] = NONE if isinstance(rest[0], Address) else e.write(rest.pop(0))
    address(e, ins, rest[0])
    if len(rest) > 1:
        ins.o[2] = e.read(rest[1])
    return ins


def barrier(e: Encoder, s: Statement) -> Ins:
    """bar.*, barrier.*, barrier.cluster.*"""
    parts = [p for p in s.parts if p != "cta"]
    if parts[1] == "cluster":
        if parts[2] == "wait":
            return _collective(e, Ins(op="CLUSTER_WAIT"), None)
        relaxed = RELAXED if "relaxed" in parts else 0
        return _collective(e, Ins(op="CLUSTER_ARRIVE", mods=relaxed), None)
    if parts[1] == "warp":
        return _collective(e, Ins(op="WARP_SYNC"), s.operands[0])
    if parts[1] not in ("sync", "arrive"):
        raise NotUnderstood
    ins = Ins(op="BAR", mods=int(parts[1] == "sync"))
    ins.o[1] = e.read(s.operands[0])
    if len(s.operands) > 1:
        ins.o[2] = e.read(s.operands[1])
    aligned = parts[0] == "bar" or "aligned" in parts
    return _collective(e, ins, None) if aligned else ins


def fence(e: Encoder, s: Statement) -> Ins:
    """fence.*, membar.*, griddepcontrol.*, setmaxnreg, nanosleep."""
    parts = s.parts
    if parts[0] == "setmaxnreg":
        count = s.operands[0]
        if not isinstance(count, Immediate):
            raise NotUnderstood
        return _collective(e, Ins(op="SETMAXNREG", imm=count.value), None)
    if parts[0] == "griddepcontrol":
        return Ins(op="GRID_WAIT")
    if parts[0] == "nanosleep":
        return Ins(op="NANOSLEEP")
    if parts[0] == "fence" and parts[1] == "mbarrier_init":
        return Ins(op="FENCE_MBAR_INIT")
    if parts[0] == "fence" and parts[1] == "proxy":
        return Ins(op="FENCE_PROXY_ASYNC" if parts[2].startswith("async") else "FENCE")
    return Ins(op="FENCE")


def policy(e: Encoder, s: Statement) -> Ins:
    """createpolicy: a cache policy is a number that nothing depends on."""
    ins = Ins(op="MOV_B64")
    ins.o[0], ins.flags = e.dest(s.operands[0])
    ins.o[1] = e.constant(0, 64)
    return ins


def hint(_: Encoder, s: Statement) -> Ins:
    """What changes no value: prefetches, cache priorities, performance events."""
    if s.parts[0] == "discard":
        raise NotUnderstood  # it does change values
    return Ins(op="HINT")


def launch_control(e: Encoder, s: Statement) -> Ins:
    """clusterlaunchcontrol.*"""
    parts = s.parts
    if parts[1] == "try_cancel":
        ins = Ins(op="CLC_CANCEL", mods=2 if "multicast::cluster::all" in s.opcode else 0)
        ins.o[1], ins.imm = offset_register(e, s.operands[0])
        ins.o[2], ins.mods2 = offset_register(e, s.operands[1])
        return ins
    ins = Ins(op="CLC_QUERY")
    to = s.operands[0]
    if parts[2] == "is_canceled":
        ins.o[0] = e.write(to)
    elif isinstance(to, Vector):
        ins.mods = 1
        ins.o[:4] = [e.write(x) for x in to.items]
    else:
        ins.mods = 2 + ("x", "y", "z").index(parts[2].split("::")[1])
        ins.o[0] = e.write(to)
    ins.o[4] = e.read(s.operands[1], 64)
    ins.o[5] = ins.o[4] + 256
    return ins
