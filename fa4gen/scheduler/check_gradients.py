"""Dataflow of a backward: what each tile means is worked out, operation by operation.

A tile that a load fills means its tensor; a product of known tiles means what attention's
derivative says it is; the steps between them turn one meaning into the next. Operations are taken
in the algorithm's order (their ranks), which the proof imposes on all accesses. What comes out must
be dQ, dK and dV, each once.
"""

from collections.abc import Generator, Iterator, Mapping
from types import MappingProxyType

from fa4gen.diag import Diagnostic, Note
from fa4gen.dtypes import resolve
from fa4gen.ir.geometry import SUM_COLUMNS
from fa4gen.ir.ops import KINDS, Unit, rank_of
from fa4gen.ir.schedule import Operation, Schedule, Space

Making = Generator[Diagnostic, None, str]  # faults, and then what is made: '' after a fault
TURNED = "^T"
TENSORS: Mapping[str, str] = MappingProxyType(
    {"q": "Q", "k": "K", "v": "V", "do": "dO", "lse": "LSE", "delta": "delta"}
)
PRODUCTS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("Q", "K^T"): "S",
        ("K", "Q^T"): "S^T",
        ("dO", "V^T"): "dP",
        ("V", "dO^T"): "dP^T",
        ("P^T", "dO"): "dV",
        ("dS^T", "Q"): "dK",
        ("dS", "K"): "dQ",
    }
)
# What a kind takes, and what becomes of it; a tile may be turned throughout.
_STEPS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "probabilities": {"S": "P"},
        "score_gradients": {"dP": "dS"},
        "convert": {"P": "P", "dS": "dS"},
        "share_tile": {"P": "P", "dS": "dS"},
        "stage_sum": {"dQ": "dQ"},
        "tma_reduce": {"dQ": "dQ"},
        "take_sum": {"dQ": "dQ"},
        "reduce_tile": {"dQ": "dQ"},
        "store_gradient": {"dK": "dK", "dV": "dV"},
        "tma_store": {"dK": "dK", "dV": "dV"},
    }
)
_BESIDE: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"probabilities": ("LSE",), "score_gradients": ("P", "delta")}
)
_SPACES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"probabilities": ("tmem",), "score_gradients": ("smem", "tmem")}
)
_RESULTS = (
    (("tma_reduce", "reduce_tile"), "dQ"),
    (("tma_store",), "dK"),
    (("tma_store",), "dV"),
)


def check(schedule: Schedule) -> Iterator[Diagnostic]:
    """FA0222 (a tile that is something else), FA0223 (a result that is missing, or made twice),
    FA0224 (registers of another role), FA0411 and FA0413 (the tile that sums leave from)."""
    meanings: dict[str, str] = {}
    made: dict[tuple[str, str], Operation] = {}
    lost: set[str] = set()  # what is made of a tile at fault is no fault of its own
    for o in sorted(schedule.operations, key=lambda o: _rank(schedule, o)):
        result = "" if set(_taken(o)) & lost else (yield from _meaning(o, meanings))
        if not result:
            lost |= set(_given(o))
            continue
        meanings |= dict.fromkeys(_given(o), result)
        first = made.setdefault((o.kind, result), o)
        if first is not o:
            note = Note(text=f"`{first.name}`", span=first.span)
            title = f"`{o.name}` does what `{first.name}` does already"
            yield Diagnostic(code="FA0223", title=title, span=o.span, notes=(note,))
        yield from _scaled(o, result)
    for kinds, result in _RESULTS:
        if not lost and not any((kind, result) in made for kind in kinds):
            named = " or ".join(f"`{k}`" for k in kinds)
            title = f"nobody brings {result} to global memory: a {named} of it"
            yield Diagnostic(code="FA0223", title=title, span=schedule.span)
    yield from _registers(schedule)
    yield from _rounded(schedule)
    yield from _added(schedule)


def _rank(schedule: Schedule, o: Operation) -> int:
    loaded = {
        i for x in schedule.operations if KINDS[x.kind].unit is Unit.TMA_LOAD for i in x.writes
    }
    return rank_of(o.kind, computed=not {o.a, o.b} <= loaded, afresh=bool(o.writes))


