"""All checks of a lowered program: what is cheap and local first, then every word.

The proof presupposes what comes before it: names that exist, loops that synchronise alike, counts
that fit and printed slots that are the counted ones. The proof is attempted when counts fit, and
accepted when the slots do too.
"""

from fa4gen.diag import Diagnostic, Fa4genError
from fa4gen.ir.program import KernelProgram

from .check_counts import check_boxes, check_counts
from .check_cursors import check_cursors
from .check_lanes import check_lanes
from .check_registers import check_registers
from .check_written import check_written
from .closure import Verdict, closure
from .deep_rings import prove_shallow
from .instantiate import instantiate
from .model import System
from .report import report

ROWS = "each warp of a role touches its own rows of what the role touches"


def check_program(program: KernelProgram) -> tuple[System, Verdict]:
    """The program's system and the proof that it is sound for every list of tiles and blocks.

    Raises Fa4genError with all faults found: FA03xx.
    """
    system = instantiate(program)
    local = [
        *check_counts(system),
        *check_boxes(program),
        *check_registers(program),
        *check_lanes(program),
        *check_written(system),
    ]
    if local:
        raise Fa4genError(local)
    slots = tuple(check_cursors(program))
    try:
        verdict = prove(system)
    except (
        Fa4genError
    ) as e:  # an order that is wrong in itself explains a slot that is not the counted one
        raise Fa4genError([*e.diagnostics, *slots]) from None
    if slots:
        raise Fa4genError(slots)
    return system, verdict


def prove(system: System) -> Verdict:
    """The same for a system: every word. Raises Fa4genError."""
    verdict = prove_shallow(system) or closure(system)
    found: tuple[Diagnostic, ...] = report(system, verdict)
    if found:
        raise Fa4genError(found)
    return verdict


def facts(system: System, verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """What the proof covers and rests on, for people: (name, text) pairs."""
    bound = verdict.letters + 1
    out = [
        ("actors", ", ".join(r.name for r in system.roles)),
        (
            "every word",
            f"{verdict.frontiers} frontiers, the longest after {verdict.letters} blocks and ends "
            f"of tiles; all lists of tiles of up to {bound} of these are a complete test",
        ),
        (
            "tiles",
            "each can be finished without a later one"
            if verdict.self_contained
            else "some wait for a later one",
        ),
    ]
    out += [
        (
            "ring",
            f"`{name}` of {depth} slots proved with {proof}: more slots only remove order, and its "
            "own slots are a handshake",
        )
        for name, depth, proof in verdict.shallow
    ]
    out += [
        ("assumption", f"`{u.name}`: {u.assumption or 'its operations take effect as issued'}")
        for u in system.units
        if u.in_order
    ]
    if system.split_roles:
        out.append(("assumption", f"{ROWS}: {', '.join(f'`{r}`' for r in system.split_roles)}"))
    return tuple(out)
