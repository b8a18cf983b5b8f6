"""The tree of a schedule, with its problem bound, to `ir.schedule.Schedule`.

Names between sections (operations, buffers, roles) are taken as written; whether they exist is for the
checks. What depends on the index or on parts is spread out here: steps `x[s]` of a role without
instances, and ends `x.rest`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from types import MappingProxyType

from fa4gen.diag import Bag, Span
from fa4gen.ir.schedule import (
    Barrier,
    Buffer,
    End,
    Index,
    Operation,
    Role,
    Schedule,
    Space,
    Step,
    Steps,
    Turn,
)

from .expressions import Environment
from .language import PROBLEM, ROOT, SERVES, STEP_SECTIONS, plain
from .phrases import EdgeName, EndToken, StepToken, edge_name
from .reader import Map, Scalar, Value
from .schema import Fields

_EMPTY = Map(entries=(), span=Span("", 1, 1))
Serves = Mapping[str, tuple[object, ...]]


def bind(tree: Map, file: str, asked: Mapping[str, Scalar], bag: Bag) -> Schedule:
    """The schedule that a tree declares, for the problem asked for (else for the first it serves).

    Raises Fa4genError with every fault of shape, name of a key, value or reference to a parameter.
    """
    params = tree.get("params")
    params = params if isinstance(params, Map) else _EMPTY
    serves = _serves(tree, Environment(params=params, problem={}, mask="full", bag=bag))
    problem = _problem(serves, asked, bag)
    bound = None
    for mask in _masks(serves, problem):
        env = Environment(params=params, problem=problem, mask=mask, bag=Bag(sources=bag.sources))
        root = ROOT.read(tree, env)
        if isinstance(root, Fields):
            bound = _Binder(env=env, file=file, serves=serves, root=root).schedule()
        for diagnostic in env.bag.found:
            if diagnostic not in bag.found:
                bag.add(diagnostic)
    bag.raise_if_any()
    if bound is None:
        raise AssertionError("a tree without faults has a schedule")
    return bound


def _serves(tree: Map, env: Environment) -> Serves:
    node = tree.get("serves")
    fields = SERVES.read(node, env) if isinstance(node, Map) else None
    if not isinstance(fields, Fields):
        return {}
    return MappingProxyType({k: v for k, v in fields.values.items() if isinstance(v, tuple) and v})


def _problem(serves: Serves, asked: Mapping[str, Scalar], bag: Bag) -> dict[str, Value]:
    """One value for each of `PROBLEM`: what is asked for, if it is served, else the first served."""
    env = Environment(params=_EMPTY, problem={}, mask="full", bag=bag)
    problem: dict[str, Value] = {}
    for key in PROBLEM:
        served = serves.get(
            key, (problem["head_dim"],) if key == "head_dim_v" and "head_dim" in problem else ()
        )
        if key in asked and served and asked[key].value not in served:
            shown = ", ".join(
                str(v).lower() if isinstance(v, bool) else str(v) for v in served[:12]
            )
            title = f"`{key}` {asked[key].text} is not served: {shown}{' …' if len(served) > 12 else ''}"
            env.error("FA0211", title, asked[key].span)
        elif key in asked:
            problem[key] = asked[key].value
        elif served:
            first = served[0]
            problem[key] = first if isinstance(first, (str, int)) else None
    return problem


def _masks(serves: Serves, problem: Mapping[str, Value]) -> list[str]:
    """Masks to read the schedule for: all that it serves, the bound one last."""
    bound = "causal" if problem.get("causal") else "full"
    every = ["causal" if c else "full" for c in serves.get("causal", ())]
    return [*(m for m in every if m != bound), bound]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Binder:
    env: Environment
    file: str
    serves: Serves
    root: Fields

    def schedule(self) -> Schedule | None:
        """The schedule, or None if something that everything else needs is missing."""
        index = self._index()
        levels = self.root.values.get("levels")
        if index is None or not isinstance(levels, Fields):
            return None
        tile, block = (levels.values.get(k) for k in ("tile", "block"))
        if not isinstance(tile, Fields) or not isinstance(block, Fields):
            return None
        buffers = tuple(self._buffer(k, f, index) for k, f in self._table("buffers"))
        roles = tuple(self._role(k, f, index) for k, f in self._table("roles"))
        steps = tuple(self._steps(k, f, roles, index) for k, f in self._table("steps"))
        operations = tuple(self._operation(k, f, steps) for k, f in self._table("operations"))
        parts = _parts(operations, buffers)
        problem = self.env.problem
        return Schedule(
            name=_text(self.root, "schedule"),
            kernel=_text(self.root, "kernel"),
            target=_text(self.root, "target"),
            file=self.file,
            serves=self.serves,
            dtype=str(problem.get("dtype")),
            causal=bool(problem.get("causal")),
            head_dim=int(problem.get("head_dim") or 0),
            head_dim_v=int(problem.get("head_dim_v") or 0),
            params=self._params(),
            index=index,
            scheduler=_text(tile, "scheduler"),
            order=_text(block, "order"),
            empty=_text(block, "empty"),
            roles=roles,
            buffers=buffers,
            steps=steps,
            operations=operations,
            barriers=tuple(
                b for k, f in self._table("barriers") for b in self._barriers(k, f, index, parts)
            ),
            turns=tuple(
                t for k, f in self._table("turns") for t in self._turn(k, f, operations, index)
            ),
            level_spans=MappingProxyType({"tile": tile.span, "block": block.span}),
            span=self.root.at("schedule"),
        )

    def _table(self, section: str) -> list[tuple[Scalar, Fields]]:
        entries = self.root.values.get(section) or ()
        return (
            [(k, f) for k, f in entries if isinstance(f, Fields)]
            if isinstance(entries, tuple)
            else []
        )

    def _index(self) -> Index | None:
        entries = self.root.values.get("index")
        if not isinstance(entries, tuple) or not self.root.has("index"):
            return None
        if len(entries) != 1:
            self.env.error(
                "FA0106", f"`index` holds one name, not {len(entries)}", self.root.at("index")
            )
            return None
        key, count = entries[0]
        return Index(name=key.text, count=count, span=key.span)

    def _params(self) -> Mapping[str, object]:
        out = {}
        for key, node in self.env.params.entries:
            if key.text in PROBLEM:
                self.env.error(
                    "FA0216",
                    f"`{key.text}` is part of the problem, and no parameter",
                    key.span,
                    "set it in `serves`",
                )
            out[key.text] = plain(node, self.env)
        return MappingProxyType(out)

    def _per(self, fields: Fields, index: Index) -> bool:
        per = fields.values.get("per")
        if per is not None and per != index.name:
            self.env.error(
                "FA0206", f"the index is called `{index.name}`, not `{per}`", fields.at("per")
            )
        return per is not None

    def _role(self, key: Scalar, fields: Fields, index: Index) -> Role:
        return Role(
            name=key.text,
            warps=_integer(fields, "warps", 1),
            registers=_integer(fields, "registers", 8),
            per=self._per(fields, index),
            active=_integer(fields, "active", 0) or None,
            span=key.span,
        )

    def _buffer(self, key: Scalar, fields: Fields, index: Index) -> Buffer:
        columns = fields.values.get("columns")
        stages = _integer(fields, "stages", 0) or None
        return Buffer(
            name=key.text,
            space=Space(str(fields.values.get("space") or "smem")),
            tile=_integers(fields, "tile"),
            dtype=str(fields.values.get("dtype") or "io"),
            per=self._per(fields, index),
            stages=stages if fields.has("stages") else 1,
            ring=_names(fields, "ring"),
            parts=_integers(fields, "parts"),
            overlays=_text(fields, "overlays") or None,
            columns=_integers(fields, "columns") if columns is not None else None,
            one_load=bool(fields.values.get("one_load")),
            span=key.span,
        )

    def _steps(self, key: Scalar, fields: Fields, roles: tuple[Role, ...], index: Index) -> Steps:
        per = any(r.name == key.text and r.per for r in roles)
        found: dict[str, tuple[Step, ...]] = {}
        for section in STEP_SECTIONS:
            tokens = fields.values.get(section)
            tokens = tokens if isinstance(tokens, tuple) else ()
            found[section] = tuple(self._spread(tokens, key.text, index, per=per))
        return Steps(role=key.text, tile=found["tile"], block=found["block"], after=found["after"])

    def _spread(
        self, tokens: tuple[StepToken, ...], role: str, index: Index, *, per: bool
    ) -> Iterable[Step]:
        """`a[s] b[s]` stands for `a[0] b[0] a[1] b[1] …`: neighbours are spread together."""
        for named, run in groupby(tokens, key=lambda t: isinstance(t.at, str)):
            group = list(run)
            for token in group:
                self._check_at(token, role, index, per=per)
            for n in range(index.count) if named else (None,):
                for t in group:
                    at = n if isinstance(t.at, str) else t.at
                    yield Step(operation=t.name, instance=at, ahead=t.ahead, span=t.span)

    def _check_at(self, t: StepToken, role: str, index: Index, *, per: bool) -> None:
        if t.at is not None and per:
            title = f"`{role}` has an instance for each `{index.name}`, and each does its own `{t.name}`"
            self.env.error("FA0206", title, t.span, f"write `{t.name}`")
        elif isinstance(t.at, str) and t.at != index.name:
            self.env.error("FA0206", f"the index is called `{index.name}`, not `{t.at}`", t.span)
        elif isinstance(t.at, int) and t.at >= index.count:
            title = f"`{t.name}[{t.at}]` does not exist: `{index.name}` counts from 0 to {index.count - 1}"
            self.env.error("FA0206", title, t.span)

    def _operation(self, key: Scalar, fields: Fields, steps: tuple[Steps, ...]) -> Operation:
        role = next(
            (
                s.role
                for s in steps
                for x in (*s.tile, *s.block, *s.after)
                if x.operation == key.text
            ),
            "",
        )
        a, b = (_item(_text(fields, k)) or None for k in ("a", "b"))
        shared = ("op", "a", "b", "reads", "writes", "updates")
        options = {k: _plain(v) for k, v in fields.values.items() if k not in shared}
        return Operation(
            name=key.text,
            role=role,
            kind=_text(fields, "op"),
            reads=(*(x for x in (a, b) if x), *map(_item, _names(fields, "reads"))),
            writes=tuple(map(_item, _names(fields, "writes"))),
            updates=tuple(map(_item, _names(fields, "updates"))),
            a=a,
            b=b,
            options=MappingProxyType(options),
            span=key.span,
        )

    def _barriers(
        self, key: Scalar, fields: Fields, index: Index, parts: Mapping[str, int]
    ) -> Iterable[Barrier]:
        name = edge_name(key, self.env.bag)
        if name is None:
            return
        if name.at not in (None, index.name):
            self.env.error(
                "FA0206", f"the index is called `{index.name}`, not `{name.at}`", key.span
            )
        barrier = Barrier(
            name=name.name,
            per=name.at is not None,
            level=_text(fields, "level") or "block",
            distance=_integer(fields, "distance", 0),
            kind=_text(fields, "kind") or "mbarrier",
            span=key.span,
        )
        if fields.has("ring"):
            yield from self._ring_sides(barrier, fields)
            return
        for side in ("after", "before"):
            if not fields.has(side):
                self.env.error("FA0107", f"`{name.name}` needs a key `{side}`", fields.span)
        if fields.has("side"):
            self.env.error("FA0106", "`side` goes with `ring`", fields.at("side"))
        yield from self._parted(barrier, fields, name, index, parts)

    def _ring_sides(self, barrier: Barrier, fields: Fields) -> Iterable[Barrier]:
        for key in ("after", "before", "level", "distance", "kind"):
            if fields.has(key):
                self.env.error(
                    "FA0106",
                    f"a ring's barrier has no `{key}`: its ends follow from who fills and reads it",
                    fields.at(key),
                    "take the key away",
                )
        ring, side = _text(fields, "ring"), _text(fields, "side")
        if barrier.per:
            self.env.error(
                "FA0206", "a ring's barrier has no index of its own", barrier.span or fields.span
            )
        for one in (side,) if side else ("full", "empty"):
            yield replace(
                barrier, name=barrier.name if side else f"{barrier.name}_{one}", ring=ring, side=one
            )

    def _parted(
        self,
        barrier: Barrier,
        fields: Fields,
        name: EdgeName,
        index: Index,
        parts: Mapping[str, int],
    ) -> Iterable[Barrier]:
        """One barrier; where its ends say `.rest`, one for each part but the first."""
        sides = [
            s if isinstance(s := fields.values.get(k), tuple) else () for k in ("after", "before")
        ]
        rest = [e for s in sides for alternative in s for e in alternative if e.part == "rest"]
        if not rest:
            after, before = (self._side(s, name, index, None) for s in sides)
            yield replace(barrier, after=after, before=before)
            return
        counts = {parts.get(e.name, 1) for e in rest}
        if len(counts) > 1:
            title = f"the ends of `{name.name}` have different numbers of parts: {sorted(counts)}"
            self.env.error("FA0208", title, barrier.span or fields.span)
        last = max(counts)
        for part in range(1, last):
            after, before = (self._side(s, name, index, part) for s in sides)
            numbered = barrier.name if last == 2 else f"{barrier.name}_{part}"
            yield replace(barrier, name=numbered, after=after, before=before)

    def _side(
        self, side: tuple[tuple[EndToken, ...], ...], name: EdgeName, index: Index, rest: int | None
    ) -> tuple[tuple[End, ...], ...]:
        return tuple(
            tuple(self._end(e, name, index, rest) for e in alternative) for alternative in side
        )

    def _end(self, e: EndToken, name: EdgeName, index: Index, rest: int | None) -> End:
        instance: int | str | None = e.at if isinstance(e.at, int) else None
        if isinstance(e.at, str):
            if e.at != index.name:
                self.env.error(
                    "FA0206", f"the index is called `{index.name}`, not `{e.at}`", e.span
                )
            instance = "same" if name.at else "all"
        elif isinstance(e.at, int) and e.at >= index.count:
            title = f"`{e.name}[{e.at}]` does not exist: `{index.name}` counts from 0 to {index.count - 1}"
            self.env.error("FA0206", title, e.span)
        part = e.part if isinstance(e.part, int) else rest if e.part == "rest" else None
        return End(operation=e.name, part=part, instance=instance, span=e.span)

    def _turn(
        self, key: Scalar, fields: Fields, operations: tuple[Operation, ...], index: Index
    ) -> Iterable[Turn]:
        around = fields.values.get("around")
        if fields.values.get("over") not in (None, index.name):
            self.env.error(
                "FA0206",
                f"the index is called `{index.name}`, not `{fields.values['over']}`",
                fields.at("over"),
            )
        if not isinstance(around, tuple):
            return
        if len(around) != 2:
            self.env.error(
                "FA0106",
                f"`around` names a first and a last step, not {len(around)}",
                fields.at("around"),
            )
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
        yield Turn(
            name=key.text,
            first=first,
            last=last,
            role=role,
            kind=_text(fields, "kind") or "named",
            span=key.span,
        )


def _parts(operations: tuple[Operation, ...], buffers: tuple[Buffer, ...]) -> Mapping[str, int]:
    """In how many parts each operation hands over (or takes) what it touches."""
    of = {item: len(b.parts) for b in buffers for item in b.items if b.parts}
    return {
        o.name: max((of[i] for i in (*o.reads, *o.writes) if i in of), default=1)
        for o in operations
    }


def _item(text: str) -> str:
    """`kv.k` is the item `k`."""
    return text.rpartition(".")[2]


def _text(fields: Fields, key: str) -> str:
    value = fields.values.get(key)
    return value if isinstance(value, str) else ""


def _integer(fields: Fields, key: str, default: int) -> int:
    value = fields.values.get(key)
    return value if isinstance(value, int) else default


def _integers(fields: Fields, key: str) -> tuple[int, ...]:
    value = fields.values.get(key)
    return tuple(v for v in value if isinstance(v, int)) if isinstance(value, tuple) else ()


def _names(fields: Fields, key: str) -> tuple[str, ...]:
    value = fields.values.get(key)
    return tuple(v for v in value if isinstance(v, str)) if isinstance(value, tuple) else ()


def _plain(value: object) -> object:
    return MappingProxyType(dict(value.values)) if isinstance(value, Fields) else value
