"""`fa4gen build`: from a schedule to a folder with source, PTX, cubin, shared object and report.

Members of the shipped schedules (each mask, bf16) also have their source under `generated/`, beside
the folder of schedules: committed, and never written for a member that was asked for by `--set`.
"""

import difflib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from fa4gen.diag import Diagnostic, error
from fa4gen.driver import Checked, check, member_name
from fa4gen.emit.render import KernelSource, render
from fa4gen.ir.ops import KINDS
from fa4gen.ir.schedule import Schedule
from fa4gen.options import Options
from fa4gen.runtime import report_text
from fa4gen.runtime.compile import Compiled, Request, compile_cached, copy_to
from fa4gen.runtime.report import LoopCount, Report, build_report

GENERATED = "generated"
SCHEDULES = "schedules"


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One kernel of a schedule: checked, printed, and its name."""

    name: str
    checked: Checked
    source: KernelSource


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build made, and where."""

    name: str
    folder: Path
    report: Report
    compiled: Compiled
    exponentials: tuple[int, int] | None  # of one row and block: on MUFU, on the FMA units
    products: int  # MMA instructions of a KV block and query tile

    def summary(self) -> str:
        """The report, and what it says of a block, as text."""
        lines = [report_text.render(self.report).rstrip()]
        lines.append("a KV block and query tile")
        lines.append(f"  MMA instructions: {self.products}")
        if self.exponentials:
            mufu, fma = self.exponentials
            lines.append(
                f"  exponentials of a row: {mufu} on MUFU, {fma} on the FMA units"
                f" ({fma / (mufu + fma):.4g} of them)"
            )
        return "\n".join(lines) + "\n"

    def as_dict(self) -> dict[str, object]:
        """JSON types alone."""
        return {
            "name": self.name,
            "folder": str(self.folder),
            "products": self.products,
            "exponentials": list(self.exponentials) if self.exponentials else None,
            "report": self.report.as_dict(),
        }


def members(path: str | Path, settings: Mapping[str, str], variant: str | None) -> Iterator[Member]:
    """The members to build: the one that was asked for, or each mask that the schedule serves."""
    asked = [dict(settings)]
    if "causal" not in settings:
        served = check(path, settings=settings, variant=variant).schedule.serves
        asked = [{**settings, "causal": str(c).lower()} for c in served.get("causal", (False,))]
    for one in asked:
        yield member(path, one, variant)


def member(path: str | Path, settings: Mapping[str, str], variant: str | None) -> Member:
    """One member, checked and printed. Raises Fa4genError."""
    checked = check(path, settings=settings, variant=variant)
    name = member_name(checked.schedule) + (f"_{variant}" if variant else "")
    return Member(name=name, checked=checked, source=render(checked.program))


def generated_file(path: str | Path, schedule: Schedule, name: str) -> Path | None:
    """Where the committed source of a shipped member lies; None for members that have none."""
    folder = Path(path).resolve().parent
    home = folder.parent / GENERATED
    single = len(schedule.serves.get("head_dim", ())) == 1
    plain = schedule.dtype == "bf16" and not schedule.features
    if folder.name != SCHEDULES or not home.is_dir() or not single or not plain:
        return None
    return home / f"{name}.py"


def write_generated(file: Path, text: str) -> None:
    """Writes a source as a whole or not at all."""
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as out:
        out.write(text)
    Path(temporary).chmod(0o644)
    Path(temporary).replace(file)


def stale(file: Path, text: str) -> str:
    """The difference between a committed source and what would be written; '' if there is none."""
    old = file.read_text(encoding="utf-8") if file.exists() else ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        text.splitlines(keepends=True),
        str(file),
        "as built now",
        n=1,
    )
    return "".join(lines)


def build(one: Member, folder: Path, options: Options) -> Built:
    """Compiles a member (or takes it from the cache) into `folder`, with its report.

    Raises Fa4genError FA07xx for what the toolchain refuses.
    """
    schedule = one.checked.schedule
    request = Request(name=one.name, target=schedule.target, text=one.source.text)
    compiled = compile_cached(request, options)
    program = one.checked.program.value
    report = build_report(compiled, text=one.source.text, program=program, plan=one.checked.plan)
    built = Built(
        name=one.name,
        folder=folder,
        report=report,
        compiled=compiled,
        exponentials=_exponentials(report, one.checked),
        products=_products(report, one.checked),
    )
    folder.mkdir(parents=True, exist_ok=True)
    copy_to(compiled, folder)
    (folder / f"{one.name}.py").write_text(one.source.text, encoding="utf-8")
    (folder / "report.txt").write_text(built.summary(), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(built.as_dict(), indent=1), encoding="utf-8")
    return built


def spills(built: Built, schedule: Schedule, severity: str) -> Diagnostic | None:
    """A kernel that keeps registers in local memory is slow: FA0710 with the numbers."""
    code = built.report.code
    if not code.spills:
        return None
    return Diagnostic(
        code="FA0710",
        severity=severity,
        title=f"`{built.name}` spills: {code.local_stores} stores to and {code.local_loads} loads "
        f"from local memory",
        span=schedule.span,
        why="the tiles of a role need more registers than its budget",
        fix="take a smaller `tile_n`, or give the role more `registers`",
    )


def _unmasked(report: Report, opcode: str) -> LoopCount | None:
    """The innermost loop with most of an instruction, without masks where there are two."""
    loops = [x for x in report.code.loops if x.opcodes.get(opcode, 0)]
    plain = [x for x in loops if x.segment != "masked"] or loops
    return max(plain, key=lambda x: x.opcodes[opcode], default=None)


def _exponentials(report: Report, checked: Checked) -> tuple[int, int] | None:
    """Of one row of a block: MUFU exponentials (the factor of O apart), and all others."""
    exp = [o for o in checked.schedule.operations if o.kind == "exp2_convert"]
    loop = _unmasked(report, "MUFU.EX2")
    if not exp or loop is None:
        return None
    keys = checked.schedule.buffer_of(exp[0].writes[0]).tile[1]
    mufu = loop.opcodes["MUFU.EX2"] - 1
    return mufu, keys - mufu


def _products(report: Report, checked: Checked) -> int:
    """MMA instructions of a block and query tile: of the loop that has most of them."""
    found = [_unmasked(report, op) for op in ("UTCHMMA", "HGMMA")]
    counts = [x.opcodes.get("UTCHMMA", 0) + x.opcodes.get("HGMMA", 0) for x in found if x]
    if not counts:
        return 0
    issues = next(o.role for o in checked.schedule.operations if KINDS[o.kind].product)
    role = next(r for r in checked.program.value.roles if r.name == issues)
    return max(counts) // (1 if role.instances > 1 else checked.schedule.index.count)


def refuse_missing(paths: list[str]) -> None:
    """Files that are not there are named before anything is built."""
    for path in paths:
        if not Path(path).is_file():
            raise error(
                "FA0111", f"there is no file `{path}`", fix="`fa4gen list` shows what there is"
            )
