"""Barriers and turns. `.rest` and a ring's barrier without a side are spread out here."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from fa4gen.diag import Span
from fa4gen.ir.schedule import Barrier, End, Index, Operation, Step, Turn

from .declare import check_at
from .expressions import Environment
from .phrases import EdgeName, EndToken, edge_name
from .reader import Scalar
from .schema import Fields

Ends = tuple[tuple[End, ...], ...]
Tokens = tuple[tuple[EndToken, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """Makes edges for one index; `parts`: how many each operation hands its result over in."""

    env: Environment
    index: Index
    parts: Mapping[str, int]

    def barriers(self, key: Scalar, fields: Fields) -> Iterable[Barrier]:
        """The barriers that one entry stands for."""
        name = edge_name(key, self.env.bag)
        if name is None:
            return
        check_at(name.name, name.at, key.span, self.index, self.env)
        barrier = Barrier(
            name=name.name,
            per=name.at is not None,
            level=fields.text("level") or "block",
            distance=fields.integer("distance", 0),
            kind=fields.text("kind") or "mbarrier",
            span=key.span,
        )
        if fields.has("ring"):
            yield from self._ring_sides(barrier, fields, key.span)
            return
        for side in ("after", "before"):
            if not fields.has(side):
                self.env.error("FA0107", f"`{name.name}` needs a key `{side}`", fields.span)
        if fields.has("side"):
            self.env.error("FA0106", "`side` goes with `ring`", fields.at("side"))
        yield from self._parted(barrier, fields, name, key.span)

    def _ring_sides(self, barrier: Barrier, fields: Fields, span: Span) -> Iterable[Barrier]:
        for key in ("after", "before", "level", "distance", "kind"):
            if fields.has(key):
                title = (
                    f"a ring's barrier has no `{key}`: who fills and reads the ring are its ends"
                )
                self.env.error("FA0106", title, fields.at(key), f"take `{key}` away")
        ring, side = fields.text("ring"), fields.text("side")
        if barrier.per:
            self.env.error("FA0206", "a ring's barrier has no index of its own", span)
        for one in (side,) if side else ("full", "empty"):
            name = barrier.name if side else f"{barrier.name}_{one}"
            yield replace(barrier, name=name, ring=ring, side=one)

    def _parted(
        self, barrier: Barrier, fields: Fields, name: EdgeName, span: Span
    ) -> Iterable[Barrier]:
        """One barrier; where its ends say `.rest`, one for each part but the first."""
        sides = fields.ends("after"), fields.ends("before")
        rest = [e for s in sides for alternative in s for e in alternative if e.part == "rest"]
        if not rest:
            after, before = (self._side(s, name, None) for s in sides)
            yield replace(barrier, after=after, before=before)
            return
        counts = sorted({self.parts.get(e.name, 1) for e in rest})
        if len(counts) > 1:
            title = f"the ends of `{name.name}` have different numbers of parts: {counts}"
            self.env.error("FA0208", title, span)
        for part in range(1, counts[-1]):
            after, before = (self._side(s, name, part) for s in sides)
            numbered = barrier.name if counts[-1] == 2 else f"{barrier.name}_{part}"
            yield replace(barrier, name=numbered, after=after, before=before)

    def _side(self, side: Tokens, name: EdgeName, rest: int | None) -> Ends:
        return tuple(tuple(self._end(e, name, rest) for e in alternative) for alternative in side)

    def _end(self, e: EndToken, name: EdgeName, rest: int | None) -> End:
        check_at(e.name, e.at, e.span, self.index, self.env)
        if isinstance(e.at, str):
            instance: int | str | None = "same" if name.at else "all"
        else:
            instance = e.at
        part = rest if e.part == "rest" else e.part
        known = self.parts.get(e.name, 1)
        if isinstance(part, int) and part >= known:
            title = f"`{e.name}` hands over its result in {known} part{'s' * (known > 1)}, from 0"
            self.env.error("FA0208", title, e.span, "`.rest` stands for each part but the first")
        return End(
            operation=e.name,
            part=part if isinstance(part, int) else None,
            instance=instance,
            span=e.span,
        )

    def turns(
        self, key: Scalar, fields: Fields, operations: tuple[Operation, ...]
    ) -> Iterable[Turn]:
        """The turn that one entry stands for."""
        over = fields.text("over")
        if over and over != self.index.name:
            title = f"the index is called `{self.index.name}`, not `{over}`"
            self.env.error("FA0206", title, fields.at("over"))
        around = fields.steps("around")
        if len(around) != 2:
            if fields.values.get("around") is not None:
                title = f"`around` names a first and a last step, not {len(around)}"
                self.env.error("FA0106", title, fields.at("around"))
            return
        first, last = (
            Step(
                operation=t.name,
                instance=t.at if isinstance(t.at, int) else None,
                ahead=t.ahead,
                span=t.span,
            )
            for t in around
        )
        role = next((o.role for o in operations if o.name == first.operation), "")
        kind = fields.text("kind") or "named"
        yield Turn(name=key.text, first=first, last=last, role=role, kind=kind, span=key.span)
