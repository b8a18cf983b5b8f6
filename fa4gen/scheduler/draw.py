"""The pipeline as a picture: lanes of roles and units, operations of a few blocks, barriers as
arrows.

Operations stand as early as what they wait for allows, one step each: this shows order, not time.
"""

from collections import deque
from collections.abc import Container
from dataclasses import dataclass
from html import escape

from .evidence import TracingRun, trace
from .model import Do, System
from .run import Place
from .words import operation

WORD = (3,)  # blocks drawn: a first, a middle, a last
BOX_WIDTH, BOX_HEIGHT, LANE_HEIGHT, MARGIN, LABEL_WIDTH = 92, 24, 64, 24, 150
CELL = 18  # characters of a terminal column, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One operation of one block: its lane, the step at which it can begin at the earliest."""

    place: Place
    lane: str
    step: int

    @property
    def label(self) -> str:
        """'qk 1': the operation and its block."""
        return f"{operation(self.place.action)} {self.place.block}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrow:
    """An operation that waits at a barrier for another one."""

    source: int  # numbers of boxes
    target: int
    bar: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawing:
    """Boxes in lanes, and the arrows between them."""

    name: str
    lanes: tuple[str, ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...]


def drawing(system: System, word: tuple[int, ...] = WORD) -> Drawing:
    """Lays out the operations of one word."""
    run = trace(system, word)
    shown = {end: place for place, end in run.ends.items() if _shown(system, place)}
    order = sorted(shown)
    number = {end: n for n, end in enumerate(order)}
    steps: dict[int, int] = {}
    busy: dict[str, int] = {}  # lane -> step of its newest box
    arrows: list[Arrow] = []
    for end in order:
        before = _before(run, end, shown.keys())
        lane = _lane(system, shown[end])
        soonest = max((steps[b] for b in before), default=-1)
        steps[end] = busy[lane] = 1 + max(soonest, busy.get(lane, -1))
        arrows += [
            Arrow(source=number[b], target=number[end], bar=system.bars[bar].name)
            for b, bar in before.items()
            if bar >= 0
        ]
    boxes = tuple(Box(place=shown[e], lane=_lane(system, shown[e]), step=steps[e]) for e in order)
    lanes = tuple(dict.fromkeys(b.lane for b in boxes))
    return Drawing(name=system.name, lanes=lanes, boxes=boxes, arrows=tuple(arrows))


def _shown(system: System, place: Place) -> bool:
    """Of a role in two actors the first warp stands for both."""
    return not system.roles[place.action.role].name.endswith("(other warps)")


def _lane(system: System, place: Place) -> str:
    x = place.action
    if x.do is Do.ISSUE:
        return system.units[x.unit].name
    name = system.roles[x.role].name.removesuffix(" (first warp)")
    return f"{name} (TMA)" if x.do is Do.LOAD else name


def _before(run: TracingRun, end: int, shown: Container[int]) -> dict[int, int]:
    """The shown operations that this one directly comes after, with the barrier nearest to it."""
    found: dict[int, int] = {}
    todo = deque((link.source, link.bar) for link in run.links[end])
    seen = {end}
    while todo:
        here, bar = todo.popleft()
        if here in seen:
            continue
        seen.add(here)
        if here in shown:
            found[here] = bar
            continue
        todo += [(link.source, bar if bar >= 0 else link.bar) for link in run.links[here]]
    return found


def terminal(d: Drawing) -> str:
    """Lanes side by side, steps downwards; an operation that waited says for which barriers."""
    waits: dict[int, list[str]] = {}
    for a in d.arrows:
        waits.setdefault(a.target, []).append(a.bar.split("[")[0])
    cell = max(CELL, *(len(lane) + 2 for lane in d.lanes))
    rows = ["".join(lane.ljust(cell) for lane in d.lanes).rstrip()]
    for step in range(1 + max((b.step for b in d.boxes), default=0)):
        here = {b.lane: (n, b) for n, b in enumerate(d.boxes) if b.step == step}
        labels = [here[lane][1].label if lane in here else "." for lane in d.lanes]
        rows.append("".join(text[: cell - 1].ljust(cell) for text in labels).rstrip())
        bars = [
            ",".join(dict.fromkeys(waits.get(here[lane][0], ()))) if lane in here else ""
            for lane in d.lanes
        ]
        if any(bars):
            marks = [f"^{b}"[: cell - 1] if b else "" for b in bars]
            rows.append("".join(m.ljust(cell) for m in marks).rstrip())
    return "\n".join(rows)


def svg(d: Drawing) -> str:
    """Lanes below each other, steps to the right, one arrow a barrier (its name as a tooltip)."""
    width = LABEL_WIDTH + (1 + max((b.step for b in d.boxes), default=0)) * (BOX_WIDTH + MARGIN)
    height = MARGIN + len(d.lanes) * LANE_HEIGHT
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'font-family="sans-serif" font-size="12">',
        f"<title>{escape(d.name)}</title>",
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
        '<path d="M0,0 L7,3 L0,6 z" fill="#555"/></marker></defs>',
    ]
    for n, lane in enumerate(d.lanes):
        y = MARGIN + n * LANE_HEIGHT
        out.append(f'<text x="4" y="{y + 16}">{escape(lane)}</text>')
        out.append(
            f'<line x1="{LABEL_WIDTH - 8}" x2="{width}" y1="{y + 12}" y2="{y + 12}" stroke="#ddd"/>'
        )
    out += [_arrow(d, a) for a in d.arrows]
    for b in d.boxes:
        x, y = _corner(d, b)
        out.append(
            f'<rect x="{x}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" '
            f'fill="{_colour(b.place.block)}" stroke="#333"/>'
        )
        out.append(
            f'<text x="{x + BOX_WIDTH // 2}" y="{y + 16}" text-anchor="middle">'
            f"{escape(b.label)}</text>"
        )
    return "\n".join([*out, "</svg>"]) + "\n"


def _corner(d: Drawing, b: Box) -> tuple[int, int]:
    return LABEL_WIDTH + b.step * (BOX_WIDTH + MARGIN), MARGIN + d.lanes.index(b.lane) * LANE_HEIGHT


def _colour(block: int) -> str:
    return ("#dbe9ff", "#ffe8cc", "#dcf5dc", "#f3dcf5")[block % 4]


def _arrow(d: Drawing, a: Arrow) -> str:
    (x1, y1), (x2, y2) = _corner(d, d.boxes[a.source]), _corner(d, d.boxes[a.target])
    x1, y1, y2 = x1 + BOX_WIDTH, y1 + BOX_HEIGHT // 2, y2 + BOX_HEIGHT // 2
    bend = f"M{x1},{y1} C{x1 + MARGIN},{y1} {x2 - MARGIN},{y2} {x2},{y2}"
    return (
        f'<path d="{bend}" fill="none" stroke="#555" marker-end="url(#tip)">'
        f"<title>{escape(a.bar)}</title></path>"
    )
