"""Single damages to a kernel's synchronisation, for mutation tests of kernels and of the emulator.

Each damage is one edit of PTX text: an arrive, wait, commit or fence that is missing or comes too
early, a phase flipped, a count or a number of bytes wrong. A damaged kernel must be caught (race,
hang, lapped phase, wrong value); one that passes in silence was redundant, or shows a hole.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

# opcode prefixes whose removal is a damage, by the word that names it
REMOVED = {
    "arrive": ("mbarrier.arrive.",),
    "commit": (
        "tcgen05.commit.",
        "cp.async.bulk.commit_group",
        "cp.async.mbarrier.arrive.",
        "wgmma.commit_group.",
    ),
    "fence": ("fence.proxy.", "fence.mbarrier_init.", "tcgen05.fence", "wgmma.fence."),
    "wait": (
        "tcgen05.wait::",
        "cp.async.bulk.wait_group",
        "wgmma.wait_group.",
        "barrier.cluster.wait",
    ),
    "barrier": ("bar.sync", "barrier.sync", "barrier.cluster.arrive", "bar.arrive"),
    "free": ("tcgen05.dealloc.", "tcgen05.relinquish_alloc_permit."),
}
MOVED = ("mbarrier.arrive.", "tcgen05.commit.", "tcgen05.fence::", "fence.proxy.", "bar.arrive")
_WAIT = re.compile(r"mbarrier\.try_wait\.parity\S*\s+(\S+),\s*\[[^\]]+\],\s*([%\w]+)")
_INIT = re.compile(r"(mbarrier\.init\S*\s+\[[^\]]+\],\s*)([%\w]+)(\s*;)")
_BYTES = re.compile(
    r"(mbarrier\.(?:arrive\.)?expect_tx[^,;]*(?:,\s*\[[^\]]+\])?,\s*)([%\w]+)(\s*;)"
)
_LABEL = re.compile(r"^\s*[\w$]+:")
_EFFECT = re.compile(
    r"^\s*(?:@!?[%\w]+\s+)?(?:ld|st|cp|tcgen05|wgmma|mbarrier|bar|fence|stmatrix)\S*\."
)
_REGISTER = re.compile(r"%\w+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """One edit: `line` counts from 1; `name` is unique in its text and says what was done."""

    name: str
    line: int
    original: str
    text: str


def damages(ptx: str) -> Iterator[Damage]:
    """Every single damage to a PTX text, in the order of its lines."""
    lines = ptx.split("\n")
    for at, line in enumerate(lines):
        for kind, changed in _edits(lines, at):
            text = "\n".join(changed)
            yield Damage(name=f"{kind}@{at + 1}", line=at + 1, original=line.strip(), text=text)


def _edits(lines: list[str], at: int) -> Iterator[tuple[str, list[str]]]:
    opcode = re.sub(r"^\s*(?:@!?[%\w]+\s+)?", "", lines[at])
    for kind, prefixes in REMOVED.items():
        if opcode.startswith(prefixes):
            yield f"no-{kind}", [*lines[:at], "", *lines[at + 1 :]]
    for kind, changed in _rewritten(lines, lines[at]):
        yield kind, [*lines[:at], changed, *lines[at + 1 :]]
    earliest = _earliest(lines, at) if opcode.startswith(MOVED) else at
    if any(_EFFECT.search(passed) for passed in lines[earliest:at]):  # else nothing is passed over
        moved = f"{lines[at]} {lines[earliest]}"
        yield "early", [*lines[:earliest], moved, *lines[earliest + 1 : at], "", *lines[at + 1 :]]


def _rewritten(lines: list[str], line: str) -> Iterator[tuple[str, str]]:
    wait = _WAIT.search(line)
    if wait:
        yield "no-wait", f"mov.pred {wait[1]}, -1;"
        yield "flipped-phase", _flipped(line, wait[2])
    for kind, pattern, steps in (("count", _INIT, (-1, 1)), ("bytes", _BYTES, (-16, 16))):
        found = pattern.search(line)
        value = _constant(lines, found[2]) if found else None
        if found and value is not None:
            for step in (s for s in steps if value + s > 0):
                changed = f"{found[1]}{value + step}{found[3]}"
                yield f"{kind}{step:+}", line.replace(found[0], changed)


def _flipped(line: str, parity: str) -> str:
    if not parity.startswith("%"):
        flipped = str(1 - int(parity))
        return re.sub(rf"(\],\s*){parity}\b", rf"\g<1>{flipped}", line, count=1)
    changed = re.sub(rf"(\],\s*){re.escape(parity)}\b", r"\g<1>%damage", line, count=1)
    return f"{{ .reg .b32 %damage; xor.b32 %damage, {parity}, 1; {changed} }}"


def _constant(lines: list[str], operand: str) -> int | None:
    """The value of an immediate, or of a register that the text sets once, to an immediate."""
    if not operand.startswith("%"):
        return int(operand, 0)
    writes = [w for w in lines if re.search(rf"\s{re.escape(operand)},", w) and _writes(w, operand)]
    found = re.search(r",\s*(\d+)\s*;", writes[0]) if len(writes) == 1 else None
    return int(found[1]) if found and "mov" in writes[0] else None


def _writes(line: str, register: str) -> bool:
    found = re.match(r"\s*(?:@!?[%\w]+\s+)?[\w.:]+\s+(%\w+)", line)
    return found is not None and found[1] == register


def _earliest(lines: list[str], at: int) -> int:
    """The first line of the basic block before which the statement at `at` could stand."""
    used = set(_REGISTER.findall(lines[at].split("[", 1)[-1]))
    used |= set(re.findall(r"@!?(%\w+)", lines[at]))
    first = at
    for i in range(at - 1, -1, -1):
        text = lines[i].strip()
        stops = _LABEL.match(text) or "bra" in text or text.startswith(("{", "}", ".", "@"))
        if stops or any(_writes(lines[i], register) for register in used):
            return first
        if text and not text.startswith("//"):
            first = i
    return first
