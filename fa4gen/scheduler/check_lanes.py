"""FA0314 within a warp: one lane's arrival says nothing of what its warp's other lanes still do."""

from collections.abc import Iterator

from fa4gen.diag import Diagnostic, Note
from fa4gen.ir import program as ir
from fa4gen.ir.program import Call, KernelProgram, Lanes, RoleProgram, Stmt

TOGETHER = (Lanes.ALL, Lanes.WARPS)


def check_lanes(program: KernelProgram) -> Iterator[Diagnostic]:
    """An elected lane's arrival behind accesses to memory that its warp has not finished together.

    Accesses are finished together at a named barrier, at an arrival of all lanes, or of one lane
    that waits for the others first.
    """
    shared = frozenset(r.name for r in program.regions if r.space == "smem")
    for role in program.roles:
        for body in _bodies(role):
            yield from _check(role, body, shared)


def _bodies(role: RoleProgram) -> Iterator[tuple[Stmt, ...]]:
    yield role.start
    yield (*role.before, *role.first)
    for segment in role.segments:
        yield segment.body
    yield role.last
    yield role.end


def _check(
    role: RoleProgram, body: tuple[Stmt, ...], shared: frozenset[str]
) -> Iterator[Diagnostic]:
    alone: Call | None = None  # the first call whose lanes may still be at it
    for s in body:
        if isinstance(s, ir.NamedSync | ir.NamedArrive):
            alone = None
        elif isinstance(s, ir.Arrive):
            if s.lanes not in TOGETHER and alone is not None:
                yield Diagnostic(
                    code="FA0314",
                    title=f"a lane of `{role.name}` arrives at `{s.on.barrier}` while others may "
                    f"still be in `{alone.operation or alone.function}`",
                    span=s.span,
                    notes=(Note(text=f"`{alone.function}` of each lane", span=alone.span),),
                    why="lanes of a warp run on their own between synchronisations",
                    fix="let the lane wait for its warp first",
                )
            alone = None
        elif isinstance(s, Call) and any(a.region in shared for a in s.accesses):
            alone = alone or s
