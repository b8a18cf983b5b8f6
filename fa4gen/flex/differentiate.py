"""The derivative of an expression by its score, and by the elements that it takes from tensors.

Reverse mode, on the nodes: the result is an expression of the same inputs, simplified as any.
Integers, truth values and captured numbers have no derivative; where a function has two (the
larger of equals, |0|), one of them is taken.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from fa4gen.ir.expression import Expression, Modifiers, Node, Type

from .build import Builder


@dataclass(frozen=True, slots=True, kw_only=True)
class Derivative:
    """`expression` gives the value, its derivative by the score, and for each of `elements` the
    indices and the derivative; `elements`: (tensor, number of its indices)."""

    expression: Expression
    elements: tuple[tuple[int, int], ...]


def differentiate(expression: Expression, tensors: Collection[int] = ()) -> Derivative:
    """Of the first result; `tensors`: the captured tensors that a gradient is wanted for."""
    b = Builder()
    value = b.copy(expression)[0]
    own = list(b.nodes)  # the derivative's nodes come after these
    found: dict[int, int] = {value: b.constant(1.0)}

    def add(n: int, part: int) -> None:
        if b.type(n) is Type.F32:
            found[n] = b.apply("add", found[n], part) if n in found else part

    for n in range(len(own) - 1, -1, -1):
        if n in found and own[n].type is Type.F32:
            for argument, part in _parts(b, own[n], n, found[n]):
                add(argument, part)
    zero = b.constant(0.0)
    score = next((n for n, node in enumerate(own) if node.op == "score"), -1)
    results, elements = [value, found.get(score, zero)], []
    for n, node in enumerate(own):
        if node.op == "load" and n in found and node.value in tensors:
            elements.append((int(node.value or 0), len(node.args)))
            results += [*node.args, found[n]]
    return Derivative(expression=b.expression(*results), elements=tuple(elements))


def with_derivative(modifiers: Modifiers) -> Modifiers:
    """For a backward: the score function gives its derivative too, unless that is 1."""
    if modifiers.score is None:
        return modifiers
    both = differentiate(modifiers.score).expression
    b = Builder()
    value, change = b.copy(both)[:2]
    results = (value,) if b.value(change) == 1.0 else (value, change)
    return replace(modifiers, score=b.expression(*results))


def _parts(b: Builder, node: Node, y: int, g: int) -> list[tuple[int, int]]:  # noqa: C901 - a table, one case an operation
    """What each argument gets of the derivative `g` by the value `y` of a node."""
    x = node.args[0] if node.args else 0
    z = node.args[-1] if node.args else 0

    def of(op: str, *args: int) -> int:
        return b.apply(op, *args)

    def times(factor: float) -> int:
        return of("mul", g, b.constant(factor))

    match node.op:
        case "add":
            return [(x, g), (z, g)]
        case "sub":
            return [(x, g), (z, of("neg", g))]
        case "mul":
            return [(x, of("mul", g, z)), (z, of("mul", g, x))]
        case "div":
            part = of("div", g, z)
            return [(x, part), (z, of("neg", of("mul", part, y)))]
        case "mod":
            whole = of("floor", of("div", x, z))
            return [(x, g), (z, of("neg", of("mul", g, whole)))]
        case "neg":
            return [(x, of("neg", g))]
        case "min" | "max":
            first = of("le", x, z) if node.op == "min" else of("le", z, x)
            return _chosen(b, first, x, z, g)
        case "where":
            return _chosen(b, x, node.args[1], z, g)
        case "abs":
            below = of("lt", x, b.constant(0.0))
            return [(x, of("where", below, of("neg", g), g))]
        case "exp":
            return [(x, of("mul", g, y))]
        case "exp2":
            return [(x, of("mul", times(math.log(2)), y))]
        case "log":
            return [(x, of("div", g, x))]
        case "log2":
            return [(x, of("div", times(1 / math.log(2)), x))]
        case "tanh":
            return [(x, of("mul", g, of("sub", b.constant(1.0), of("mul", y, y))))]
        case "sqrt":
            return [(x, of("div", times(0.5), y))]
        case "rsqrt":
            return [(x, of("mul", times(-0.5), of("mul", y, of("mul", y, y))))]
        case "sin":
            return [(x, of("mul", g, of("cos", x)))]
        case "cos":
            return [(x, of("neg", of("mul", g, of("sin", x))))]
        case _:
            return []  # an input, or a step function


def _chosen(b: Builder, first: int, x: int, z: int, g: int) -> list[tuple[int, int]]:
    """All goes to the argument that was taken."""
    zero = b.constant(0.0)
    return [(x, b.apply("where", first, g, zero)), (z, b.apply("where", first, zero, g))]
