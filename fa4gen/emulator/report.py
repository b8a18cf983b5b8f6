"""What a run showed: values went to the caller's memory, faults and counts are here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from fa4gen.diag import Diagnostic, Fa4genError

# The ISA forbids these or is silent; kernels that are known to work on hardware have them.
WARNINGS = frozenset(("bulk copy unfinished at exit", "registers differ in a warpgroup"))
RACES = frozenset(
    (
        "race: read before write is ordered",
        "race: write before read is ordered",
        "race: unordered writes",
        "missing proxy fence",
        "barrier used before its initialisation is visible",
        "registers in use by wgmma",
        "missing wgmma.fence",
        "two CTAs write one address",
        "barrier lapped",
        "barrier initialised twice",
        "uninitialised shared memory",
        "uninitialised tensor memory",
        "uninitialised global memory",
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault. `source` is the `.loc` of its PTX line, `other_*` the access it collides with.

    `cta` is the CTA's number in the grid, x fastest. `barrier` is the mbarrier's offset in shared
    memory or the named barrier's id; `phase` counts from 0 since its initialisation.
    """

    kind: str
    message: str
    kernel: str
    ptx_line: int
    ptx: str = ""
    source: str = ""
    cta: int = -1
    warp: int = -1
    lane: int = -1
    address: int = 0
    barrier: int | None = None
    phase: int | None = None
    other_line: int | None = None
    other_ptx: str = ""
    other_source: str = ""
    other_cta: int | None = None
    other_warp: int | None = None

    def __str__(self) -> str:
        """One line, or two with the other access."""
        who = f"CTA {self.cta} warp {self.warp}" + (f" lane {self.lane}" if self.lane >= 0 else "")
        at = f" [{self.source}]" if self.source else ""
        text = f"{self.kind}: {self.message}\n  {who}, line {self.ptx_line}{at}: {self.ptx[:160]}"
        if self.other_line:
            by = "" if self.other_warp is None else f"CTA {self.other_cta} warp {self.other_warp}, "
            there = f" [{self.other_source}]" if self.other_source else ""
            text += f"\n  against {by}line {self.other_line}{there}: {self.other_ptx[:160]}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiter:
    """A warp that can never move: what it waits for, what has arrived, and who is missing."""

    cta: int
    warp: int
    ptx_line: int
    ptx: str
    source: str
    waits_for: str

    def __str__(self) -> str:
        """One line."""
        at = f" [{self.source}]" if self.source else ""
        return f"CTA {self.cta} warp {self.warp} at line {self.ptx_line}{at}: {self.waits_for}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlock:
    """A state in which nobody can move, or only spins."""

    kernel: str
    waiters: tuple[Waiter, ...]

    def __str__(self) -> str:
        """One line a waiter."""
        return "\n".join(("deadlock: no warp can move", *(f"  {w}" for w in self.waiters)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All that one call showed. `races` and `faults` are apart: faults stopped a CTA or broke a
    rule; `warnings` can be harmless and do not make a run faulty."""

    kernels: tuple[str, ...] = ()
    races: tuple[Fault, ...] = ()
    faults: tuple[Fault, ...] = ()
    warnings: tuple[Fault, ...] = ()
    deadlock: Deadlock | None = None
    warp_instructions: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)
    ctas: int = 0
    seconds: float = 0.0
    races_checked: bool = False

    @property
    def faulty(self) -> bool:
        """Whether anything was wrong."""
        return bool(self.races or self.faults or self.deadlock)

    def raise_if_faulty(self) -> None:
        """Raises `Fa4genError` with every fault as a diagnostic."""
        found = [_diagnostic("FA0920", f) for f in self.races]
        found += [_diagnostic("FA0921", f) for f in self.faults]
        if self.deadlock:
            found.append(Diagnostic(code="FA0922", title=str(self.deadlock)))
        if found:
            raise Fa4genError(found)

    @staticmethod
    def merged(reports: Sequence["Report"]) -> "Report":
        """One report over several launches."""
        counts: Counter[str] = Counter()
        for r in reports:
            counts.update(r.opcodes)
        return Report(
            kernels=tuple(k for r in reports for k in r.kernels),
            races=tuple(f for r in reports for f in r.races),
            faults=tuple(f for r in reports for f in r.faults),
            warnings=tuple(f for r in reports for f in r.warnings),
            deadlock=next((r.deadlock for r in reports if r.deadlock), None),
            warp_instructions=sum(r.warp_instructions for r in reports),
            opcodes=counts,
            ctas=sum(r.ctas for r in reports),
            seconds=sum(r.seconds for r in reports),
            races_checked=all(r.races_checked for r in reports),
        )


def _diagnostic(code: str, fault: Fault) -> Diagnostic:
    return Diagnostic(code=code, title=str(fault))
