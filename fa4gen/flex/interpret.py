"""Computes an expression with torch, on whole tensors of scores and indices: what it means."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from fa4gen.ir.expression import Expression, Type

OPERATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.true_divide,
        "floordiv": torch.floor_divide,
        "mod": torch.remainder,
        "min": torch.minimum,
        "max": torch.maximum,
        "and": torch.bitwise_and,
        "or": torch.bitwise_or,
        "xor": torch.bitwise_xor,
        "shl": torch.bitwise_left_shift,
        "shr": torch.bitwise_right_shift,
        "lt": torch.lt,
        "le": torch.le,
        "eq": torch.eq,
        "ne": torch.ne,
        "neg": torch.neg,
        "abs": torch.abs,
        "not": torch.bitwise_not,
        "floor": torch.floor,
        "sqrt": torch.sqrt,
        "rsqrt": torch.rsqrt,
        "exp": torch.exp,
        "exp2": torch.exp2,
        "log": torch.log,
        "log2": torch.log2,
        "tanh": torch.tanh,
        "sin": torch.sin,
        "cos": torch.cos,
        "where": torch.where,
    }
)
INTEGERS = {Type.BOOL: torch.bool, Type.I32: torch.int32, Type.I64: torch.int64}


def interpret(
    expression: Expression,
    inputs: Mapping[str, torch.Tensor],
    *,
    numbers: Sequence[int | float] = (),
    tensors: Sequence[torch.Tensor] = (),
    dtype: torch.dtype = torch.float64,
) -> tuple[torch.Tensor, ...]:
    """Values of the results, shaped as the inputs are broadcast.

    inputs: 'score' and names of `INDICES`, of shapes that go together; floating point is computed
    in `dtype`. An index past the end of a captured tensor takes its last element, as kernels do.
    """
    types = {**INTEGERS, Type.F32: dtype}
    values: list[torch.Tensor] = []
    device = next(iter(inputs.values())).device
    for node in expression.nodes:
        args = [values[a] for a in node.args]
        match node.op:
            case "constant":
                made = torch.tensor(node.value, dtype=types[node.type], device=device)
            case "number":
                number = numbers[int(node.value or 0)]
                made = torch.tensor(number, dtype=types[node.type], device=device)
            case "load":
                made = _element(tensors[int(node.value or 0)], args).to(types[node.type])
            case "cast":
                made = args[0].to(types[node.type])
            case name if name in inputs:
                made = inputs[name].to(types[node.type])
            case op:
                made = OPERATIONS[op](*args)
        values.append(made)
    return tuple(values[r] for r in expression.results)


def _element(tensor: torch.Tensor, indices: list[torch.Tensor]) -> torch.Tensor:
    if not indices:
        return tensor
    bounded = [
        torch.where(i < 0, i + n, i).clamp(0, max(n - 1, 0)).long()
        for i, n in zip(indices, tensor.shape, strict=True)
    ]
    return tensor[tuple(bounded)]
