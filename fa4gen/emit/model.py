"""A kernel program as a tree of named pieces with strings in them: formatting, no choices.

Every statement becomes a `Node` whose macro has the name of the statement's class; loops and
branches become nodes with children. Templates print nodes and nothing else.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import PurePath

from fa4gen.diag import Span
from fa4gen.ir.head import Head
from fa4gen.ir.program import (
    NEXT,
    OWN,
    Advance,
    Arrive,
    BulkLoad,
    Call,
    Commit,
    Cursor,
    Define,
    KernelProgram,
    Lanes,
    NamedArrive,
    NamedSync,
    Pending,
    RoleProgram,
    Segment,
    Slot,
    Stmt,
    TmaLoad,
    TmaStore,
    TryCancel,
    Wait,
    Wgmma,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One piece of the file: the macro that prints it, its strings, its children."""

    macro: str
    at: str = ""  # '  # schedule.yaml:41', or nothing
    text: dict[str, object]
    children: tuple["Node", ...] = ()


def roles(program: KernelProgram) -> tuple[Node, ...]:
    """One node for each role, and one for the warps that only give their registers away."""
    made = [_role(program, r) for r in program.roles]
    return (*made, *_idle(program))


def _role(program: KernelProgram, role: RoleProgram) -> Node:
    count = role.instances
    first, last = role.first_warp, role.first_warp + role.warps * count
    lines = [_define(d) for d in role.setup]
    lines += [_stmt(program, role, s) for s in role.start]
    lines += [_tiles(program, role)]
    lines += [_stmt(program, role, s) for s in role.end]
    body = tuple(lines)
    if role.active < role.warps:
        body = (_block(f"if {_warps(first, first + role.active)}:", body),)
    title = (
        role.name if count == 1 else f"{role.name}, instances 0 to {count - 1} as a run-time index"
    )
    registers = Node(
        macro="SetRegisters",
        at=at(role.span),
        text={"count": str(role.registers), "change": role.registers_change},
    )
    return Node(
        macro="Role",
        at=at(role.span),
        text={"title": title, "condition": _warps(first, last)},
        children=(registers, *body),
    )


def _idle(program: KernelProgram) -> tuple[Node, ...]:
    """Warps of the last warpgroup without a role must give up registers like their neighbours."""
    used = max(r.first_warp + r.warps * r.instances for r in program.roles)
    total = program.threads // 32
    if used == total:
        return ()
    neighbour = max(program.roles, key=lambda r: r.first_warp)
    registers = Node(
        macro="SetRegisters",
        text={"count": str(neighbour.registers), "change": neighbour.registers_change},
    )
    return (
        Node(
            macro="Role",
            text={"title": "idle", "condition": _warps(used, total)},
            children=(registers,),
        ),
    )


def _warps(first: int, end: int) -> str:
    if end == first + 1:
        return f"warp == {first}"
    return f"warp < {end}" if first == 0 else f"warp >= {first} and warp < {end}"


def _tiles(program: KernelProgram, role: RoleProgram) -> Node:
    head = program.head
    assert isinstance(head, Head)
    inner = [_define(d) for d in role.tile]
    inner += [_stmt(program, role, s) for s in role.before]
    if not role.merge_first:
        inner += [_stmt(program, role, s) for s in role.first]
    inner += _loops(program, role)
    inner += [_stmt(program, role, s) for s in role.last]
    return Node(
        macro=f"Tiles_{head.tiles.kind}",
        text={"rows": str(head.tiles.rows), "names": ", ".join(head.tiles.names)},
        children=tuple(inner),
    )


def _loops(program: KernelProgram, role: RoleProgram) -> list[Node]:
    """The loops over blocks; where they come several times over, inside a loop of their own."""
    loops = [_loop(program, role, s) for s in role.segments]
    if role.repeat is None:
        return loops
    text: dict[str, object] = {"index": role.repeat.name, "trips": role.repeat.trips}
    values = [_define(d) for d in role.repeat.values]
    return [Node(macro="Repeat", text=text, children=(*values, *loops))]


def _loop(program: KernelProgram, role: RoleProgram, segment: Segment) -> Node:
    body = tuple(_stmt(program, role, s) for s in segment.body)
    over = segment.trips
    if segment.start:
        over = f"{segment.start}, {segment.start} + {segment.trips}"
    return Node(macro="Loop", text={"over": over, "name": segment.name}, children=body)


