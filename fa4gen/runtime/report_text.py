"""A report as text for people: a section each for registers, memory, barriers and loops."""

from collections.abc import Sequence

from .report import CodeCounts, LoopCount, MapRow, Report
from .units import UNITS

FEW = 8  # loops of fewer instructions (a store loop's wait, say) are left out of the table


def render(report: Report, beside: tuple[str, CodeCounts] | None = None) -> str:
    """The whole text; `beside` is the name and the counts of another kernel, to compare with."""
    sections = [
        [f"{report.name} for {report.target}"],
        _registers(report),
        _map("shared memory", "bytes", report.smem_bytes, report.smem),
        _map("tensor memory", "columns", report.tmem_columns, report.tmem),
        _barriers(report),
        ["loops: instructions of one iteration (SASS; slow paths of waits left out)"],
        _table(_loop_rows(report.code)),
        _functions(report.code),
    ]
    if beside:
        name, code = beside
        sections += [[f"beside it: {name}, {_spills(code)}"], _table(_loop_rows(code))]
    said = [f"  {r.at + ': ' if r.at else ''}{r.text}" for r in report.remarks]
    sections += [["ptxas said", *said]] if said else []
    return "\n".join(line.rstrip() for s in sections for line in s) + "\n"


def _registers(report: Report) -> list[str]:
    code = report.code
    shares = ", ".join(
        f"{name} {registers} ({warps} warp{'s' if warps > 1 else ''})"
        for name, warps, registers in report.roles
    )
    return [
        f"registers: {code.registers} a thread at launch; then {shares}",
        f"spills: {_spills(code)}",
        f"code: {code.instructions} instructions",
    ]


def _spills(code: CodeCounts) -> str:
    if not code.spills:
        return "none, no local memory"
    return (
        f"{code.local_bytes} bytes of local memory a thread,"
        f" {code.local_loads} loads, {code.local_stores} stores"
    )


def _map(title: str, unit: str, total: int, rows: Sequence[MapRow]) -> list[str]:
    if not rows:
        return []
    lines = []
    for r in rows:
        if r.first >= 0:
            lines.append([r.buffer, f"{r.first} to {r.first + r.extent - 1}"])
        else:
            lines.append([r.buffer, f"{r.copies} x {r.extent:,} = {r.total:,}"])
    return [f"{title}: {total:,} {unit}", *_table(lines)]


def _barriers(report: Report) -> list[str]:
    if not report.barriers:
        return []
    head = ["barrier", "kind", "first", "copies", "arrivals", "bytes", "who arrives"]
    rows = [
        [
            b.name,
            b.kind,
            str(b.first),
            str(b.copies),
            str(b.arrive_count),
            f"{b.tx_bytes:,}" if b.tx_bytes else "",
            ", ".join(b.arrivals),
        ]
        for b in report.barriers
    ]
    return ["barriers", *_table([head, *rows])]


def _loop_rows(code: CodeCounts) -> list[list[str]]:
    """A head and a row for each loop; columns of units that no loop uses are left out."""
    loops = [x for x in code.loops if x.instructions >= FEW]
    units = [u for u in UNITS if any(x.units.get(u) for x in loops)]
    head = ["role", "segment", "all", *(u.replace("_", " ") for u in units), "of them"]
    rows = [
        [
            x.role or f"at {x.address:#x}",
            x.segment,
            str(x.instructions),
            *(str(x.units.get(u, "")) for u in units),
            _of_them(x),
        ]
        for x in loops
    ]
    return [head, *rows]


def _of_them(loop: LoopCount) -> str:
    """What readers ask for first: products, exponentials."""
    wanted = ("UTCHMMA", "HGMMA", "MUFU.EX2", "LDTM", "STTM", "R2UR")
    return ", ".join(f"{loop.opcodes[w]} {w}" for w in wanted if loop.opcodes.get(w))


def _functions(code: CodeCounts) -> list[str]:
    """What the loops compute, by the device function that the code was inlined from."""
    lines = []
    for loop in (x for x in code.loops if x.functions):
        shares = []
        for name, opcodes in loop.functions.items():
            exponentials = opcodes.get("MUFU.EX2", 0)
            of = f" ({exponentials} MUFU.EX2)" if exponentials else ""
            shares.append(f"{name} {sum(opcodes.values())}{of}")
        where = f" {loop.segment}" if loop.segment else ""
        lines.append(f"  {loop.role}{where}: {', '.join(shares)}")
    return ["by device function", *lines] if lines else []


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows in columns: words to the left, columns of numbers to the right."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, c)) for c in columns]
    right = [all(_number(x) for x in c[1:]) for c in columns]

    def cell(text: str, n: int) -> str:
        return text.rjust(widths[n]) if right[n] else text.ljust(widths[n])

    return ["  " + "  ".join(cell(t, n) for n, t in enumerate(r)) for r in rows]


def _number(text: str) -> bool:
    return not text or text.replace(",", "").isdigit()
