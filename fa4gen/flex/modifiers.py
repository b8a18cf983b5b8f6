"""The functions of one call put together: one table of what both of them captured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fa4gen.ir.expression import Captured, Expression, Modifiers, Type

from .build import Builder, type_of

LISTED, FULL = 1, 2  # of a sparse block: all of it may count, or all of it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Function:
    """An expression with what it captured: tensors, and their types; values of numbers."""

    expression: Expression
    tensors: tuple[Any, ...] = ()
    captured: tuple[Captured, ...] = ()
    numbers: tuple[int | float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """What a kernel is made for, and what its call passes."""

    modifiers: Modifiers
    numbers: tuple[int | float, ...]
    tensors: tuple[Any, ...]


def join(score: Function | None, mask: Function | None) -> Joined:
    """Both functions over one table; a tensor that both captured is there once."""
    tensors: list[Any] = []
    captured: list[Captured] = []
    numbers: list[int | float] = []
    made: list[Expression | None] = []
    for function in (score, mask):
        if function is None:
            made.append(None)
            continue
        places = {}
        for n, (t, c) in enumerate(zip(function.tensors, function.captured, strict=True)):
            known = next((i for i, other in enumerate(tensors) if other is t), len(tensors))
            tensors[known : known + 1], captured[known : known + 1] = [t], [c]
            places[n] = known
        b = Builder()
        results = b.copy(function.expression, numbers=len(numbers), tensors=places)
        made.append(b.expression(*results))
        numbers += function.numbers
    return Joined(
        modifiers=Modifiers(
            score=made[0],
            mask=made[1],
            numbers=tuple(type_of(v) for v in numbers),
            tensors=tuple(captured),
        ),
        numbers=tuple(numbers),
        tensors=tuple(tensors),
    )


def within_blocks(mask: Function | None, state: Any, block: Sequence[int]) -> Function:
    """A mask that also asks the table of sparse blocks: (batch, head, query block, key block), of
    int8, LISTED or FULL (then the mask is not asked) or 0. Where tiles are not the blocks, only
    this keeps to the blocks exactly."""
    b = Builder()
    places = [b.input("batch"), b.input("head")]
    for name, size in zip(("query", "key"), block, strict=True):
        places.append(b.apply("floordiv", b.input(name), b.constant(size)))
    table = len(mask.tensors) if mask else 0
    kind = b.load(table, Type.I32, places)
    seen = b.apply("le", b.constant(LISTED), kind)
    if mask:
        (own,) = b.copy(mask.expression)
        full = b.apply("eq", kind, b.constant(FULL))
        seen = b.apply("or", full, b.apply("and", seen, own))
    whole = mask or Function(expression=b.expression(seen))
    return Function(
        expression=b.expression(seen),
        tensors=(*whole.tensors, state),
        captured=(*whole.captured, Captured(dtype="int8", rank=4)),
        numbers=whole.numbers,
    )
