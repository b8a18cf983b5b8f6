"""Dataflow: the operations together are attention, each done once, on the tiles that it means.

What passes through buffers is ordered by barriers, and judged by the proof. What passes through
registers needs one role, and an order within it: that is judged here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fa4gen.diag import Diagnostic, Note
from fa4gen.ir.features import PAGES
from fa4gen.ir.ops import KINDS
from fa4gen.ir.schedule import Operation, Schedule, Space, Step
from fa4gen.target import Target

from . import check_gradients

LOADED = ("Q", "K", "V")
OUTPUTS = ("lse",)
_STATISTICS = "the row statistics"

# What the operands of each kind are; a product that writes is Q K^T, one that updates is P V.
_MEANINGS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("row_max", "reads"): "S",
        ("online_softmax", "updates"): "S",
        ("rescale_factor", "writes"): _STATISTICS,
        ("read_scale", "reads"): _STATISTICS,
        ("write_stats", "writes"): _STATISTICS,
        ("scale_rows", "updates"): "O",
        ("exp2_convert", "writes"): "P",
        ("convert", "reads"): "S",
        ("convert", "writes"): "P",
        ("normalise_store", "writes"): "the output tile",
        ("tma_store", "reads"): "the output tile",
    }
)

# Values in registers: a kind, and those that it takes values from, for the same block.
_TAKES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rescale_factor": ("row_max",),
        "exp2_convert": ("row_max", "rescale_factor"),
        "row_sum": ("exp2_convert",),
        "write_stats": ("row_sum",),
        "convert": ("online_softmax",),
        "scale_rows": ("read_scale", "online_softmax"),
    }
)

_BLACKWELL = (
    "row_max", "rescale_factor", "exp2_convert", "row_sum", "write_stats", "read_scale",
    "scale_rows", "normalise_store", "tma_store",
)  # fmt: skip
_HOPPER = ("online_softmax", "convert", "scale_rows", "normalise_store", "tma_store")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Use:
    """An item, what it means there, and the operation that says so."""

    item: str
    meaning: str
    operation: Operation


def check(schedule: Schedule, target: Target) -> list[Diagnostic]:
    """All faults of dataflow, for a schedule whose names are right: FA0222-FA0224."""
    if schedule.kernel == "attention_backward":
        return [*check_gradients.check(schedule), *_once(schedule), *_masks(schedule)]
    return [
        *_complete(schedule, _BLACKWELL if target.tmem_columns else _HOPPER),
        *_once(schedule),
        *_meanings(schedule),
        *_registers(schedule),
        *_masks(schedule),
        *_splits(schedule),
        *_pages(schedule),
    ]


def _splits(schedule: Schedule) -> Iterator[Diagnostic]:
    """What joins a row once cannot join each of its splits."""
    if {"split_kv", "sinks"} <= schedule.features:
        yield Diagnostic(
            code="FA0223",
            title="every split would count the `sinks`, where a row has them once",
            span=schedule.span,
            fix="leave out `split_kv` or `sinks`",
        )


def _pages(schedule: Schedule) -> Iterator[Diagnostic]:
    """Pages are of one least size, and hold the keys of one sequence each."""
    least = [f for f in PAGES if f in schedule.features]
    if len(least) > 1:
        yield Diagnostic(
            code="FA0223",
            title=f"pages have one least size, not that of {' and '.join(f'`{f}`' for f in least)}",
            span=schedule.span,
            fix=f"leave out all but `{least[0]}`, which serves the others' pages too",
        )
    if least and "varlen_k" in schedule.features:
        yield Diagnostic(
            code="FA0223",
            title=f"keys lie in pages (`{least[0]}`) or one behind the other (`varlen_k`)",
            span=schedule.span,
            fix="leave out `varlen_k`: `seqused_k` says how many keys a sequence has",
        )


def _masks(schedule: Schedule) -> Iterator[Diagnostic]:
    """Keys past the end (beyond the diagonal, outside the window) must not count."""
    on = {"causal": schedule.causal}
    on |= {name: name in schedule.features for name in ("window", "mask_mod")}
    needed = ("seqlen_k", *(name for name, asked in on.items() if asked))
    for o in schedule.operations:
        if KINDS[o.kind].name == "normalise_store" and "sinks" in schedule.features:
            yield from _joined(o)
        if "mask" not in KINDS[o.kind].options:
            continue
        given = o.options.get("mask") or ()
        given = (given,) if isinstance(given, str) else given
        missing = [m for m in needed if m not in given]  # type: ignore[operator]
        yield from _modified(schedule, o)
        if missing:
            yield Diagnostic(
                code="FA0223",
                title=f"`{o.name}` does not mask by {' and '.join(f'`{m}`' for m in missing)}",
                span=o.span,
                fix=f"write `mask: [{', '.join(needed)}]`",
            )


def _modified(schedule: Schedule, o: Operation) -> Iterator[Diagnostic]:
    """What the problem asks of scores is what the operation can do."""
    able = o.options.get("score") or ()
    able = (able,) if isinstance(able, str) else able
    asked = [f for f in ("softcap", "alibi", "score_mod") if f in schedule.features]
    lacks = [f for f in asked if f not in able]  # type: ignore[operator]
    if lacks:
        title = f"`{o.name}` does not change scores by {' and '.join(f'`{f}`' for f in lacks)}"
        fix = f"write `score: [{', '.join(asked)}]`"
        yield Diagnostic(code="FA0223", title=title, span=o.span, fix=fix)
    own = [f for f in ("score_mod", "mask_mod") if f in schedule.features]
    if own and "pack_gqa" in schedule.features:
        title = f"`{own[0]}` is given one head for a tile, and `pack_gqa` has several in one"
        yield Diagnostic(code="FA0223", title=title, span=o.span, fix="leave `pack_gqa` off")


def _joined(o: Operation) -> Iterator[Diagnostic]:
    if not o.options.get("sinks"):
        title = f"`{o.name}` does not take the `sinks` into the sums"
        yield Diagnostic(code="FA0223", title=title, span=o.span, fix="write `sinks: true`")


def _complete(schedule: Schedule, kinds: tuple[str, ...]) -> Iterator[Diagnostic]:
    """Each step of the algorithm is there, once."""
    found: dict[str, list[Operation]] = {name: [] for name in (*kinds, "Q K^T", "P V")}
    for operation in schedule.operations:
        product = KINDS[operation.kind].product
        name = ("Q K^T" if operation.writes else "P V") if product else operation.kind
        if name in found:
            found[name].append(operation)
    for name, operations in found.items():
        if not operations:
            title = f"attention needs {f'`{name}`' if name in KINDS else f'a product {name}'}"
            yield Diagnostic(code="FA0223", title=title, span=schedule.span)
        for again in operations[1:]:
            title = f"`{again.name}` does what `{operations[0].name}` does already"
            note = Note(text=f"`{operations[0].name}`", span=operations[0].span)
            yield Diagnostic(code="FA0223", title=title, span=again.span, notes=(note,))


def _once(schedule: Schedule) -> Iterator[Diagnostic]:
    """An operation of an instance is one step of its role."""
    for steps in schedule.steps:
        seen: dict[tuple[str, int | None], Step] = {}
        for step in steps.all():
            key = (step.operation, step.instance)
            if key in seen:
                at = f"[{step.instance}]" if step.instance is not None else ""
                note = Note(text="the first time", span=seen[key].span)
                title = f"`{step.operation}{at}` is done twice"
                yield Diagnostic(code="FA0223", title=title, span=step.span, notes=(note,))
            seen.setdefault(key, step)


def _uses(schedule: Schedule) -> Iterator[_Use]:
    for o in schedule.operations:
        if KINDS[o.kind].product:
            a, b, result = ("Q", "K", "S") if o.writes else ("P", "V", "O")
            for item, meaning in ((o.a, a), (o.b, b), ((o.writes or o.updates)[0], result)):
                yield _Use(item=item or "", meaning=meaning, operation=o)
            continue
        for key, items in (("reads", o.reads), ("writes", o.writes), ("updates", o.updates)):
            for item in (i for i in items if i not in OUTPUTS):
                if o.kind == "normalise_store" and key == "reads":
                    smem = schedule.buffer_of(item).space is Space.SMEM
                    yield _Use(item=item, meaning=_STATISTICS if smem else "O", operation=o)
                elif (o.kind, key) in _MEANINGS:
                    yield _Use(item=item, meaning=_MEANINGS[o.kind, key], operation=o)


def _meanings(schedule: Schedule) -> Iterator[Diagnostic]:
    """Each tile means one thing, and each thing is one tile; Q, K and V are what is loaded."""
    by_item: dict[str, _Use] = {}
    by_meaning: dict[str, _Use] = {}
    for use in _uses(schedule):
        first = by_item.setdefault(use.item, use)
        other = by_meaning.setdefault(use.meaning, use)
        if first.meaning != use.meaning:
            yield _conflict(use, first, f"`{use.item}` is {first.meaning}")
        elif other.item != use.item:
            yield _conflict(use, other, f"{use.meaning} is `{other.item}`")
    for o in schedule.operations:
        if o.kind == "tma_load":
            use_ = by_item.get(o.writes[0])
            if use_ and use_.meaning not in LOADED:
                loaded = _Use(item=o.writes[0], meaning="loaded", operation=o)
                yield _conflict(loaded, use_, f"`{use_.item}` is {use_.meaning}")
    yield from _tensors(by_meaning)
    filled = {o.writes[0] for o in schedule.operations if o.kind == "tma_load"}
    for meaning in LOADED:
        use_ = by_meaning.get(meaning)
        if use_ and use_.item not in filled and by_item[use_.item] is use_:
            title = f"`{use_.item}` is {meaning} for `{use_.operation.name}`, and nobody loads it"
            yield Diagnostic(code="FA0222", title=title, span=use_.operation.span)


def _tensors(by_meaning: Mapping[str, _Use]) -> Iterator[Diagnostic]:
    """The tensor that a load reads has the name of the item."""
    for meaning in LOADED:
        use_ = by_meaning.get(meaning)
        if use_ and use_.item != meaning.lower():
            title = f"`{use_.operation.name}` takes `{use_.item}` for {meaning}"
            yield Diagnostic(
                code="FA0222",
                title=f"{title}, which is loaded under the name `{meaning.lower()}`",
                span=use_.operation.span,
                fix=f"call it `{meaning.lower()}`",
            )


def _conflict(use: _Use, other: _Use, fact: str) -> Diagnostic:
    claim = "is loaded" if use.meaning == "loaded" else f"takes `{use.item}` for {use.meaning}"
    return Diagnostic(
        code="FA0222",
        title=f"`{use.operation.name}` {claim}; {fact} for `{other.operation.name}`",
        span=use.operation.span,
        notes=(Note(text=f"`{other.operation.name}`", span=other.operation.span),),
    )


def _registers(schedule: Schedule) -> Iterator[Diagnostic]:
    """Who takes a value from registers is of the same role, and comes later for the same block."""
    places = {
        s.operation: (section, -s.ahead, n)
        for steps in schedule.steps
        for section, found in enumerate((steps.tile, steps.block, steps.after))
        for n, s in reversed(tuple(enumerate(found)))
    }
    for taker in schedule.operations:
        givers = [o for o in schedule.operations if o.kind in _TAKES.get(taker.kind, ())]
        for giver in givers:
            if giver.role != taker.role:
                title = (
                    f"`{taker.name}` takes values from `{giver.name}`, in another role's registers"
                )
                yield _order(taker, giver, title)
            elif _absent(giver) and not _absent(taker):
                title = f"`{taker.name}` takes values from `{giver.name}`, which block 0 leaves out"
                yield _order(taker, giver, title)
            elif places[giver.name] > places[taker.name]:
                title = f"`{taker.name}` takes values from `{giver.name}`, and comes before it"
                yield _order(taker, giver, title)


def _absent(operation: Operation) -> bool:
    return operation.options.get("first") == "none"


def _order(taker: Operation, giver: Operation, title: str) -> Diagnostic:
    note = Note(text=f"`{giver.name}` of `{giver.role}`", span=giver.span)
    return Diagnostic(code="FA0224", title=title, span=taker.span, notes=(note,))
