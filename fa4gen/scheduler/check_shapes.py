"""Shapes: tiles fit together as matrices, and fit the instructions and TMA boxes that move them."""

from collections.abc import Iterator
from dataclasses import replace

from fa4gen.diag import Diagnostic, Note
from fa4gen.dtypes import resolve
from fa4gen.ir.boxes import columns_split
from fa4gen.ir.geometry import ROW_UNIT, STEP, padded
from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.schedule import Buffer, Operation, Schedule, Space
from fa4gen.target import Target

ALIKE = ("share_tile", "stage_sum", "store_gradient")  # what they write has the shape they read


def check(schedule: Schedule, target: Target) -> list[Diagnostic]:
    """All faults of shapes, for a schedule whose names are right: FA0411-FA0415."""
    found: list[Diagnostic] = []
    for operation in schedule.operations:
        kind = KINDS[operation.kind]
        if kind.product:
            found += _product(schedule, target, operation)
        elif kind.name == "write_stats":
            found += _statistics(schedule, operation)
        elif kind.name == "normalise_store":
            found += _output(schedule, operation)
        elif kind.name in ALIKE:
            found += _alike(schedule, operation)
        elif kind.name == "bulk_load":
            found += _rows_alone(schedule, operation)
        elif kind.unit in (Unit.TMA_LOAD, Unit.TMA_STORE):
            found += _box(schedule, target, operation)
    for buffer in schedule.buffers:
        found += _dimensions(buffer)
        found += _parts(buffer, target)
    return found


def _tile(buffer: Buffer) -> str:
    return f"`{buffer.name}` {' x '.join(map(str, buffer.tile))}"


def _notes(*buffers: Buffer) -> tuple[Note, ...]:
    return tuple(Note(text=_tile(b), span=b.span) for b in buffers)


def _product(schedule: Schedule, target: Target, operation: Operation) -> Iterator[Diagnostic]:
    """A [m, k] times B [k, n], to a result [m, n], each operand as it is taken (B^T is [n, k]).

    Where a product sums over instances, k is that of all, and each has its part of the result;
    where it spans them, it takes their tiles side by side, and each warpgroup has its own columns.
    """
    name = (operation.writes or operation.updates)[0]
    a, b, result = (schedule.buffer_of(x) for x in (operation.a or "", operation.b or "", name))
    if operation.options.get("spans"):
        a, b, result = (_side_by_side(schedule, x) for x in (a, b, result))
    if any(len(x.tile) != 2 for x in (a, b, result)):
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}` multiplies matrices: rows and columns are needed",
            span=operation.span,
            notes=_notes(a, b, result),
        )
        return
    if operation.options.get("sums_over"):
        yield from _summed(schedule, target, operation, (a, b), result)
        return
    if columns_split(schedule, operation):
        b = _in_shares(schedule, operation, b)
    m, k = a.tile[::-1] if "a" in operation.transposed else a.tile
    n = result.tile[1]
    expected = (n, k) if "b" in operation.transposed else (k, n)
    fits = (
        b.tile[0] == expected[0] and b.tile[1] >= expected[1]
        if len(b.items) > 1
        else ((b.tile[0], b.tile[1]) == expected)
    )  # items that take turns in a ring share the slots of the widest
    if not fits or result.tile[0] != m:
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}`: {_tile(a)} by {_tile(b)} does not give {_tile(result)}",
            span=operation.span,
            notes=_notes(a, b, result),
            fix=f"{_tile(a)} and {_tile(result)} ask for {expected[0]} x {expected[1]}",
        )
    named = (schedule.buffer_of(operation.a or ""), schedule.buffer_of(operation.b or ""))
    for tile, which in _head_dims(schedule, operation, *named, result):
        dim = schedule.head_dim if which == "head_dim" else schedule.head_dim_v
        if tile.tile[1] == dim:
            continue
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}`: {_tile(tile)} has {tile.tile[1]} columns, {which} is {dim}",
            span=operation.span,
            notes=_notes(tile),
            fix=f"write `{which}` for the columns of `{tile.name}`",
        )
    own = n // (schedule.index.count if columns_split(schedule, operation) else 1)
    yield from _instruction(target, operation, (m, own, k))
    yield from _types(schedule, operation, (a, b), result)


def _in_shares(schedule: Schedule, operation: Operation, b: Buffer) -> Buffer:
    """A B operand with columns for whole steps of each instance: TMA fills them with zeros."""
    if "b" in operation.transposed:
        return b
    step = STEP * schedule.index.count
    return replace(b, tile=(b.tile[0], -(-b.tile[1] // step) * step))


def _side_by_side(schedule: Schedule, buffer: Buffer) -> Buffer:
    """The tile of all instances together."""
    if not buffer.per or len(buffer.tile) != 2:
        return buffer
    return replace(buffer, tile=(buffer.tile[0], buffer.tile[1] * schedule.index.count))


def _head_dims(
    schedule: Schedule, operation: Operation, a: Buffer, b: Buffer, result: Buffer
) -> Iterator[tuple[Buffer, str]]:
    """Tiles whose columns are a head dim, and which one."""
    if schedule.kernel == "attention_forward":
        yield (a, "head_dim") if operation.writes else (result, "head_dim_v")
        return
    for item, tile in ((operation.a, a), (operation.b, b)):
        if item in ("q", "k"):
            yield tile, "head_dim"
        elif item in ("v", "do"):
            yield tile, "head_dim_v"


def _summed(
    schedule: Schedule,
    target: Target,
    operation: Operation,
    operands: tuple[Buffer, Buffer],
    result: Buffer,
) -> Iterator[Diagnostic]:
    """Instances have their part of the rows, or of the columns, of one product of all."""
    a, b = operands
    count = schedule.index.count
    k, m = a.tile if "a" in operation.transposed else a.tile[::-1]
    rows, columns = result.tile
    n = padded(b.tile[1])
    shares = ((m, _in_shares(schedule, operation, b).tile[1] // count), (m // count, n))
    if not a.per or not b.per or k != b.tile[0] or (rows, columns) not in shares:
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}`: {_tile(a)} by {_tile(b)}, of all `{schedule.index.name}`, "
            f"does not give {_tile(result)} to each",
            span=operation.span,
            notes=_notes(a, b, result),
            fix=f"write `tile: [{m}, {shares[0][1]}]` or `[{m // count}, {n}]` for `{result.name}`",
        )
        return
    yield from _instruction(target, operation, (rows, columns, k * count))
    yield from _types(schedule, operation, operands, result)


