"""A sound schedule explained: what was proved, how it runs, and which path orders each hazard."""

from collections.abc import Iterator

from fa4gen.ir.program import KernelProgram
from fa4gen.ir.verified import Verified

from .draw import Drawing, drawing, svg, terminal
from .evidence import WORD, Hazard, hazards
from .hints import hints
from .instantiate import instantiate
from .model import Do, System
from .run import HARDWARE, Place, Rules, run_word
from .words import action_text, operation, operation_text, role_text


def explain(verified: Verified[KernelProgram]) -> str:
    """The text: the proof, a drawing, each hazard with its path, and barriers that could go."""
    system = instantiate(verified.value)
    out = [f"{system.name}: no interleaving hangs or races, for every list of tiles and blocks"]
    out += [f"  {what}: {fact}" for what, fact in verified.evidence]
    out += ["", "Order of the operations of three blocks (^: the barriers waited for)", ""]
    out += [f"  {line}" for line in terminal(_drawing(system)).splitlines()]
    out += ["", "Hazards, and what orders them (i: a block of one tile)", ""]
    out += list(_hazards(system))
    resting = list(_resting(system))
    if resting:
        out += ["", "Hazards that rest on the tensor core's order across accumulators", ""]
        out += [f"  {line}" for line in resting]
    found = [h.text for h in hints(system)]
    out += ["", "Barriers that could go", ""] + [f"  {t}" for t in found or ["none"]]
    return "\n".join(out)


def picture(verified: Verified[KernelProgram]) -> str:
    """The pipeline as SVG."""
    return svg(_drawing(instantiate(verified.value)))


def _drawing(system: System) -> Drawing:
    return drawing(system)


def _hazards(system: System) -> Iterator[str]:
    """Grouped by region; pieces of one buffer with the same path together."""
    groups: dict[tuple[object, ...], tuple[Hazard, list[str]]] = {}
    for h in hazards(system):
        if system.roles[h.later.action.role].name.endswith("(other warps)"):
            continue
        key = (h.kind, h.earlier.action, h.later.action, _after(h.earlier, h.later))
        what = system.regions[h.region].what
        regions = groups.setdefault(key, (h, []))[1]
        if what not in regions:
            regions.append(what)
    by_region: dict[str, list[Hazard]] = {}
    for h, regions in groups.values():
        by_region.setdefault("; ".join(regions), []).append(h)
    for what, found in by_region.items():
        yield f"  {what}"
        yield from dict.fromkeys(_line(system, h) for h in found)


def _line(system: System, h: Hazard) -> str:
    early, late = operation_text(system, h.earlier), operation_text(system, h.later)
    between = f"    {h.kind}: {late}{_after(h.earlier, h.later)} after {early}"
    return f"{between}\n        {_path(system, h)}"


def _after(earlier: Place, later: Place) -> str:
    if later.tile != earlier.tile:
        return " (next tile)"
    blocks = later.block - earlier.block
    return f" (i{blocks:+d})" if blocks else ""


def _path(system: System, h: Hazard) -> str:
    """From barrier to barrier; what lies within one role or unit is its order."""
    words = [operation(h.earlier.action)]
    at = h.earlier.action
    for (step, bar), (then, _) in zip(h.path, h.path[1:], strict=False):
        x = step.place.action
        if bar >= 0:
            arrives = f"arrives at `{system.bars[bar].name}`"
            words.append(arrives if x.do is Do.LOAD else action_text(system, x.role, x))
            words.append(f"{role_text(system, then.place.action.role)} waits")
        elif x.do is Do.PENDING and at.do is Do.ISSUE:
            words.append(action_text(system, x.role, x))
        at = x
    if len(words) == 1:
        unit = h.later.action.unit if h.later.action.do is Do.ISSUE else -1
        words.append(
            f"`{system.units[unit].name}` works in order"
            if unit >= 0 and system.units[unit].in_order
            else f"program order of {role_text(system, h.later.action.role)}"
        )
    return " → ".join([*words, operation(h.later.action)])


def _resting(system: System) -> Iterator[str]:
    """What races once only products on one accumulator are in order."""
    rules = Rules(kinds=HARDWARE.kinds, unit_order=False)
    seen: set[str] = set()
    for fault in run_word(system, WORD, rules).faults:
        if fault.kind != "race" or fault.other is None:
            continue
        late, early = operation_text(system, fault.at), operation_text(system, fault.other)
        text = f"{system.regions[fault.region].what}: {late} after {early}"
        if text not in seen:
            seen.add(text)
            yield text
