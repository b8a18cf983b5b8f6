"""What a search found: a table, a plot, and the winner as an ordinary schedule file."""

import math
import os
from collections.abc import Sequence
from pathlib import Path

from fa4gen.dsl.search import axes, choices, label, schedule_text

from .points import Point, ranked, refusals, replaced
from .search import Search

SIZE, EDGE = 420, 50  # of the plot, in pixels
PAGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{size}"
 font-family="sans-serif" font-size="12">
<rect width="100%" height="100%" fill="white"/>
<path d="M{edge} {edge}V{end}H{end}" fill="none" stroke="black"/>
<text x="{middle}" y="{below}" text-anchor="middle">modelled, ms</text>
<text x="15" y="{middle}" text-anchor="middle"
 transform="rotate(-90 15 {middle})">measured, ms</text>
{body}
</svg>
"""


def table(points: Sequence[Point], most: int = 20) -> str:
    """Counts of what was left out and why, then the best points."""
    order = ranked(points)
    faulty = [p for p in points if p.faults]
    lines = [f"{len(points)} combinations, {len(order)} sound"]
    for code, n in refusals(points).items():
        why = next(p.why for p in points if p.refused == code)
        lines.append(f"  {n} refused, {code}: {why}")
    lines += [f"  {p.label}: wrong on the GPU: {'; '.join(p.faults)}" for p in faulty]
    seen = [p for p in order if p.measured_seconds]
    if seen:
        where = f"{seen[0].device}, beside {seen[0].reference or 'no reference'}"
        lines.append(f"measured: {len(seen)} on {where}")
    else:
        lines.append("none was measured: ranked by the model alone")
    lines.append(f"  {'modelled ms':>12}  {'measured ms':>12}  {'speed':>6}  choice")
    for p in order[:most]:
        counted = "" if p.modelled_seconds else " (from shapes)"
        ran = f"{p.measured_seconds * 1e3:.3f}" if p.measured_seconds else ""
        speed = f"{p.speed:.3f}" if p.speed else ""
        spills = " spills" if p.spills else ""
        lines.append(
            f"  {p.predicted * 1e3:12.3f}  {ran:>12}  {speed:>6}  {p.label}{counted}{spills}"
        )
    if len(seen) > 2:
        rho = spearman([p.predicted for p in seen], [p.measured_seconds or 0.0 for p in seen])
        lines.append(f"rank correlation of modelled and measured: {rho:.3f} over {len(seen)}")
    return "\n".join(lines) + "\n"


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN where one side has one rank."""
    a, b = _ranks(first), _ranks(second)
    mean = (len(a) - 1) / 2
    covariance = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)
    return covariance / math.sqrt(spread) if spread else math.nan


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(values)
    return [order.index(v) + (order.count(v) - 1) / 2 for v in values]


def plot(points: Sequence[Point]) -> str:
    """An SVG of modelled against measured times; '' if nothing was measured."""
    seen = [p for p in ranked(points) if p.measured_seconds]
    if not seen:
        return ""
    across = [p.predicted * 1e3 for p in seen]
    up = [(p.measured_seconds or 0.0) * 1e3 for p in seen]
    end = SIZE - EDGE

    def place(value: float, values: Sequence[float]) -> float:
        low, high = min(values), max(values)
        return EDGE + 10 + (end - EDGE - 20) * ((value - low) / (high - low) if high > low else 0.5)

    dots = [
        f'<circle cx="{place(x, across):.1f}" cy="{SIZE - place(y, up):.1f}" r="4"'
        f' fill="steelblue"><title>{p.label}: {x:.3f}, {y:.3f}</title></circle>'
        for p, x, y in zip(seen, across, up, strict=True)
    ]
    ticks = [
        f'<text x="{place(v, across):.1f}" y="{end + 15}" text-anchor="middle">{v:.3f}</text>'
        for v in (min(across), max(across))
    ]
    ticks += [
        f'<text x="{EDGE - 5}" y="{SIZE - place(v, up) + 4:.1f}" text-anchor="end">{v:.3f}</text>'
        for v in (min(up), max(up))
    ]
    body = "\n".join([*dots, *ticks])
    return PAGE.format(size=SIZE, edge=EDGE, end=end, middle=SIZE // 2, below=SIZE - 12, body=body)


def write_winner(search: Search, points: Sequence[Point]) -> Path | None:
    """The best point as `best.yaml`, with where its numbers come from; None if none is sound."""
    order = ranked(points)
    if not order:
        return None
    best, file = order[0], search.folder.path / "best.yaml"
    found = {label(c): c for c in choices(axes(search.base, search.tries))}
    batch, heads, length = search.shape
    shape = f"batch {batch}, {heads} heads, {length} tokens"
    how = f"modelled: {best.predicted * 1e3:.3f} ms"
    if best.measured_seconds:
        speed = f", {best.speed:.3f} of {best.reference}" if best.speed else ""
        how = f"measured on {best.device}: {best.measured_seconds * 1e3:.3f} ms{speed}"
    problem = ", ".join(f"{k} {v}" for k, v in search.settings.items()) or "as the base serves it"
    comment = f"Found by `fa4gen explore {search.base.name}` ({problem}; {shape})."
    comment += f"\n{how}; the best of {len(points)} combinations.\n{best.label}"
    extends = os.path.relpath(search.base.resolve(), search.folder.path.resolve())
    name = f"{search.base.stem}_best"
    replaced(file, schedule_text(found[best.label], name=name, extends=extends, comment=comment))
    return file