def _alike(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """What is written is as large as what is read; of one tile, each instance may write a part."""
    read, written = (schedule.buffer_of(i) for i in (operation.reads[0], operation.writes[0]))
    parts = not read.per and written.per
    whole = _side_by_side(schedule, written) if parts else written
    fits = read.tile[0] == whole.tile[0] and read.tile[-1] <= whole.tile[-1]
    if read.tile != whole.tile and not (parts and fits):
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}`: {_tile(read)} does not fit into {_tile(written)}",
            span=operation.span,
            notes=_notes(read, written),
        )


def _rows_alone(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """One float32 for each row of a block; blocks divide the padding of the arrays."""
    buffer = schedule.buffer_of(operation.writes[0])
    rows = schedule.buffer_of("q").tile[0]
    if buffer.tile != (1, rows):
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}` loads 1 x {rows} values, {_tile(buffer)} is another shape",
            span=buffer.span,
            fix=f"write `tile: [1, {rows}]`",
        )
    if ROW_UNIT % rows:
        yield Diagnostic(
            code="FA0411",
            title=f"blocks of {rows} queries do not divide {ROW_UNIT}, the padding of row arrays",
            span=buffer.span,
        )
    if resolve(buffer.dtype, schedule.dtype).name != "f32":
        title = f"`{operation.name}` loads f32, `{buffer.name}` holds {buffer.dtype}"
        yield Diagnostic(code="FA0413", title=title, span=buffer.span, fix="write `dtype: f32`")


def _instruction(
    target: Target, operation: Operation, mnk: tuple[int, int, int]
) -> Iterator[Diagnostic]:
    m, n, k = mnk
    if "b" in operation.transposed:  # TMA fills up head dims with zeros; keys it does not
        k = padded(k)
    else:
        n = padded(n)
    shape = target.matrix
    if (
        m == shape.m
        and k % shape.k == 0
        and n % shape.n_step == 0
        and shape.n_step <= n <= shape.n_max
    ):
        return
    yield Diagnostic(
        code="FA0412",
        title=f"`{operation.name}` has {m} rows, {mnk[1]} columns and sums {mnk[2]}; "
        f"{shape.instruction} has {shape.m} rows, up to {shape.n_max} columns by {shape.n_step}, "
        f"and sums by {shape.k}",
        span=operation.span,
    )


