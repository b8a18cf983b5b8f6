"""Roles, buffers, steps and operations: from what was read to what the compiler's types say."""

from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType

from fa4gen.diag import Span
from fa4gen.ir.schedule import Buffer, Index, Operation, Role, Space, Step, Steps

from .expressions import Environment, nearest
from .language import STEP_SECTIONS
from .phrases import StepToken
from .reader import Scalar
from .schema import Fields

TRANSPOSED = "^T"
_DATAFLOW = ("op", "a", "b", "reads", "writes", "updates")  # the other keys are options


def role(key: Scalar, fields: Fields, index: Index, env: Environment) -> Role:
    """A group of warps."""
    return Role(
        name=key.text,
        warps=fields.integer("warps", 1),
        registers=fields.integer("registers", 0),
        per=_per(fields, index, env),
        active=fields.integer("active", 0) or None,
        span=key.span,
    )


def buffer(key: Scalar, fields: Fields, index: Index, env: Environment) -> Buffer:
    """Storage; `stages: max` stays open (None)."""
    return Buffer(
        name=key.text,
        space=Space(fields.text("space") or "smem"),
        tile=fields.integers("tile"),
        dtype=fields.text("dtype") or "io",
        per=_per(fields, index, env),
        stages=(fields.integer("stages", 0) or None) if fields.has("stages") else 1,
        ring=fields.names("ring"),
        parts=fields.integers("parts"),
        overlays=fields.text("overlays") or None,
        columns=fields.integers("columns") if fields.has("columns") else None,
        one_load=bool(fields.values.get("one_load")),
        span=key.span,
    )


def steps(
    key: Scalar, fields: Fields, roles: tuple[Role, ...], index: Index, env: Environment
) -> Steps:
    """A role's own order."""
    per = any(r.name == key.text and r.per for r in roles)
    for section in STEP_SECTIONS:
        for token in fields.steps(section):
            _check_index(token, key.text, index, env, per=per)
    tile, block, after = (tuple(_spread(fields.steps(section), index)) for section in STEP_SECTIONS)
    return Steps(role=key.text, tile=tile, block=block, after=after, span=key.span)


def operation(
    key: Scalar,
    fields: Fields,
    steps: tuple[Steps, ...],
    buffers: tuple[Buffer, ...],
    env: Environment,
) -> Operation:
    """What a step does; its role is the one whose steps name it."""
    holders = (s.role for s in steps if any(x.operation == key.text for x in s.all()))
    operands = {k: fields.text(k) for k in ("a", "b")}
    a, b = (
        _item(text.removesuffix(TRANSPOSED), fields.at(k), buffers, env) or None
        for k, text in operands.items()
    )
    transposed = tuple(k for k, text in operands.items() if text.endswith(TRANSPOSED))
    reads, writes, updates = (
        tuple(_item(name, fields.at(k), buffers, env) for name in fields.names(k))
        for k in ("reads", "writes", "updates")
    )
    options = {k: _plain(v) for k, v in fields.values.items() if k not in _DATAFLOW}
    return Operation(
        name=key.text,
        role=next(holders, ""),
        kind=fields.text("op"),
        reads=(*(x for x in (a, b) if x), *reads),
        writes=writes,
        updates=updates,
        a=a,
        b=b,
        transposed=transposed or (("b",) if b and fields.names("writes") else ()),
        options=MappingProxyType(options),
        span=key.span,
    )


def parts(operations: tuple[Operation, ...], buffers: tuple[Buffer, ...]) -> Mapping[str, int]:
    """In how many parts each operation hands over (or takes) what it touches."""
    of = {item: len(b.parts) for b in buffers for item in b.items if b.parts}
    return {
        o.name: max((of[i] for i in (*o.reads, *o.writes) if i in of), default=1)
        for o in operations
    }


def _per(fields: Fields, index: Index, env: Environment) -> bool:
    per = fields.text("per")
    if per and per != index.name:
        title = f"the index is called `{index.name}`, not `{per}`"
        env.error("FA0206", title, fields.at("per"), f"write `per: {index.name}`")
    return bool(per)


def _spread(tokens: tuple[StepToken, ...], index: Index) -> Iterable[Step]:
    """`a[s] b[s]` stands for `a[0] b[0] a[1] b[1] …`: neighbours are spread together."""
    for named, run in groupby(tokens, key=lambda t: isinstance(t.at, str)):
        group = list(run)
        for n in range(index.count) if named else (None,):
            for t in group:
                at = n if isinstance(t.at, str) else t.at
                yield Step(operation=t.name, instance=at, ahead=t.ahead, span=t.span)


def _check_index(t: StepToken, role: str, index: Index, env: Environment, *, per: bool) -> None:
    if t.at is not None and per:
        title = (
            f"`{role}` has an instance for each `{index.name}`, and each does its own `{t.name}`"
        )
        env.error("FA0206", title, t.span, f"write `{t.name}`")
        return
    check_at(t.name, t.at, t.span, index, env)


def check_at(name: str, at: str | int | None, span: Span, index: Index, env: Environment) -> None:
    """Reports an index that is not called so, or a number beyond its count (FA0206)."""
    if isinstance(at, str) and at != index.name:
        title = f"the index is called `{index.name}`, not `{at}`"
        env.error("FA0206", title, span, f"write `{name}[{index.name}]`")
    elif isinstance(at, int) and at >= index.count:
        last = index.count - 1
        title = f"`{name}[{at}]` does not exist: `{index.name}` counts from 0 to {last}"
        env.error("FA0206", title, span)


def _item(text: str, span: Span, buffers: tuple[Buffer, ...], env: Environment) -> str:
    """`kv.k` is the item `k` of the ring `kv`, if there is such a ring."""
    ring, dot, item = text.rpartition(".")
    if dot and not any(b.name == ring and item in b.ring for b in buffers):
        known = [f"{b.name}.{i}" for b in buffers for i in b.ring]
        env.error("FA0202", f"no ring has an item `{text}`", span, nearest(text, known))
    return item


def _plain(value: object) -> object:
    return MappingProxyType(dict(value.values)) if isinstance(value, Fields) else value
