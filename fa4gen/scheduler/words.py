"""Names for people: actions, places and words of the model in the schedule's terms."""

from fa4gen.diag import Note

from .model import Action, Do, System
from .run import Place

VERBS = {
    Do.WAIT: "waits on",
    Do.ARRIVE: "arrives at",
    Do.SYNC: "syncs on",
    Do.TOUCH: "does",
    Do.ISSUE: "issues",
    Do.COMMIT: "commits to",
    Do.LOAD: "loads",
    Do.PENDING: "waits for operations of",
    Do.FENCE: "fences its shared memory writes",
    Do.SETTLE_LOADS: "waits for its tensor memory loads",
    Do.SETTLE_STORES: "waits for its tensor memory stores",
}


def operation(x: Action) -> str:
    """The schedule's name of what an action does."""
    return str(getattr(x.stmt, "operation", "") or x.name or x.do.name.lower())


def role_text(system: System, role: int) -> str:
    """'`softmax[0]`'."""
    return f"`{system.roles[role].name}`"


def action_text(system: System, role: int, x: Action) -> str:
    """'`mma` waits on `kv_full`'."""
    who = role_text(system, role)
    at = f"`{system.bars[x.bar].name}`" if x.bar >= 0 else ""
    match x.do:
        case Do.FENCE | Do.SETTLE_LOADS | Do.SETTLE_STORES:
            return f"{who} {VERBS[x.do]}"
        case Do.TOUCH | Do.ISSUE:
            return f"{who} {VERBS[x.do]} `{operation(x)}`"
        case Do.LOAD:
            return f"{who} {VERBS[x.do]} `{operation(x)}`, which arrives at {at}"
        case Do.PENDING:
            return f"{who} {VERBS[x.do]} `{system.units[x.unit].name}` (at most {x.groups} go on)"
    return f"{who} {VERBS[x.do]} {at}"


def operation_text(system: System, place: Place) -> str:
    """'`qk` of `mma`'."""
    return f"`{operation(place.action)}` of {role_text(system, place.action.role)}"


def when(place: Place, word: tuple[int, ...]) -> str:
    """'block 2 of tile 1', both from 0; a place before (behind) all blocks is named by its
    section.
    """
    tile = place.tile
    if place.action.section in ("start", "end"):
        return f"the {place.action.section}"
    block = place.block - sum(word[:tile])
    if place.action.section == "before":
        return f"tile {tile}"
    return f"block {block} of tile {tile}"


def word_text(word: tuple[int, ...], is_open: bool = False) -> str:
    """'tiles of 2, 0 and 1 blocks'."""
    if not word:
        return "no tile at all"
    counts = [str(n) for n in word]
    if is_open:
        counts[-1] += " or more"
    many = len(counts) > 1
    listed = f"{', '.join(counts[:-1])} and {counts[-1]}" if many else counts[0]
    return f"{'tiles' if many else 'a tile'} of {listed} block{'s' * (counts[-1] != '1' or many)}"


def note(system: System, place: Place, word: tuple[int, ...], text: str = "") -> Note:
    """A place as a note, at its line."""
    what = action_text(system, place.action.role, place.action)
    return Note(text=f"{text or what} ({when(place, word)})", span=place.action.span)