def _types(
    schedule: Schedule, operation: Operation, operands: tuple[Buffer, ...], result: Buffer
) -> Iterator[Diagnostic]:
    io = schedule.dtype
    for buffer in operands:
        if resolve(buffer.dtype, io).bits != 16 or resolve(buffer.dtype, io).name != io:
            title = (
                f"`{operation.name}` takes operands of {io}, `{buffer.name}` holds {buffer.dtype}"
            )
            yield Diagnostic(code="FA0413", title=title, span=buffer.span, fix="leave `dtype` out")
    if resolve(result.dtype, io).name != "f32":
        held = resolve(result.dtype, io).name
        title = f"`{operation.name}` sums in f32, `{result.name}` holds {held}"
        yield Diagnostic(code="FA0413", title=title, span=result.span, fix="write `dtype: f32`")


def _statistics(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """A sum and a maximum for each row of a query tile, in f32."""
    buffer = schedule.buffer_of(operation.writes[0])
    product = next(o for o in schedule.operations if KINDS[o.kind].product and o.writes)
    rows = schedule.buffer_of(product.writes[0]).tile[0]
    if buffer.tile != (2, rows):
        yield Diagnostic(
            code="FA0411",
            title=f"`{operation.name}` writes 2 x {rows} values, {_tile(buffer)} is another shape",
            span=buffer.span,
            fix=f"write `tile: [2, {rows}]`",
        )
    if resolve(buffer.dtype, schedule.dtype).name != "f32":
        title = f"`{operation.name}` writes f32, `{buffer.name}` holds {buffer.dtype}"
        yield Diagnostic(code="FA0413", title=title, span=buffer.span, fix="write `dtype: f32`")


def _output(schedule: Schedule, operation: Operation) -> Iterator[Diagnostic]:
    """O and the tile that it is written to are alike."""
    buffers = {i: b for b in schedule.buffers for i in b.items}
    for o in (buffers[i] for i in operation.reads if buffers[i].space is not Space.SMEM):
        for out in (buffers[i] for i in operation.writes if i in buffers):
            if o.tile != out.tile:
                yield Diagnostic(
                    code="FA0411",
                    title=f"`{operation.name}`: {_tile(o)} does not fit into {_tile(out)}",
                    span=operation.span,
                    notes=_notes(o, out),
                )


def _box(schedule: Schedule, target: Target, operation: Operation) -> Iterator[Diagnostic]:
    """A tile moves in boxes of whole rows: so many rows, and inner bytes of one swizzle row."""
    buffer = schedule.buffer_of((operation.writes or operation.reads)[0])
    if buffer.space is not Space.SMEM:
        title = (
            f"`{operation.name}`: TMA moves shared memory, `{buffer.name}` lies in {buffer.space}"
        )
        yield Diagnostic(code="FA0414", title=title, span=operation.span, notes=_notes(buffer))
        return
    rows = buffer.tile[0] * (schedule.index.count if buffer.one_load else 1)
    bits = resolve(buffer.dtype, schedule.dtype).bits
    step = 128 // bits  # global rows start at multiples of 16 bytes (PTX, tensor maps)
    if rows > target.box_rows:
        yield Diagnostic(
            code="FA0414",
            title=f"`{operation.name}` moves {rows} rows, a TMA box has up to {target.box_rows}",
            span=operation.span,
            notes=_notes(buffer),
            fix="leave `one_load` out" if buffer.one_load else "take a smaller tile",
        )
    if buffer.tile[-1] % step or rows % 8:
        yield Diagnostic(
            code="FA0414",
            title=f"`{operation.name}` moves {rows} x {buffer.tile[-1]} elements: rows come in "
            f"eights, columns in steps of 16 bytes ({step} elements)",
            span=operation.span,
            notes=_notes(buffer),
        )


def _dimensions(buffer: Buffer) -> Iterator[Diagnostic]:
    if buffer.parts and len(buffer.tile) != 2:
        title = f"`{buffer.name}` is handed over by columns, and has none"
        yield Diagnostic(code="FA0415", title=title, span=buffer.span)


def _parts(buffer: Buffer, target: Target) -> Iterator[Diagnostic]:
    """Parts are whole steps of the instruction that takes them, and make up the tile."""
    if not buffer.parts or len(buffer.tile) != 2:
        return
    shown = " + ".join(map(str, buffer.parts))
    if sum(buffer.parts) != buffer.tile[1]:
        title = (
            f"the parts of `{buffer.name}`, {shown}, make {sum(buffer.parts)} columns, "
            f"it has {buffer.tile[1]}"
        )
        yield Diagnostic(code="FA0415", title=title, span=buffer.span)
    if any(p % target.matrix.k for p in buffer.parts):
        shape = target.matrix
        title = f"the parts of `{buffer.name}` are {shown}; {shape.instruction} sums by {shape.k}"
        yield Diagnostic(code="FA0415", title=title, span=buffer.span)
