"""Instructions of a compiled kernel's block loops, role by role, as the model reads them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopInstructions:
    """One iteration of a role's block loop, for one warp: instructions in all, and by unit.

    `serialised`: ptxas waits for each matrix instruction by itself (it says so where registers do
    not suffice), so that nothing runs beside them.
    """

    role: str
    instructions: int
    units: Mapping[str, int]
    serialised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The block loops of one kernel that need no mask; `masked`: instructions of those that do."""

    loops: tuple[LoopInstructions, ...]
    masked: Mapping[str, int] = field(default_factory=dict)

    def loop(self, role: str) -> LoopInstructions | None:
        """The block loop of a role, if the machine code has one."""
        return next((x for x in self.loops if x.role == role), None)
