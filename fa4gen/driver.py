"""The compiler's table of contents: from a schedule file to a kernel, pass by pass.

    read      YAML -> Schedule                      fa4gen.dsl
    check     names, roles, memory, shapes          fa4gen.scheduler.verify
    ring      a dynamic tile scheduler, written out fa4gen.scheduler.tile_ring
    place     Schedule -> Plan                      fa4gen.scheduler.place
    lower     Plan -> KernelProgram                 fa4gen.scheduler.lower
    verify    order of every access, every length   fa4gen.scheduler.verify
    render    KernelProgram -> KernelSource         fa4gen.emit
    compile   KernelSource -> cubin, shared object  fa4gen.runtime

Each pass takes what the one before returned, and raises `Fa4genError` with all that it found.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fa4gen.diag import Fa4genError
from fa4gen.dsl import load_with_sources
from fa4gen.flex.differentiate import with_derivative
from fa4gen.ir.expression import UNCHANGED, Modifiers
from fa4gen.ir.features import ordered
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import KernelProgram
from fa4gen.ir.schedule import Schedule
from fa4gen.ir.verified import Verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A schedule that may be printed: what was declared, decided, lowered and proved."""

    schedule: Schedule
    plan: Plan
    program: Verified[KernelProgram]


def check(
    path: str | Path,
    *,
    settings: Mapping[str, str] | None = None,
    variant: str | None = None,
    modifiers: Modifiers = UNCHANGED,
) -> Checked:
    """Everything up to the proof; needs neither torch nor the CuTe DSL.

    `modifiers` are users' functions; they turn the features score_mod and mask_mod on. Where a
    setting has turned one on, the function is one that changes nothing. For a backward, the score
    function is differentiated here.

    Raises `Fa4genError` with every fault of the first pass that finds one; its lines can be drawn.
    """
    from fa4gen.scheduler.lower.kernel import lower
    from fa4gen.scheduler.place import place
    from fa4gen.scheduler.tile_ring import with_tile_ring
    from fa4gen.scheduler.verify import verify, verify_schedule

    asked = dict.fromkeys(modifiers.features, "true") | dict(settings or {})
    schedule, sources = load_with_sources(path, settings=asked, variant=variant)
    modifiers = modifiers.completed(schedule.features)
    if schedule.kernel == "attention_backward":
        modifiers = with_derivative(modifiers)
    schedule = replace(schedule, modifiers=modifiers)
    try:
        plan = place(with_tile_ring(verify_schedule(schedule).value))
        program = verify(lower(plan))
    except Fa4genError as e:
        raise Fa4genError(e.diagnostics, sources) from None
    return Checked(schedule=schedule, plan=plan, program=program)


def member_name(schedule: Schedule) -> str:
    """File name of one member of a family: the schedule's, with what its problem chose."""
    dims = ""
    if any(len(schedule.serves.get(k, ())) > 1 for k in ("head_dim", "head_dim_v")):
        dims = f"_hd{schedule.head_dim}"
        dims += f"_{schedule.head_dim_v}" if schedule.head_dim_v != schedule.head_dim else ""
    mask = "_causal" if schedule.causal else ""
    mask += "".join(f"_{f}" for f in ordered(schedule.features))
    dtype = "" if schedule.dtype == "bf16" else f"_{schedule.dtype}"
    return f"{schedule.name}{dims}{mask}{dtype}"