def _taken(o: Operation) -> tuple[str, ...]:
    """What an operation takes: tiles, or what its role holds in registers."""
    held = (_held(o),) if o.kind == "reduce_tile" else ()
    return (*o.reads, *(() if KINDS[o.kind].product else o.updates), *held)


def _given(o: Operation) -> tuple[str, ...]:
    """What an operation fills."""
    return (*o.writes, *o.updates, *((_held(o),) if o.kind == "take_sum" else ()))


def _held(o: Operation) -> str:
    return f"registers of {o.role}"


def turned(meaning: str) -> str:
    """The transposed tile."""
    return meaning.removesuffix(TURNED) if meaning.endswith(TURNED) else meaning + TURNED


def _meaning(o: Operation, known: Mapping[str, str]) -> Making:
    """What an operation makes."""
    missing = [i for i in _taken(o) if i not in known]
    if missing:
        yield _fault(o, f"`{o.name}` takes `{missing[0]}`, which nobody has made by then")
        return ""
    if KINDS[o.kind].unit is Unit.TMA_LOAD:
        tensor = TENSORS.get(o.writes[0], "")
        if not tensor:
            names = ", ".join(f"`{t}`" for t in TENSORS)
            yield _fault(o, f"`{o.name}` loads `{o.writes[0]}`; there are {names}")
        return tensor
    if KINDS[o.kind].product:
        return (yield from _product(o, known))
    return (yield from _step(o, known))


def _product(o: Operation, known: Mapping[str, str]) -> Making:
    a, b = (
        turned(known[item]) if side in o.transposed else known[item]
        for side, item in (("a", o.a or ""), ("b", o.b or ""))
    )
    found = PRODUCTS.get((a, b), "")
    if not found:
        them = ", ".join(f"{r} = {x} {y}" for (x, y), r in PRODUCTS.items())
        yield _fault(o, f"`{o.name}` is {a} times {b}, no product of the backward: {them}")
    return found


def _step(o: Operation, known: Mapping[str, str]) -> Making:
    """A step that turns one tile into the next, beside rows or another tile of the same shape."""
    steps = _STEPS.get(o.kind)
    if steps is None:
        yield _fault(o, f"`{o.name}`: a backward has no `{o.kind}`")
        return ""
    beside = _BESIDE.get(o.kind, ())
    if o.kind == "score_gradients" and not o.updates:
        beside = ("delta",)  # P is in registers
    main = (*o.updates, *_taken(o))[0]
    meaning = known[main]
    plain = meaning.removesuffix(TURNED)
    if plain not in steps:
        wanted = " or ".join(steps)
        yield _fault(o, f"`{o.name}` takes `{main}` for {wanted}; it is {meaning}")
        return ""
    tail = meaning.removeprefix(plain)
    wanted_beside = sorted(w + tail if w == "P" else w for w in beside)
    others = sorted(known[i] for i in o.reads if i != main)
    if others != wanted_beside:
        yield _fault(
            o, f"`{o.name}` reads {_list(others)} beside {meaning}; it needs {_list(wanted_beside)}"
        )
        return ""
    return steps[plain] + tail


def _scaled(o: Operation, result: str) -> Iterator[Diagnostic]:
    """dK = scale dS^T Q; the scale of dQ is applied once all is added up."""
    if o.kind == "store_gradient" and bool(o.options.get("scaled")) != (result == "dK"):
        fact = "is scaled" if result == "dK" else "is not scaled"
        fix = "write `scaled: true`" if result == "dK" else "take `scaled` away"
        yield Diagnostic(
            code="FA0223", title=f"`{o.name}` stores {result}, which {fact}", span=o.span, fix=fix
        )


