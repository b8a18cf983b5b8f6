"""Machine code as text (nvdisasm), its innermost loops, and what they execute.

A loop is a natural loop of the control flow graph: a jump back to a block that dominates it. Loops
that only wait (for a mbarrier's phase, for registers, for tensor memory) are the slow path of a
wait; they and the jumps out of them belong to no count, ours or a peer's.
"""

import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fa4gen.diag import error

from .units import unit_of

WAIT_LOOP_LIMIT = 16  # instructions; the DSL's waits are 3 to 11 of them
WAITED_FOR = {"SYNCS", "USETMAXREG", "UTCATOMSWS"}
WORK = {"tensor", "mufu", "shared", "global", "local", "tma"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One SASS instruction; `line` is that of the generated file, 0 if unknown."""

    address: int
    text: str  # without predicate
    conditional: bool
    line: int = 0

    @property
    def mnemonic(self) -> str:
        """`FMUL2` of `FMUL2.RZ R2, ...`."""
        return re.split(r"[.\s]", self.text, maxsplit=1)[0]

    @property
    def opcode(self) -> str:
        """With modifiers: `MUFU.EX2`."""
        return self.text.split()[0]

    @property
    def unit(self) -> str:
        """Where it executes; one of `units.UNITS`."""
        return unit_of(self.mnemonic)

    @property
    def targets(self) -> tuple[str, ...]:
        """The labels that it may jump to; a jump through a table has several."""
        if table := re.search(r'"BRANCH_TARGETS ([^"]*)"', self.text):
            return tuple(table[1].split(","))
        return tuple(re.findall(r"`\(([^)]+)\)", self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """An innermost loop: its instructions in address order, slow paths of waits left out."""

    instructions: tuple[Instruction, ...]

    @property
    def address(self) -> int:
        """Of its first instruction."""
        return self.instructions[0].address

    def units(self) -> dict[str, int]:
        """Instructions by unit."""
        return dict(Counter(i.unit for i in self.instructions).most_common())

    def opcodes(self) -> dict[str, int]:
        """Instructions by mnemonic; MUFU keeps its function, for it says which."""
        names = (i.opcode if i.mnemonic == "MUFU" else i.mnemonic for i in self.instructions)
        return dict(Counter(names).most_common())

    def lines(self) -> Counter[int]:
        """Instructions by line of the generated file."""
        return Counter(i.line for i in self.instructions if i.line)


@dataclass(frozen=True, kw_only=True)
class Code:
    """One kernel's instructions, and where its labels point (index of an instruction)."""

    name: str
    instructions: tuple[Instruction, ...]
    labels: dict[str, int]

    @cached_property
    def loops(self) -> tuple[Loop, ...]:
        """The innermost loops that do more than wait, in address order."""
        return _innermost(self)

    def count(self, pattern: str) -> int:
        """How many instructions of the whole kernel match a pattern at the start of their text."""
        return sum(bool(re.match(pattern, i.text)) for i in self.instructions)


def find_nvdisasm() -> str:
    """The disassembler: on the PATH, or that of the pip package nvidia-cuda-nvdisasm (FA0706)."""
    on_path = shutil.which("nvdisasm")
    site = Path(sysconfig.get_paths()["purelib"])
    packaged = sorted(site.glob("nvidia/**/bin/nvdisasm"))
    if packaged:
        return str(packaged[-1])
    if on_path:
        return on_path
    raise error("FA0706", "nvdisasm is not installed", fix="pip install 'nvidia-cuda-nvdisasm>=13'")


def disassemble(cubin: bytes) -> tuple[Code, ...]:
    """The kernels of a cubin; with lines if it has line tables. Raises `Fa4genError` FA0706."""
    tool = find_nvdisasm()
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tool, "-g", "-c", file.name]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode:
        raise error("FA0706", f"nvdisasm fails: {done.stderr.strip()[:500]}")
    return parse(done.stdout)


def parse(text: str) -> tuple[Code, ...]:
    """Kernels of nvdisasm's output."""
    found: list[Code] = []
    name, line = "", 0
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    for row in [*text.splitlines(), ".text.:"]:
        stripped = row.strip()
        if m := re.match(r'//## File "[^"]*", line (\d+)', stripped):
            line = int(m[1])
        elif m := re.match(r"/\*([0-9a-f]+)\*/\s+(@!?U?P[0-9T]+\s+)?([^;]*);", stripped):
            instructions.append(
                Instruction(
                    address=int(m[1], 16), text=m[3].strip(), conditional=bool(m[2]), line=line
                )
            )
        elif m := re.match(r"\.text\.(.*):$", stripped):
            if instructions:
                found.append(Code(name=name, instructions=tuple(instructions), labels=labels))
            name, instructions, labels, line = m[1], [], {}, 0
        elif m := re.match(r"(\S+):$", stripped):
            labels[m[1]] = len(instructions)
    return tuple(found)


