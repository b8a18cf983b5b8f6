"""FA0313 within a role: what tcgen05.ld loads is in its registers only after tcgen05.wait::ld."""

from collections.abc import Iterator

from fa4gen.diag import Diagnostic, Note
from fa4gen.ir import program as ir
from fa4gen.ir.program import Call, KernelProgram, RoleProgram, Stmt


def check_registers(program: KernelProgram) -> Iterator[Diagnostic]:
    """A call that uses the results of a tensor memory load before the role has waited for it."""
    tmem = frozenset(r.name for r in program.regions if r.space == "tmem")
    for role in program.roles:
        for body in _bodies(role):
            yield from _check(role, body, tmem)


def _bodies(role: RoleProgram) -> Iterator[tuple[Stmt, ...]]:
    yield role.start
    yield (*role.before, *role.first)
    for segment in role.segments:
        yield segment.body
    yield role.last
    yield role.end


def _check(role: RoleProgram, body: tuple[Stmt, ...], tmem: frozenset[str]) -> Iterator[Diagnostic]:
    loading: dict[str, Call] = {}  # result -> the load that is under way
    for s in body:
        if isinstance(s, ir.TmemWait) and s.kind == "load":
            loading.clear()
        if not isinstance(s, Call):
            continue
        used = next((a for a in s.args if a in loading), None)
        if used is not None:
            load = loading.pop(used)
            yield Diagnostic(
                code="FA0313",
                title=f"tcgen05.wait::ld is missing: `{s.function}` uses `{used}` of "
                f"`{role.name}` before its load is over",
                span=s.span,
                notes=(Note(text=f"`{load.function}` begins the load", span=load.span),),
                why="a tensor memory load has only begun when the next statement runs",
                fix=f"wait for the loads of `{role.name}` between the two",
            )
        if not s.settled and any(a.region in tmem and not a.write for a in s.accesses):
            loading |= dict.fromkeys(s.results, s)
