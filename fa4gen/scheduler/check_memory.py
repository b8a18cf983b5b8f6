"""Memory: shared memory and tensor memory hold everything, and nothing lies on top of another."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from fa4gen.diag import Diagnostic, Note
from fa4gen.ir.schedule import Buffer, Schedule, Space
from fa4gen.target import Target

from .place import (
    HEAD_BYTES,
    smem_bytes,
    smem_placements,
    solve_stages,
    tmem_columns,
    tmem_end,
)


def check(schedule: Schedule, target: Target) -> list[Diagnostic]:
    """All faults of memory, for a schedule whose names are right: FA0401-FA0406."""
    return [
        *_smem(schedule, target),
        *_overlays(schedule),
        *_spaces(schedule, target),
        *_tmem(schedule, target),
    ]


def _smem(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    stages = solve_stages(schedule, target)
    placements = smem_placements(schedule, target, stages)
    total = smem_bytes(placements)
    if total <= target.smem_bytes:
        return
    buffers = {b.name: b for b in schedule.buffers}
    largest = max(placements, key=lambda p: p.total_bytes)
    notes = [
        Note(
            text=_size(buffers[p.buffer], p.tile_bytes, p.total_bytes, stages[p.buffer], schedule),
            span=buffers[p.buffer].span,
        )
        for p in placements
    ]
    notes.append(Note(text=f"{HEAD_BYTES} bytes: mbarriers, before the first aligned tile"))
    yield Diagnostic(
        code="FA0401",
        title=f"{total} bytes of shared memory, a CTA has {target.smem_bytes}",
        span=buffers[largest.buffer].span,
        notes=tuple(notes),
        fix="take fewer stages (`stages: max`: as many as fit), smaller tiles or fewer query tiles",
    )


def _size(buffer: Buffer, tile: int, total: int, stages: int, schedule: Schedule) -> str:
    factors = [f"{stages} stages"] if stages > 1 else []
    factors += [f"{schedule.index.count} of {schedule.index.name}"] if buffer.per else []
    return f"{total} bytes: `{buffer.name}`, {' x '.join([*factors, f'{tile} bytes'])}"


def _overlays(schedule: Schedule) -> Iterator[Diagnostic]:
    """A buffer overlays one that has storage of its own, of the same space."""
    buffers = {b.name: b for b in schedule.buffers}
    for buffer in schedule.buffers:
        under = buffers.get(buffer.overlays or "")
        if under is None:
            continue
        wrong = ""
        if under is buffer:
            wrong = "itself"
        elif under.overlays:
            wrong = f"`{under.name}`, which overlays `{under.overlays}` itself"
        elif under.space is not buffer.space:
            wrong = f"`{under.name}`, and they lie in {buffer.space} and {under.space}"
        elif buffer.space is Space.RMEM:
            wrong = f"`{under.name}`, but registers are shared by the compiler, not by schedules"
        elif under.per is not buffer.per and (under.ring or under.stages != 1):
            wrong = (
                f"`{under.name}`, a ring, and one of them has an instance for each "
                f"`{schedule.index.name}`"
            )
        if wrong:
            yield Diagnostic(
                code="FA0404",
                title=f"`{buffer.name}` overlays {wrong}",
                span=buffer.span,
                notes=(Note(text=f"`{under.name}`", span=under.span),),
            )


def _spaces(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    """Each space exists on the target, and keys of one space stand with it alone."""
    for buffer in schedule.buffers:
        if buffer.space is Space.TMEM and not target.tmem_columns:
            title = f"`{buffer.name}` lies in tensor memory, which {target.name} does not have"
            yield Diagnostic(
                code="FA0405", title=title, span=buffer.span, fix="write `space: rmem`"
            )
        if buffer.space is Space.RMEM and target.tmem_columns:
            title = (
                f"`{buffer.name}` lies in registers; {target.name}'s products take tensor memory"
            )
            yield Diagnostic(
                code="FA0405", title=title, span=buffer.span, fix="write `space: tmem`"
            )
        for key, given, space in (
            ("columns", buffer.columns is not None, Space.TMEM),
            ("stages", buffer.stages != 1, Space.SMEM),
            ("ring", bool(buffer.ring), Space.SMEM),
            ("one_load", buffer.one_load, Space.SMEM),
        ):
            if given and buffer.space is not space:
                title = f"`{key}` is for buffers in {space}, `{buffer.name}` lies in {buffer.space}"
                yield Diagnostic(
                    code="FA0406", title=title, span=buffer.span, fix=f"take `{key}` away"
                )
        count = schedule.index.count if buffer.per else 1
        if buffer.columns is not None and len(buffer.columns) < count:
            title = (
                f"`{buffer.name}` exists {count} times, and has {len(buffer.columns)} first columns"
            )
            yield Diagnostic(
                code="FA0406",
                title=title,
                span=buffer.span,
                fix="leave `columns` out: the compiler places it",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Extent:
    """Tensor memory columns first … end - 1, of one instance of a buffer."""

    buffer: Buffer
    instance: int
    first: int
    end: int

    def __str__(self) -> str:
        index = f"[{self.instance}]" if self.buffer.per else ""
        return f"`{self.buffer.name}{index}` (columns {self.first} … {self.end - 1})"


def _tmem(schedule: Schedule, target: Target) -> Iterator[Diagnostic]:
    columns, widths = tmem_columns(schedule)
    end = tmem_end(columns, widths)
    extents = [
        _Extent(buffer=b, instance=n, first=c, end=c + widths[b.name])
        for b in schedule.buffers
        if b.name in columns
        for n, c in enumerate(columns[b.name])
    ]
    if target.tmem_columns and end > target.tmem_columns:
        last = max(extents, key=lambda e: e.end)
        yield Diagnostic(
            code="FA0402",
            title=f"{end} columns of tensor memory, a CTA has {target.tmem_columns}",
            span=last.buffer.span,
            notes=tuple(Note(text=str(e), span=e.buffer.span) for e in extents),
            fix="take smaller tiles or fewer query tiles, or let buffers overlay each other",
        )
    for a, b in combinations(extents, 2):
        over, under = (a, b) if a.buffer.overlays == b.buffer.name else (b, a)
        alike = over.buffer.per is under.buffer.per
        related = over.buffer.overlays == under.buffer.name
        related = related and (not alike or over.instance == under.instance)
        siblings = (
            not alike and a.buffer.overlays is not None and a.buffer.overlays == b.buffer.overlays
        )
        apart = a.end <= b.first or b.end <= a.first
        if not apart and not related and not siblings:
            yield Diagnostic(
                code="FA0403",
                title=f"{b} lies on {a}",
                span=b.buffer.span,
                notes=(Note(text=f"`{a.buffer.name}`", span=a.buffer.span),),
                fix="leave `columns` out: the compiler places them; or say `overlays`",
            )
        low, high = _instances(under, over, extents)
        if related and not (low <= over.first and over.end <= high):
            yield Diagnostic(
                code="FA0403",
                title=f"{over} is not inside {under}, which it overlays",
                span=over.buffer.span,
                notes=(Note(text=f"`{under.buffer.name}`", span=under.buffer.span),),
                fix="leave `columns` out: the compiler puts it at the end of the other",
            )


def _instances(under: _Extent, over: _Extent, extents: list[_Extent]) -> tuple[int, int]:
    """The columns that a tile may lie on: of one instance, or of all if it has none itself."""
    same = [e for e in extents if e.buffer is under.buffer]
    if over.buffer.per or not under.buffer.per:
        return under.first, under.end
    return min(e.first for e in same), max(e.end for e in same)
