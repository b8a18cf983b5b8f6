"""Single damages to a lowered program, as an erring compiler could do them.

A statement is damaged wherever it stands: in every loop of the role alike (a damage to one loop
alone is refused because the loops part).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fa4gen.ir import program as ir
from fa4gen.ir.program import KernelProgram, Lanes, RoleProgram, Stmt

SYNCHRONISING = (
    *(ir.Wait, ir.Arrive, ir.Commit, ir.NamedSync, ir.NamedArrive, ir.Pending),
    *(ir.ProxyFence, ir.TmemWait, ir.Advance, ir.Take),
)
OPERATIONS = (ir.TmaLoad, ir.TryCancel, ir.TmaStore, ir.Umma, ir.Wgmma, ir.Call)
SECTIONS = ("start", "before", "first", "rest", "last", "end")
Body = tuple[Stmt, ...]


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """A damaged program, what was done to it and where."""

    name: str
    kind: str
    program: KernelProgram


def mutants(p: KernelProgram) -> Iterator[Mutant]:
    """Every single damage."""
    for role in p.roles:
        for section in SECTIONS:
            if section == "first" and role.merge_first:
                continue  # printed with the loop
            body = section_of(role, section)
            for n, s in enumerate(body):
                for kind, changed in _damages(body, n, s):
                    name = f"{kind} {describe(s)} at {role.name}.{section}[{n}]"
                    damaged = with_section(role, section, changed)
                    yield Mutant(name=name, kind=kind, program=_with_role(p, damaged))
    for kind, name, damaged in _numbers(p):
        yield Mutant(name=name, kind=kind, program=damaged)


def section_of(role: RoleProgram, section: str) -> Body:
    """The statements of a section; of the loops, those of the first."""
    return role.rest if section == "rest" else getattr(role, section)


def with_section(role: RoleProgram, section: str, body: Body) -> RoleProgram:
    """The role with another section; every loop loses, gains and reorders alike."""
    if section != "rest":
        return replace(role, **{section: body})
    kept = {id(s) for s in role.rest}
    segments = [replace(role.segments[0], body=body)]
    for segment in role.segments[1:]:
        # masks are the only statements in which loops differ: they synchronise nothing
        own = {id(s) for s in segment.body} & kept
        segments.append(
            replace(segment, body=tuple(s for s in body if id(s) in own or id(s) not in kept))
        )
    first = body if role.merge_first else role.first
    return replace(role, first=first, segments=tuple(segments))


def describe(s: Stmt) -> str:
    """'Wait kv_full' or 'Umma qk'."""
    on = getattr(s, "on", None)
    what = on.barrier if on else getattr(s, "operation", "") or getattr(s, "cursor", "")
    return f"{type(s).__name__} {what}".strip()


def _with_role(p: KernelProgram, role: RoleProgram) -> KernelProgram:
    return replace(p, roles=tuple(role if r.name == role.name else r for r in p.roles))


def _damages(body: Body, n: int, s: Stmt) -> Iterator[tuple[str, Body]]:  # noqa: C901 (one case a kind of statement)
    def put(*new: Stmt) -> Body:
        return (*body[:n], *new, *body[n + 1 :])

    if isinstance(s, SYNCHRONISING):
        yield "drop", put()
        yield from _moves(body, n)
    if isinstance(s, (*SYNCHRONISING, *OPERATIONS)) and n + 1 < len(body):
        t = body[n + 1]
        if not (isinstance(s, ir.Call) and isinstance(t, ir.Call)):  # else values, not order
            yield "swap", (*body[:n], t, s, *body[n + 2 :])
    match s:
        case ir.Wait():
            yield "double", put(s, s)
            yield "lap", put(replace(s, free=not s.free))
        case ir.Arrive():
            yield "double", put(s, s)
            for lanes in Lanes:
                if lanes is not s.lanes and (s.lanes, lanes) != (Lanes.ELECTED, Lanes.WARPS):
                    yield f"{lanes} lanes", put(replace(s, lanes=lanes))
        case ir.Commit():
            yield (
                "arrive for commit",
                put(ir.Arrive(on=s.on, lanes=Lanes.LEADER, prev=s.prev, span=s.span)),
            )
        case ir.Pending():
            yield "one group more", put(replace(s, groups=s.groups + 1))
        case ir.TmaLoad():
            yield "half the bytes", put(replace(s, tx_bytes=s.tx_bytes // 2))
            yield "one box less", put(replace(s, boxes=s.boxes[1:]))
            if s.lanes:
                yield "half the lanes", put(replace(s, lanes=s.lanes // 2))
        case ir.TryCancel():
            yield "half the bytes", put(replace(s, tx_bytes=s.tx_bytes // 2))


def _moves(body: Body, n: int) -> Iterator[tuple[str, Body]]:
    """Before (behind) the nearest operation."""
    s, rest = body[n], (*body[:n], *body[n + 1 :])
    before = next((i for i in range(n - 1, -1, -1) if isinstance(body[i], OPERATIONS)), None)
    behind = next((i for i in range(n + 1, len(body)) if isinstance(body[i], OPERATIONS)), None)
    if before is not None:
        yield "earlier", (*rest[:before], s, *rest[before:])
    if behind is not None:
        yield "later", (*rest[:behind], s, *rest[behind:])


def _numbers(p: KernelProgram) -> Iterator[tuple[str, str, KernelProgram]]:  # noqa: C901
    def barrier(n: int, **changes: object) -> KernelProgram:
        bars = list(p.barriers)
        bars[n] = replace(bars[n], **changes)
        return replace(p, barriers=tuple(bars))

    for n, b in enumerate(p.barriers):
        yield "count", f"{b.name} counts one more", barrier(n, arrive_count=b.arrive_count + 1)
        if b.arrive_count > 1:
            yield "count", f"{b.name} counts one less", barrier(n, arrive_count=b.arrive_count - 1)
        if b.stages > 1:
            yield "stages", f"{b.name} has a stage less", barrier(n, stages=b.stages - 1)
        if b.tx_bytes:
            yield "bytes", f"{b.name} expects half", barrier(n, tx_bytes=b.tx_bytes // 2)
    for n, r in enumerate(p.regions):
        if r.stages > 1:
            regions = list(p.regions)
            regions[n] = replace(r, stages=r.stages - 1)
            yield "slots", f"{r.name} has a slot less", replace(p, regions=tuple(regions))
    for role in p.roles:
        for c in role.cursors:
            flipped = tuple(replace(x, phase=1 - x.phase) if x is c else x for x in role.cursors)
            yield (
                "cursor",
                f"{role.name}.{c.name} begins in the other phase",
                _with_role(p, replace(role, cursors=flipped)),
            )
            if c.stages > 1:
                less = tuple(replace(x, stages=x.stages - 1) if x is c else x for x in role.cursors)
                yield (
                    "cursor",
                    f"{role.name}.{c.name} turns a slot too soon",
                    _with_role(p, replace(role, cursors=less)),
                )
