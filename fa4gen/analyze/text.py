"""An analysis as text: a row for each unit, with its source; the bound; calls; other kernels."""

from collections.abc import Sequence

from fa4gen.cost.model import Loop
from fa4gen.cost.rates import DEVICES, Rates
from fa4gen.cost.timed import Arc
from fa4gen.runtime.report import CodeCounts

from .analysis import Analysis, tflops

COUNTED = ("issue slots", "MUFU", "FMA", "ALU")  # known better from machine code


def render(a: Analysis) -> str:
    """The whole text."""
    schedule = a.one.checked.schedule
    rows, keys = schedule.buffer_of("s").tile
    instances = a.load.instances
    head = (
        f"{a.one.name} for {schedule.target}: clocks of an SM for one block, modelled\n"
        f"  {instances} tile{'s' * (instances > 1)} of {rows} x {keys} scores, head dim"
        f" {schedule.head_dim}" + (f", {schedule.head_dim_v}" * (not _square(a)))
    )
    lines = [head, *_table(_units(a)), *_loop(a.loop)]
    if a.calls:
        device = DEVICES[schedule.target]
        clock = f"{device.clock_hz / 1e9:.2f} GHz"
        lines.append(f"calls, modelled for {device.name} ({device.sms} SMs at {clock})")
        lines += _table([["batch", "heads", "length", "ms", "TFLOP/s", "tiles"], *_calls(a)])
    return "\n".join(lines) + "\n"


def side_by_side(kernels: Sequence[tuple[str, CodeCounts]]) -> list[list[str]]:
    """A head and a row for each kernel: the loop with most exponentials (the softmax's; of equals
    the shortest, which has no masks), and what the whole kernel takes."""
    head = ["kernel", "loop", "MUFU", "FMA", "ALU", "tensor memory", "shared", "sync", "other"]
    named = ("mufu", "fma", "alu", "tensor_memory", "shared", "sync")
    table = [[*head, "registers", "setmaxnreg", "local memory", "code"]]
    for name, code in kernels:
        loop = code.most("MUFU.EX2")
        if loop is None:
            continue
        known = [loop.units.get(u, 0) for u in named]
        table.append(
            [
                name,
                *map(str, [loop.instructions, *known, loop.instructions - sum(known)]),
                str(code.registers),
                "/".join(map(str, sorted(set(code.setmaxnreg), reverse=True))),
                f"{code.local_loads + code.local_stores} accesses" if code.spills else "none",
                str(code.instructions),
            ]
        )
    return table


def markdown(table: Sequence[Sequence[str]]) -> str:
    """A table for documents."""
    head, *rows = table
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def _square(a: Analysis) -> bool:
    return a.one.checked.schedule.head_dim == a.one.checked.schedule.head_dim_v


def _units(a: Analysis) -> list[list[str]]:
    how = "counted in the machine code" if a.counts else "estimated from shapes"
    table = [["unit", "one tile", "CTA", "what it does in a clock", ""]]
    per_tile = {"exponentials": a.load.exponentials, **a.load.one}
    for unit, clocks in per_tile.items():
        whole = a.loop.loads.get(unit, clocks * a.load.instances)
        source = how if unit in COUNTED else "from shapes"
        if unit == "exponentials":
            source = "as if all were on MUFU (the published table's row)"
        one = f"{clocks:.0f}" if unit not in COUNTED or not a.counts else ""
        table.append([unit, one, f"{whole:.0f}", _rate(a.rates, unit), source])
    more = [(u, c) for u, c in a.loop.loads.items() if u not in per_tile]
    return table + [[u, "", f"{c:.0f}", _rate(a.rates, u), how] for u, c in more]


def _rate(r: Rates, unit: str) -> str:
    return {
        "tensor core": f"{r.tensor_flop} FLOP (FA4)",
        "exponentials": f"{r.exp2} results (FA4, CUDA guide)",
        "MUFU": f"{r.exp2} results (FA4, CUDA guide)",
        "FMA": f"{r.fma} results (CUDA guide)",
        "ALU": f"{r.alu} results (CUDA guide)",
        "shared memory": f"{r.smem_bytes} bytes (FA4)",
        "tensor memory": f"{r.tmem_bytes} bytes each way (assumed)",
        "L2 cache": f"{r.l2_bytes:.1f} bytes (assumed: A100's 5120 over H100's SMs)",
        "issue slots": "4 instructions",
    }.get(unit, "")


def _loop(loop: Loop) -> list[str]:
    unit = max(loop.loads, key=lambda u: loop.loads[u])
    return [
        f"busiest unit: {unit}, {loop.loads[unit]:.0f} clocks a block",
        f"slowest cycle: {loop.cycle.period:.0f} clocks a block, {_way(loop.cycle.arcs)}",
        f"pace: {loop.pace:.0f} clocks a block (units serve who asks first); bound: {loop.bound}",
    ]


def _way(arcs: Sequence[Arc]) -> str:
    """The names on the way round, each once in a row."""
    names: list[str] = []
    for a in arcs:
        if a.delay and (name := a.label) and name != (names[-1] if names else ""):
            names.append(name)
    return " -> ".join(names) or "none"


def _calls(a: Analysis) -> list[list[str]]:
    s = a.one.checked.schedule
    return [
        [
            str(p.batch),
            str(p.heads),
            str(p.seqlen_q),
            f"{x.seconds * 1e3:.3f}",
            f"{tflops(p, s.head_dim, s.head_dim_v, x):.0f}",
            str(x.tiles),
        ]
        for p, x in a.calls
    ]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows]
    return [("  " + "  ".join(row)).rstrip() for row in cells]