def _block(header: str, children: Iterable[Node]) -> Node:
    return Node(macro="Block", text={"header": header}, children=tuple(children))


def _define(d: Define) -> Node:
    return Node(macro="Define", at=at(d.span), text={"name": d.name, "value": d.text})


def _stmt(program: KernelProgram, role: RoleProgram, s: Stmt) -> Node:
    text: dict[str, object] = {f.name: getattr(s, f.name) for f in fields(s) if f.name != "span"}
    match s:
        case TmaLoad():
            text["lanes"] = str(s.lanes)
            text["barrier"] = _slot(program, role, s.on)
            text["armed"] = s.armed or str(s.tx_bytes)
        case Wait() | Arrive() | Commit() | BulkLoad() | TryCancel():
            text["barrier"] = _slot(program, role, s.on)
        case NamedSync() | NamedArrive():
            text["barrier"] = _named(program, role, s.on)
            text["threads"] = str(program.barrier(s.on.barrier).arrive_count)
        case Advance():
            return _advance(role, s)
        case Define():
            return _define(s)
        case Wgmma():  # a product that writes afresh ignores what its accumulator held
            text["keep"] = "True" if s.accumulate else "k > 0"
            text["a_at"] = f"k, {s.a_slot}" if s.a_slot else "k"
            text["b_at"] = f"k, {s.b_slot}" if s.b_slot else "k"
        case _:
            pass
    node = Node(macro=_macro(s), at=at(s.span), text=text)
    if isinstance(s, Arrive) and s.lanes == "leader" and role.active > 1:
        node = _block("if warp_in_role == 0:", (node,))
    if isinstance(s, TmaStore) and role.active > 1:
        node = _block("if warp_in_role == 0:", (node,))
    if s.only is not None:
        node = _block(f"if own == {s.only}:", (node,))
    return node


def _macro(s: Stmt) -> str:
    match s:
        case Arrive():
            own = {Lanes.ALL: "Arrive_all", Lanes.WARPS: "Arrive_warps"}
            return own.get(s.lanes, "Arrive_elected")
        case TmaLoad() if s.lanes:
            return "TmaLoad_lanes"
        case TmaStore():
            return "TmaReduce" if s.adds else "TmaStore"
        case Call():
            return "Call" if s.results else "Call_plain"
        case Pending():
            if s.written:
                return "Pending_written"
            return "Pending_store" if s.unit.startswith("tma_store") else "Pending_wgmma"
        case _:
            return type(s).__name__


def _advance(role: RoleProgram, s: Advance) -> Node:
    cursor = _cursor(role, s.cursor)
    kind = "Flip" if cursor.stages == 1 else "Advance_two" if cursor.stages == 2 else "Advance"
    return Node(macro=kind, text={"cursor": cursor.name, "stages": str(cursor.stages)})


def _cursor(role: RoleProgram, name: str) -> Cursor:
    return next(c for c in role.cursors if c.name == name)


def _slot(program: KernelProgram, role: RoleProgram, slot: Slot) -> str:
    plan = program.barrier(slot.barrier)
    terms = ["mbar", plan.name.upper()]
    index = _instance(role, slot, plan.stages)
    return " + ".join([*terms, *([index] if index else []), *([slot.slot] if slot.slot else [])])


def _named(program: KernelProgram, role: RoleProgram, slot: Slot) -> str:
    plan = program.barrier(slot.barrier)
    index = _instance(role, slot, 1)
    return f"{plan.name.upper()} + {index}" if index else plan.name.upper()


def _instance(role: RoleProgram, slot: Slot, stages: int) -> str:
    times = f" * {stages}" if stages > 1 else ""
    if slot.instance is None or slot.instance == 0:
        return ""
    if slot.instance is OWN:
        return f"own{times}"
    if slot.instance is NEXT:
        after = "(1 - own)" if role.instances == 2 else f"((own + 1) % {role.instances})"
        return f"{after}{times}"
    return str(int(slot.instance) * stages)


def at(span: Span | None) -> str:
    """The comment that says where a statement comes from: file name and line."""
    return f"  # {PurePath(span.file).name}:{span.line}" if span else ""


def line_map(source: str) -> dict[int, tuple[str, int]]:
    """Generated line -> (schedule file name, line), read back from the comments."""
    found = {}
    for n, line in enumerate(source.splitlines(), 1):
        if m := re.search(r"# ([\w.-]+\.yaml):(\d+)$", line):
            found[n] = (m[1], int(m[2]))
    return found
