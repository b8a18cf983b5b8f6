"""What a build made, in numbers: registers, spills, memory maps, barriers, and each role's loops.

Everything about the machine code is read from the cubin (counted in the code, not measured on a
GPU); the maps and the barrier table are what the compiler decided. `static_counts` gives the loops
of any other cubin, to set beside ours.
"""

import re
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fa4gen.diag import Span, error
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import BarrierPlan, KernelProgram

from . import cubin as elf
from .compile import Compiled, line_map, ptx_lines
from .roles import Parts, parts_of
from .sass import Code, Loop, disassemble


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCount:
    """One innermost loop: instructions of one iteration, in all, by unit, by mnemonic.

    `functions`: device function -> mnemonic -> count, for code inlined from one. `role`, `segment`
    and `at` (of the generated file) are empty where the cubin has no line tables.
    """

    role: str
    segment: str
    at: str
    address: int
    instructions: int
    units: Mapping[str, int]
    opcodes: Mapping[str, int]
    functions: Mapping[str, Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeCounts:
    """One kernel's machine code. Bytes and registers are those of one thread."""

    instructions: int
    registers: int
    local_bytes: int
    local_loads: int
    local_stores: int
    setmaxnreg: tuple[int, ...]
    loops: tuple[LoopCount, ...]

    @property
    def spills(self) -> bool:
        """Whether the kernel touches local memory at all."""
        return bool(self.local_bytes or self.local_loads or self.local_stores)

    def most(self, opcode: str) -> LoopCount | None:
        """The loop with most instructions of that mnemonic; of equals the shortest (without masks).

        It finds the same work in two kernels.
        """
        loops = [x for x in self.loops if x.opcodes.get(opcode)]
        return max(loops, key=lambda x: (x.opcodes[opcode], -x.instructions), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What ptxas said, and the place in the schedule if it named a line."""

    text: str
    at: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapRow:
    """A buffer's place, in bytes or columns; `first` is -1 where it is left to the DSL."""

    buffer: str
    first: int
    extent: int
    copies: int = 1

    @property
    def total(self) -> int:
        """Of all copies (stages and instances)."""
        return self.extent * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierRow:
    """A barrier: how often it exists, arrivals that end a phase, bytes that TMA brings in one."""

    name: str
    kind: str
    first: int
    copies: int
    arrive_count: int
    tx_bytes: int
    arrivals: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything of one kernel; `as_dict` is its JSON form, `render` its text."""

    name: str
    target: str
    roles: tuple[tuple[str, int, int], ...]  # name, warps, registers after setmaxnreg
    smem: tuple[MapRow, ...]
    smem_bytes: int
    tmem: tuple[MapRow, ...]
    tmem_columns: int
    barriers: tuple[BarrierRow, ...]
    code: CodeCounts
    remarks: tuple[Remark, ...]

    def as_dict(self) -> dict[str, object]:
        """JSON types alone."""
        return asdict(self)


def static_counts(file: Path, text: str = "") -> CodeCounts:
    """Counts of the largest kernel of a cubin, or of a shared object that carries one.

    With the `text` of its generated file, loops are given to roles. Raises `Fa4genError` FA0706 if
    it cannot be read or disassembled.
    """
    try:
        cubin = elf.embedded(file.read_bytes())
        facts = elf.kernels(cubin)
    except (OSError, ValueError, struct.error) as problem:
        raise error("FA0706", f"`{file}` cannot be read as a cubin: {problem}") from problem
    codes = disassemble(cubin)
    if not facts or not codes:
        raise error("FA0706", f"`{file}` holds no kernel")
    code = max(codes, key=lambda c: len(c.instructions))
    fact = next((f for f in facts if f.name == code.name), facts[0])
    parts = parts_of(text)
    spans = line_map(text)
    return CodeCounts(
        instructions=len(code.instructions),
        registers=fact.registers,
        local_bytes=fact.frame_bytes,
        local_loads=code.count("LDL"),
        local_stores=code.count("STL"),
        setmaxnreg=_setmaxnreg(code),
        loops=tuple(_loop(x, parts, spans) for x in code.loops),
    )


def build_report(
    compiled: Compiled, *, text: str, program: KernelProgram, plan: Plan | None = None
) -> Report:
    """The report of a compiled kernel: `text` is its generated file, the rest what it came from."""
    named = [
        (f"{r.name}[{i}]" if r.instances > 1 else r.name, r.warps, r.registers)
        for r in program.roles
        for i in range(r.instances)
    ]
    return Report(
        name=program.name,
        target=program.target,
        roles=tuple(named),
        smem=_smem(plan) if plan else (),
        smem_bytes=plan.smem_bytes if plan else 0,
        tmem=_tmem(plan) if plan else (),
        tmem_columns=plan.tmem_columns if plan else 0,
        barriers=tuple(_barrier(b) for b in program.barriers),
        code=static_counts(compiled.cubin, text),
        remarks=remarks(compiled, text),
    )


def _setmaxnreg(code: Code) -> tuple[int, ...]:
    """Register counts that warps set for themselves, in order of the code."""
    texts = [i.text for i in code.instructions if i.mnemonic == "USETMAXREG"]
    return tuple(int(m[0], 16) for t in texts if (m := re.search(r"0x[0-9a-f]+", t)))


def _loop(loop: Loop, parts: Parts, spans: Mapping[int, Span]) -> LoopCount:
    lines = loop.lines()
    role = parts.role_of(lines)
    place = parts.loop_of(lines) if role else None
    inside: dict[str, Counter[str]] = {}
    for i in loop.instructions:
        if role and (function := parts.function_of(i.line)):
            name = i.opcode if i.mnemonic == "MUFU" else i.mnemonic
            inside.setdefault(function, Counter())[name] += 1
    at = ""
    if place:
        first = next((spans[n] for n in range(place.first, place.last + 1) if n in spans), None)
        at = f"{first.file}:{first.line}" if first else ""
    return LoopCount(
        role=role,
        segment=place.name if place else "",
        at=at,
        address=loop.address,
        instructions=len(loop.instructions),
        units=loop.units(),
        opcodes=loop.opcodes(),
        functions={f: dict(c.most_common()) for f, c in sorted(inside.items())},
    )


def _smem(plan: Plan) -> tuple[MapRow, ...]:
    return tuple(
        MapRow(buffer=s.buffer, first=-1, extent=s.tile_bytes, copies=s.total_bytes // s.tile_bytes)
        for s in plan.smem
    )


def _tmem(plan: Plan) -> tuple[MapRow, ...]:
    rows = [
        MapRow(buffer=f"{b}[{i}]" if len(starts) > 1 else b, first=c, extent=plan.widths[b])
        for b, starts in plan.columns.items()
        for i, c in enumerate(starts)
    ]
    return tuple(sorted(rows, key=lambda r: (r.first, r.buffer)))


def _barrier(b: BarrierPlan) -> BarrierRow:
    return BarrierRow(
        name=b.name,
        kind="named" if b.named else "mbarrier",
        first=b.base,
        copies=b.instances * b.stages,
        arrive_count=b.arrive_count,
        tx_bytes=b.tx_bytes,
        arrivals=tuple(str(c) for c in b.contributions),
    )


def remarks(compiled: Compiled, text: str) -> tuple[Remark, ...]:
    """ptxas's remarks; those that name a line of the PTX get the schedule's line."""
    to_source = ptx_lines(compiled.lines_ptx.read_text())
    spans = line_map(text)
    found = []
    for said in compiled.remarks.read_text().splitlines():
        m = re.search(r"line (\d+)", said)
        span = spans.get(to_source.get(int(m[1]), 0)) if m else None
        found.append(Remark(text=said, at=f"{span.file}:{span.line}" if span else ""))
    return tuple(found)
