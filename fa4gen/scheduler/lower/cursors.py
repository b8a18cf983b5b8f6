"""A role's places in its barriers' rings: as few variables as the program allows.

Barriers of equal depth that a role awaits equally often in each section, at most once in each,
stand at the same place whenever a section begins; they share one cursor, advanced at the section's
end. Every other barrier has a cursor of its own, advanced right behind each wait; so has one whose
slots are still in use when the next block's is awaited.
"""

from dataclasses import dataclass

from fa4gen.ir.program import Advance, Cursor, Define, Keep, Relative, Slot, Stmt, Take, Wait

from .events import KeepEvent, RoleEvents, WaitEvent
from .sections import SECTIONS

Key = tuple[str, int | Relative | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursors:
    """The cursors of a role, and which barrier uses which."""

    cursors: tuple[Cursor, ...]
    of: dict[Key, Cursor]
    shared: frozenset[str]  # names of cursors that advance at the end of a section
    kept: frozenset[str] = frozenset()  # barriers whose slot of the block before has a name

    def wait(self, event: WaitEvent) -> list[Stmt]:
        """The statements of one wait: the wait itself, and the slot remembered under the item's
        name."""
        cursor = self.of[event.barrier, event.instance]
        shared = cursor.name in self.shared
        slot = f"{cursor.name}_slot" if cursor.stages > 1 else ""
        out: list[Stmt] = [
            Wait(
                on=Slot(barrier=event.barrier, instance=event.instance, slot=slot),
                phase=f"{cursor.name}_phase",
                free=event.free,
                span=event.span,
                prev=event.prev,
            )
        ]
        if cursor.stages > 1 and not shared:
            out.append(Take(name=f"{event.item}_at", cursor=cursor.name))
        if not shared:
            out.append(Advance(cursor=cursor.name))
        return out

    def keep(self, event: KeepEvent) -> list[Stmt]:
        """Keeps the slot of the block before, where the ring has several."""
        if self.of[event.barrier, None].stages == 1:
            return []
        return [Keep(name=f"{event.item}_before", of=f"{event.item}_at")]

    def slot(self, barrier: str, item: str, *, before: bool = False) -> str:
        """The variable that holds the slot of an item, awaited at `barrier`; '' if there is one
        slot. `before`: of the block before the one that was awaited last."""
        cursor = self.of[barrier, None]
        if cursor.stages == 1:
            return ""
        if before and barrier in self.kept:
            return f"{item}_before"
        return f"{cursor.name}_slot" if cursor.name in self.shared else f"{item}_at"

    def section_end(self, events: tuple[object, ...]) -> list[Stmt]:
        """Advances of the shared cursors that this section used."""
        used = {
            self.of[e.barrier, e.instance].name
            for e in events
            if isinstance(e, WaitEvent) and not e.named
        }
        return [
            Advance(cursor=c.name) for c in self.cursors if c.name in self.shared and c.name in used
        ]


def cursors(role: RoleEvents, stages: dict[str, int]) -> Cursors:
    """Assigns them; `stages`: depth of each barrier's ring."""
    counts: dict[Key, list[int]] = {}
    free: dict[Key, bool] = {}
    kept: set[str] = set()
    for n, section in enumerate(SECTIONS):
        for e in role.sections[section]:
            if isinstance(e, WaitEvent) and not e.named:
                key = (e.barrier, e.instance)
                counts.setdefault(key, [0] * len(SECTIONS))[n] += 1
                free[key] = e.free
            elif isinstance(e, KeepEvent):
                kept.add(e.barrier)
    groups: dict[tuple[object, ...], list[Key]] = {}
    for key, found in counts.items():
        alone = max(found) > 1 or key[0] in kept
        kind = (stages[key[0]], free[key], tuple(found), key if alone else None)
        groups.setdefault(kind, []).append(key)
    made: list[Cursor] = []
    of: dict[Key, Cursor] = {}
    shared: set[str] = set()
    for group, keys in groups.items():
        name = _name(keys)
        cursor = Cursor(
            name=name if name not in {c.name for c in made} else f"{name}{len(made)}",
            stages=int(str(group[0])),
            phase=int(bool(group[1])),
            barriers=tuple(dict.fromkeys(k[0] for k in keys)),
        )
        made.append(cursor)
        of |= dict.fromkeys(keys, cursor)
        if group[3] is None:
            shared.add(cursor.name)
    return Cursors(cursors=tuple(made), of=of, shared=frozenset(shared), kept=frozenset(kept))


def _name(keys: list[Key]) -> str:
    """After the barriers that it stands for: their common beginning, or the first one's name."""
    names = list(dict.fromkeys(k[0] for k in keys))
    return names[0].removesuffix("_full").removesuffix("_empty").removesuffix("_ready")


def initial(cursor: Cursor) -> tuple[Define, ...]:
    """The variables of a cursor at the start of its role."""
    phase = Define(name=f"{cursor.name}_phase", text=f"Int32({cursor.phase})")
    if cursor.stages == 1:
        return (phase,)
    return (Define(name=f"{cursor.name}_slot", text="Int32(0)"), phase)
