"""The reference of the schedule language, from the table that reads it."""

from collections.abc import Iterator, Mapping

from fa4gen.dsl import language as table
from fa4gen.dsl.schema import ENDS, STEPS, Anything, Key, ListOf, Phrase, Record, Table
from fa4gen.dsl.shapes import Choice, Depth, Flag, Integer, Name, Number, Shape
from fa4gen.ir.features import FEATURES
from fa4gen.ir.ops import KINDS, Kind

HEAD = f"""\
# The schedule language, version {table.VERSION}

Made by `fa4gen docs` from the table that reads schedules. `fa4gen schema` prints the same as JSON
Schema, for completion in editors. `fa4gen show --at plan FILE` and `--at program` show what the
compiler makes of a schedule; `fa4gen explain CODE` tells about an error.

A schedule is a mapping. Keys in **bold** must be there, unless the file extends another.

- Where an integer stands, an **expression** over `params` and the problem's dimensions may stand:
  `head_dim // 2`, `min(128, tile_n)`.
- Where a single value stands, a **choice** may stand: by mask (`{{full: 2, causal: 1}}`) or by head
  dim (`{{up_to: {{64: 4, 128: 2}}}}`; the smallest bound that holds the head dim counts).
- `extends: FILE` starts from another schedule: keys given here replace that file's, key by key;
  `null` takes a key away. `variants` names such changes, for `--variant NAME`; `--set KEY=VALUE`
  makes one from the command line.
"""
TOKENS = """\
## Steps and ends

A **step** names an operation in a role's order: `qk`, `qk[0]` (of instance 0 of the index), `qk[s]`
(of the role's own instance), `qk+1` (one block ahead: the compiler writes the prologue and the last
block apart). A text may hold several: `qk[0] qk[1]`.

An **end** of a barrier names who arrives or waits: `exp[s]`, `exp[s].0` (its first part),
`exp[s].rest` (all parts but the first). In `after`, a list means that all of them arrive in each
phase; `a | b` means that they take turns.
"""


def language() -> str:
    """The page, in Markdown."""
    parts = [HEAD, *_record("A schedule", table.ROOT.keys), *_record("serves", table.SERVES.keys)]
    parts += _features()
    for level in ("tile", "block"):
        shape = table.LEVELS.keys[level].shape
        if isinstance(shape, Record):
            parts += _record(f"levels: {level}", shape.keys)
    for title, record in (
        ("A role", table.ROLE),
        ("A buffer", table.BUFFER),
        ("The steps of a role", table.ROLE_STEPS),
    ):
        parts += _record(title, record.keys)
    parts += [TOKENS, *_operations(), *_record("A barrier", table.BARRIER.keys)]
    parts += _record("A turn", table.TURN.keys)
    return "\n".join(parts)


def _record(title: str, keys: Mapping[str, Key]) -> Iterator[str]:
    """A section with a row for each key."""
    yield f"## {title}\n"
    yield "| key | holds | meaning |\n| --- | --- | --- |"
    for name, key in keys.items():
        shown = f"**`{name}`**" if key.required else f"`{name}`"
        yield f"| {shown} | {_cell(holds(key.shape))} | {_cell(key.doc)} |"
    yield ""


def holds(shape: Shape) -> str:
    """What a value may be, in words."""
    match shape:
        case Integer():
            return f"{shape.low} … {shape.high}"
        case Number():
            return f"a number, {shape.low:g} … {shape.high:g}"
        case Depth():
            return f"1 … {shape.high}, or `max`"
        case Choice():
            return ", ".join(f"`{o}`" for o in shape.options)
        case Flag() | table.TrueFalse():
            return "`true` or `false`"
        case Name():
            return shape.what
        case ListOf():
            return f"a list of: {holds(shape.item)}" + ("; or one" if shape.or_one else "")
        case table.Values():
            return f"{holds(shape.item)}; a list of these, or a range"
        case _:
            return _structure(shape)


def _structure(shape: Shape) -> str:
    """The same for what has a section of its own."""
    match shape:
        case Phrase() if shape == STEPS:
            return "[steps](#steps-and-ends)"
        case Phrase() if shape == ENDS:
            return "[ends](#steps-and-ends)"
        case Phrase():
            return "a text"
        case Table():
            return f"names, each with {holds(shape.entry)}"
        case table.OperationShape():
            return "an [operation](#operations)"
        case Record():
            inner = ", ".join(f"`{k}`" for k in shape.keys)
            return f"{shape.what} ({inner})"
        case Anything():
            return "a mapping"
    raise TypeError(f"{type(shape).__name__} has no words here")


def _features() -> Iterator[str]:
    yield "### features\n"
    yield "| feature | meaning |\n| --- | --- |"
    for f in FEATURES.values():
        yield f"| `{f.name}` | {_cell(f.doc)} |"
    yield ""


def _operations() -> Iterator[str]:
    """Each kind of operation, then the options that some of them have."""
    yield "## Operations\n"
    yield "`op` is the kind; the other keys depend on it. `a` and `b` are a product's operands.\n"
    yield "| op | on | where | keys | meaning |\n| --- | --- | --- | --- | --- |"
    written = [k for k in KINDS.values() if not k.internal]
    for kind in written:
        yield _operation(kind)
    yield ""
    used = {name for kind in written for name in kind.options}
    yield from _record(
        "Options of operations", {n: key for n, key in table.OPTIONS.items() if n in used}
    )


def _operation(kind: Kind) -> str:
    keys = table.operation_record(kind).keys
    names = [f"**`{n}`**" if k.required else f"`{n}`" for n, k in keys.items() if n != "op"]
    where = {"tile": "outside the blocks", "block": "in the blocks"}.get(kind.level, "anywhere")
    cells = (f"`{kind.name}`", ", ".join(kind.targets) or "all", where, ", ".join(names), kind.doc)
    return f"| {' | '.join(_cell(c) for c in cells)} |"


def _cell(text: str) -> str:
    """A text in a table's cell: a bar would end it."""
    return text.replace("|", "\\|")