# ------------------------------------------------------------------------------- control flow
ENDS = {"BRA", "BRX", "JMP", "EXIT", "RET", "BSYNC", "WARPSYNC"}


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Basic blocks: [start, end) of each, and who follows whom."""

    spans: tuple[tuple[int, int], ...]
    after: tuple[frozenset[int], ...]

    def before(self) -> list[set[int]]:
        """Predecessors."""
        found: list[set[int]] = [set() for _ in self.spans]
        for b, following in enumerate(self.after):
            for f in following:
                found[f].add(b)
        return found


def _always(i: Instruction) -> bool:
    """Whether nothing runs on past this instruction (BRA.U has a condition of its own)."""
    plain = not i.conditional and not re.match(r"\S+\s+!?U?P\d", i.text)
    return plain and i.mnemonic in ("BRA", "BRX", "JMP", "EXIT", "RET")


def _blocks(code: Code) -> _Blocks:
    size = len(code.instructions)
    starts = {0} | {n for n in code.labels.values() if n < size}
    starts |= {
        n + 1 for n, i in enumerate(code.instructions) if i.mnemonic in ENDS and n + 1 < size
    }
    order = sorted(starts)
    spans = list(zip(order, [*order[1:], size], strict=True))
    index = {start: b for b, (start, _) in enumerate(spans)}
    joins: dict[str, int] = {}  # reconvergence register -> where BSYNC goes
    after = []
    for start, end in spans:
        following = set()
        for i in code.instructions[start:end]:
            if i.mnemonic == "BSSY" and i.targets[0] in code.labels:
                joins[i.text.split()[1].rstrip(",")] = code.labels[i.targets[0]]
        last = code.instructions[end - 1]
        if last.mnemonic != "CALL":
            found = (code.labels[t] for t in last.targets if t in code.labels)
            following |= {index[n] for n in found if n in index}
        if last.mnemonic == "BSYNC" and (to := joins.get(last.text.split()[1])) in index:
            following.add(index[to])
        if not _always(last) and end < size:
            following.add(index[end])
        after.append(frozenset(following))
    return _Blocks(tuple(spans), tuple(after))


def _dominators(blocks: _Blocks) -> list[int]:
    """For each block the set (bits of an integer) of blocks on every path to it."""
    everything = (1 << len(blocks.spans)) - 1
    before = blocks.before()
    known = [everything] * len(blocks.spans)
    known[0] = 1
    changed = True
    while changed:
        changed = False
        for b in range(1, len(known)):
            new = everything
            for p in before[b]:
                new &= known[p]
            new |= 1 << b
            if new != known[b]:
                known[b], changed = new, True
    return known


def _reachable(blocks: _Blocks) -> set[int]:
    found, todo = {0}, [0]
    while todo:
        new = blocks.after[todo.pop()] - found
        found |= new
        todo += new
    return found


def _natural_loops(blocks: _Blocks) -> dict[int, set[int]]:
    """Header -> blocks, over all jumps back to a dominating block."""
    reachable = _reachable(blocks)
    dominators, before = _dominators(blocks), blocks.before()
    found: dict[int, set[int]] = {}
    for b, following in enumerate(blocks.after):
        if b not in reachable:  # the trap behind the last EXIT jumps to itself
            continue
        for header in (f for f in following if dominators[b] >> f & 1):
            body, todo = found.setdefault(header, {header}), [b]
            while todo:
                block = todo.pop()
                if block not in body:
                    body.add(block)
                    todo += before[block]
    return found


def _waits(body: list[Instruction]) -> bool:
    """Whether a loop does nothing but ask again."""
    works = any(i.unit in WORK or (i.unit == "fma" and i.mnemonic != "IMAD") for i in body)
    asks = any(i.mnemonic in WAITED_FOR for i in body)
    return asks and not works and len(body) <= WAIT_LOOP_LIMIT


def _innermost(code: Code) -> tuple[Loop, ...]:
    blocks = _blocks(code)

    def instructions(body: Iterable[int]) -> list[Instruction]:
        return [i for b in sorted(body) for i in code.instructions[slice(*blocks.spans[b])]]

    loops = _natural_loops(blocks)
    slow = {b for body in loops.values() if _waits(instructions(body)) for b in body}
    before = blocks.before()
    slow |= {b for b in range(len(before)) if before[b] and before[b] <= slow}
    working = {h: body - slow for h, body in loops.items() if not body <= slow}
    inner = [
        body
        for h, body in working.items()
        if not any(other != h and other in body for other in working)
    ]
    found = [Loop(instructions=tuple(instructions(body))) for body in inner if body]
    return tuple(sorted(found, key=lambda x: x.address))
