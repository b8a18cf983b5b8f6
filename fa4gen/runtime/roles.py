"""Whose loop is it: the parts of a generated file, and the part that machine code came from.

A generated file's kernel has a comment line `# ==== role NAME, ...` at the head of each role; its
loops are `for` statements (a comment on that line names the segment); device functions stand before
the kernel. Code of an inlined device function carries that function's lines: it says what a loop
computes, and the other lines say whose loop it is.
"""

import ast
import re
from collections import Counter
from dataclasses import dataclass

ROLE = re.compile(r"\s*# =+ role ([\w\[\]]+)")
FRAME = ("kernel", "launch", "example_arguments")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Lines first to last (inclusive) of a generated file: a role, a loop or a device function."""

    name: str
    first: int
    last: int

    def holds(self, line: int) -> bool:
        """Whether the line lies within."""
        return self.first <= line <= self.last


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A generated file by role, by `for` loop and by device function."""

    roles: tuple[Part, ...]
    loops: tuple[Part, ...]
    functions: tuple[Part, ...]

    def role_of(self, lines: Counter[int]) -> str:
        """The role that most of these lines (of one loop's instructions) lie in, or nothing."""
        return _most(self.roles, lines)

    def loop_of(self, lines: Counter[int]) -> Part | None:
        """The `for` statement that holds most of them; of several the innermost."""
        votes = [(_votes(p, lines), p.first - p.last, p) for p in self.loops]
        votes = [v for v in votes if v[0]]
        return max(votes, key=lambda v: v[:2])[2] if votes else None

    def function_of(self, line: int) -> str:
        """The device function that a line belongs to, or nothing."""
        return next((p.name for p in self.functions if p.holds(line)), "")


def parts_of(text: str) -> Parts:
    """Reads a generated file; one that is not Python has no parts."""
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return Parts(roles=(), loops=(), functions=())
    lines = text.splitlines()
    tops = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    ends = sorted(n.end_lineno or n.lineno for n in tops)
    heads = [(m[1], n) for n, x in enumerate(lines, 1) if (m := ROLE.match(x))]
    roles = []
    for i, (name, first) in enumerate(heads):
        limit = next((e for e in ends if e >= first), len(lines))  # the kernel's last line
        following = heads[i + 1][1] - 1 if i + 1 < len(heads) else limit
        roles.append(Part(name=name, first=first, last=min(following, limit)))
    return Parts(
        roles=tuple(roles),
        loops=tuple(
            Part(name=_comment(lines[n.lineno - 1]), first=n.lineno, last=n.end_lineno or n.lineno)
            for top in tops
            if top.name == FRAME[0]
            for n in ast.walk(top)
            if isinstance(n, ast.For) and "range_constexpr" not in ast.unparse(n.iter)
        ),
        functions=tuple(
            Part(name=n.name, first=n.lineno, last=n.end_lineno or n.lineno)
            for n in tops
            if n.name not in FRAME
        ),
    )


def _comment(line: str) -> str:
    m = re.search(r"#\s*([\w\[\]-]+)\s*$", line)
    return m[1] if m else ""


def _votes(part: Part, lines: Counter[int]) -> int:
    return sum(n for line, n in lines.items() if part.holds(line))


def _most(parts: tuple[Part, ...], lines: Counter[int]) -> str:
    votes: Counter[str] = Counter()
    for part in parts:
        votes[part.name] += _votes(part, lines)
    best = votes.most_common(1)
    return best[0][0] if best and best[0][1] else ""
