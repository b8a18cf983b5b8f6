"""From a report's loops to what the cost model counts with."""

from fa4gen.build import Member
from fa4gen.cost.counts import Counts, LoopInstructions
from fa4gen.options import Options
from fa4gen.runtime.compile import Request, compile_cached
from fa4gen.runtime.report import CodeCounts, LoopCount, static_counts

MASKED = "masked"  # the segment of a loop over blocks that need masks
SERIALISED = "wgmma.mma_async instructions are serialized"  # ptxas, C7510 and the like


def compiled_counts(one: Member, options: Options) -> tuple[Counts, CodeCounts]:
    """Compiles a member (or takes it from the cache) and counts its loops. Raises FA07xx."""
    request = Request(name=one.name, target=one.checked.schedule.target, text=one.source.text)
    compiled = compile_cached(request, options)
    code = static_counts(compiled.cubin, one.source.text)
    return counts_of(code, SERIALISED in compiled.remarks.read_text()), code


def counts_of(code: CodeCounts, serialised: bool = False) -> Counts:
    """The longest loop of each role without masks, and with."""
    roles = dict.fromkeys(x.role for x in code.loops if x.role)
    loops, masked = [], {}
    for role in roles:
        plain = _longest(code, role, masked=False)
        if plain:
            tensor = bool(plain.units.get("tensor"))
            loops.append(
                LoopInstructions(
                    role=role,
                    instructions=plain.instructions,
                    units=plain.units,
                    serialised=serialised and tensor,
                )
            )
        if under_masks := _longest(code, role, masked=True):
            masked[role] = under_masks.instructions
    return Counts(loops=tuple(loops), masked=masked)


def _longest(code: CodeCounts, role: str, *, masked: bool) -> LoopCount | None:
    found = [x for x in code.loops if x.role == role and (x.segment == MASKED) == masked]
    return max(found, key=lambda x: x.instructions, default=None)
