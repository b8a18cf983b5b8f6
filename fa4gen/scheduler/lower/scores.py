"""What happens to scores between the product and their maximum, in one fixed order: scaled, capped,
biased by distance, changed by a user's function; masks come after. Without any of these, the scale
is left to the exponential.
"""

from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule

from .modifiers import call_of

SCORES = ("softcap", "alibi", "score_mod")  # features that need scores in natural units


def natural(schedule: Schedule) -> bool:
    """Whether scores are multiplied by the softmax scale before their maximum is taken."""
    return any(f in schedule.features for f in SCORES)


def scale_log2(schedule: Schedule) -> str:
    """What turns a score, as the maximum sees it, into powers of two."""
    return "Float32(LOG2_E)" if natural(schedule) else "scale_log2"


def pieces(schedule: Schedule, place: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Device functions to call, with their arguments behind the scores.

    `place`: the column, counted from the block's first, where the query itself stands.
    """
    found: list[tuple[str, tuple[str, ...]]] = []
    if "softcap" in schedule.features:
        found.append(("cap_scores", ("softcap", "softmax_scale")))
    elif natural(schedule):
        found.append(("scale_scores", ("softmax_scale",)))
    if "alibi" in schedule.features:
        found.append(("bias_scores", ("slopes_of_rows", place)))
    return tuple(found)


def tile_values(schedule: Schedule, heads: tuple[str, ...]) -> tuple[Define, ...]:
    """What they need of the head of each row that a thread holds."""
    if "alibi" not in schedule.features:
        return ()
    values = ", ".join(f"slopes[batch, {head}]" for head in heads)
    return (Define(name="slopes_of_rows", text=values),)


def parameters(schedule: Schedule) -> tuple[tuple[str, str], ...]:
    """What the kernel gets for them besides the inputs of `launch`."""
    return (("softmax_scale", "Float32"),) if natural(schedule) else ()


def turned_pieces(
    schedule: Schedule, place: str, where: tuple[str, str]
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The same for transposed scores, of the backward, where `place` also says whose column it is;
    `where`: the block's first query and the tile's first key. What changes a score by more or less
    than it changed (`sloped`) leaves its derivative in `slope`."""
    capped = "softcap" in schedule.features
    changed = ("cap_scores_slope", ("slope", "softcap", "softmax_scale"))
    found = [changed if f == "cap_scores" else (f, a) for f, a in pieces(schedule, place)]
    if "score_mod" not in schedule.features:
        return tuple(found)
    call = (call_of(schedule, "score_mod"), *where)
    if not _modified_slope(schedule):
        return (*found, ("modify_turned", call))
    return (*found, ("modify_turned_slope", (*call, "slope", str(not capped))))


def sloped(schedule: Schedule) -> bool:
    """Whether a score, as the exponential sees it, has another derivative by the product than the
    scale."""
    return "softcap" in schedule.features or _modified_slope(schedule)


def _modified_slope(schedule: Schedule) -> bool:
    """A score function that gives its derivative as its second result; else that is 1."""
    score = schedule.modifiers.score
    return "score_mod" in schedule.features and score is not None and len(score.results) > 1