def _registers(schedule: Schedule) -> Iterator[Diagnostic]:
    """Tiles in registers are one role's own."""
    for buffer in (b for b in schedule.buffers if b.space is Space.RMEM):
        users = [
            o
            for o in schedule.operations
            if buffer.name in (*o.reads, *o.writes, *o.updates) and o.role
        ]
        for o in users[1:]:
            if o.role != users[0].role:
                note = Note(text=f"`{users[0].name}` of `{users[0].role}`", span=users[0].span)
                yield Diagnostic(
                    code="FA0224",
                    title=f"`{o.name}` takes `{buffer.name}`, in registers of `{users[0].role}`",
                    span=o.span,
                    notes=(note,),
                )


def _rounded(schedule: Schedule) -> Iterator[Diagnostic]:
    """Where scores lie in tensor memory, P and dS go there rounded, and dS to shared memory too; P
    itself stays in registers from one step to the other."""
    makers = [o for o in schedule.operations if o.kind == "probabilities"]
    sums = [o for o in schedule.operations if o.kind == "take_sum"]
    for o in schedule.operations:
        if o.kind == "reduce_tile" and not _follows(schedule, o, sums):
            title = f"`{o.name}` adds what nobody of `{o.role}` has taken by then"
            yield Diagnostic(code="FA0224", title=title, span=o.span)
        if o.kind not in _SPACES:
            continue
        in_tmem = schedule.buffer_of((o.updates or o.reads)[0]).space is Space.TMEM
        spaces = sorted(schedule.buffer_of(i).space.value for i in o.writes)
        wanted = list(_SPACES[o.kind]) if in_tmem else []
        if spaces != wanted or bool(o.updates) is in_tmem:
            places = " and ".join(wanted)
            fix = f"write `writes:` a buffer in {places}" if in_tmem else "write `updates:`"
            title = f"`{o.name}` leaves its result in {' and '.join(spaces) or 'place'}"
            yield Diagnostic(code="FA0222", title=title, span=o.span, fix=fix)
        if in_tmem and o.kind == "score_gradients" and not _follows(schedule, o, makers):
            title = (
                f"`{o.name}` takes P from registers that nobody of `{o.role}` has filled by then"
            )
            yield Diagnostic(code="FA0224", title=title, span=o.span)


def _added(schedule: Schedule) -> Iterator[Diagnostic]:
    """Sums leave in f32; from registers, in boxes beside each other, each of all their rows."""
    for o in schedule.operations:
        if o.kind not in ("stage_sum", "reduce_tile"):
            continue
        out = schedule.buffer_of(o.writes[0])
        if resolve(out.dtype, schedule.dtype).name != "f32":
            title = f"`{o.name}` writes sums in f32, `{out.name}` holds {out.dtype}"
            yield Diagnostic(code="FA0413", title=title, span=out.span, fix="write `dtype: f32`")
        taken = [x.reads[0] for x in schedule.operations if x.kind == "take_sum"]
        if o.kind != "reduce_tile" or not taken:
            continue
        rows = schedule.buffer_of(taken[0]).tile[0]
        if len(out.tile) != 2 or out.tile[0] != rows or out.tile[1] % SUM_COLUMNS:
            shape = " x ".join(map(str, out.tile))
            yield Diagnostic(
                code="FA0411",
                title=f"`{o.name}` adds {rows} rows in boxes of {SUM_COLUMNS} columns, "
                f"`{out.name}` is {shape}",
                span=out.span,
                fix=f"write `tile: [{rows}, {SUM_COLUMNS}]`, or more boxes",
            )


def _follows(schedule: Schedule, taker: Operation, makers: list[Operation]) -> bool:
    """Whether one of the makers comes before the taker, for the same block, in the same role."""
    steps = schedule.steps_of(taker.role).block
    at = {s.operation: (s.ahead, n) for n, s in enumerate(steps)}
    ahead, place = at.get(taker.name, (0, -1))
    return any(m.name in at and at[m.name][0] == ahead and at[m.name][1] < place for m in makers)


def _fault(o: Operation, title: str) -> Diagnostic:
    return Diagnostic(code="FA0222", title=title, span=o.span)


def _list(meanings: list[str]) -> str:
    return " and ".join(meanings) or "nothing"
