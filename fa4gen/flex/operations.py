"""What torch's and Python's functions on scalars mean, by their names, as nodes of an expression.

Arguments are numbers of nodes (`Ref`) or Python numbers. An unknown name, or arguments that it
does not take here, is a `RefusedError`: the reason in words, and what to write instead.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from fa4gen.ir.expression import Type

from .build import Builder, Value

MOST_FACTORS = 8  # x ** n for whole n up to this is a product


@dataclass(frozen=True, slots=True)
class Ref:
    """A node of the builder."""

    node: int


class RefusedError(Exception):
    """An operation that kernels cannot do: why, and how to mend it."""

    def __init__(self, why: str, fix: str = "") -> None:
        self.why, self.fix = why, fix
        super().__init__(why)


Argument = Ref | Value | None
Maker = Callable[[Builder, Sequence[Argument], Mapping[str, Argument]], int]

BINARY = {
    **dict.fromkeys(("add", "iadd"), "add"),
    **dict.fromkeys(("sub", "subtract", "isub"), "sub"),
    **dict.fromkeys(("mul", "multiply", "imul"), "mul"),
    **dict.fromkeys(("truediv", "true_divide", "itruediv"), "div"),
    **dict.fromkeys(("floordiv", "floor_divide", "ifloordiv"), "floordiv"),
    **dict.fromkeys(("mod", "remainder", "imod"), "mod"),
    **dict.fromkeys(("minimum", "fmin"), "min"),
    **dict.fromkeys(("maximum", "fmax"), "max"),
    **dict.fromkeys(("and_", "bitwise_and", "iand", "__and__"), "and"),
    **dict.fromkeys(("or_", "bitwise_or", "ior", "__or__"), "or"),
    **dict.fromkeys(("xor", "bitwise_xor", "ixor", "__xor__"), "xor"),
    **dict.fromkeys(("lshift", "bitwise_left_shift"), "shl"),
    **dict.fromkeys(("rshift", "bitwise_right_shift"), "shr"),
    **dict.fromkeys(("lt", "less"), "lt"),
    **dict.fromkeys(("le", "less_equal"), "le"),
    "eq": "eq",
    **dict.fromkeys(("ne", "not_equal"), "ne"),
}
SWAPPED = {"gt": "lt", "greater": "lt", "ge": "le", "greater_equal": "le", "rsub": "sub"}
LOGICAL = {"logical_and": "and", "logical_or": "or", "logical_xor": "ne"}
UNARY = {
    **dict.fromkeys(("neg", "negative"), "neg"),
    **dict.fromkeys(("abs", "absolute"), "abs"),
    **dict.fromkeys(("invert", "bitwise_not"), "not"),
    **{
        n: n for n in ("exp", "exp2", "log", "log2", "tanh", "sin", "cos", "floor", "sqrt", "rsqrt")
    },
}
CASTS = {
    **dict.fromkeys(("float", "double", "half", "bfloat16"), Type.F32),
    **dict.fromkeys(("int", "short", "char", "byte"), Type.I32),
    "long": Type.I64,
    "bool": Type.BOOL,
}
UNCHANGED = ("pos", "clone", "contiguous", "positive")
CONSTANTS = {"new_ones": 1, "ones_like": 1, "new_zeros": 0, "zeros_like": 0}
WAITS = ("item", "tolist", "numpy", "cpu", "cuda", "nonzero", "__bool__")
KNOWN = (
    "they have arithmetic, comparisons, bitwise and logical operations, where, clamp, minimum, "
    "maximum, abs, sign, floor, ceil, exp, exp2, log, log2, sqrt, rsqrt, tanh, sigmoid, sin, cos"
)
REDUCES = ("sum", "mean", "any", "all", "prod", "cumsum", "argmax", "softmax", "sort", "amax")


def apply(b: Builder, name: str, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    """The node of one call. Raises `RefusedError`; TypeError: types that do not go together."""
    if name in BINARY:
        return b.apply(BINARY[name], *_two(b, name, args, named))
    if name in SWAPPED:
        return b.apply(SWAPPED[name], *reversed(_two(b, name, args, named)))
    if name in LOGICAL:
        return b.apply(LOGICAL[name], *(b.cast(n, Type.BOOL) for n in _two(b, name, args, named)))
    if name in UNARY:
        return b.apply(UNARY[name], node(b, args[0]))
    if name in CASTS:
        return b.cast(node(b, args[0]), CASTS[name])
    if name in UNCHANGED:
        return node(b, args[0])
    if name in CONSTANTS:
        return b.constant(CONSTANTS[name])
    if name in SPECIAL:
        return SPECIAL[name](b, args, named)
    raise _unknown(name)


def node(b: Builder, value: Argument) -> int:
    """The node of an argument."""
    if isinstance(value, Ref):
        return value.node
    if isinstance(value, bool | int | float):
        return b.constant(value)
    raise RefusedError(f"an argument is {value!r}, expected a number or a traced value")


def type_of_dtype(dtype: str) -> Type:
    """The type that elements of a torch type are computed in."""
    if dtype == "bool":
        return Type.BOOL
    if dtype.startswith(("float", "bfloat")):
        return Type.F32
    if dtype == "int64":
        return Type.I64
    if dtype in ("int32", "int16", "int8", "uint8"):
        return Type.I32
    raise RefusedError(
        f"elements of type torch.{dtype}", "use floats, integers up to 64 bits, or bools"
    )


def _two(
    b: Builder, name: str, args: Sequence[Argument], named: Mapping[str, Argument]
) -> tuple[int, int]:
    given = [*args, *(named[k] for k in ("other",) if k in named)]
    if len(given) != 2 or set(named) - {"other"} or None in given:
        raise RefusedError(f"`{name}` with these arguments", "call it with two values")
    return node(b, given[0]), node(b, given[1])


def _pow(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    base, power = _two(b, "pow", args, {"other": named["exponent"]} if "exponent" in named else {})
    n, known = b.value(power), b.value(base)
    if n is not None and float(n).is_integer() and 0 <= n <= MOST_FACTORS:
        made = b.constant(1, b.type(base))
        for _ in range(int(n)):
            made = b.apply("mul", made, base)
        return made if isinstance(n, int) else b.cast(made, Type.F32)
    if n == 0.5:
        return b.apply("sqrt", base)
    if n in (-1, -0.5):
        return b.apply("rsqrt", base) if n == -0.5 else b.apply("div", b.constant(1.0), base)
    if known is not None and known > 0:
        log = b.constant(math.log2(known))
        return _integral(b, base, power, b.apply("exp2", b.apply("mul", power, log)))
    log = b.apply("log2", base)
    return _integral(b, base, power, b.apply("exp2", b.apply("mul", power, log)))


def _integral(b: Builder, base: int, power: int, value: int) -> int:
    """An integer to an integer power is an integer."""
    if Type.F32 in (b.type(base), b.type(power)):
        return value
    return b.cast(b.apply("floor", b.apply("add", value, b.constant(0.5))), b.type(base))


def _div(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    mode = named.get("rounding_mode")
    x, y = _two(b, "div", args, {k: v for k, v in named.items() if k != "rounding_mode"})
    if mode is None:
        return b.apply("div", x, y)
    if str(mode) == "floor":
        return b.apply("floordiv", x, y)
    raise RefusedError(f"division rounded by {mode!r}", "use `//`, which rounds down")


def _where(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    if len(args) != 3 or named:
        raise RefusedError("`where` without two values", "torch.where(condition, value, other)")
    return b.apply("where", *(node(b, a) for a in args))


def _masked_fill(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    x, mask, value = [*args, *named.values()]
    chosen = b.cast(node(b, value), b.type(node(b, x)))
    return b.apply("where", node(b, mask), chosen, node(b, x))


def _clamp(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    given = dict(zip(("input", "min", "max"), args, strict=False)) | dict(named)
    made = node(b, given["input"])
    if given.get("min") is not None:
        made = b.apply("max", made, node(b, given["min"]))
    if given.get("max") is not None:
        made = b.apply("min", made, node(b, given["max"]))
    return made


def _sigmoid(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    e = b.apply("exp", b.apply("neg", b.cast(node(b, args[0]), Type.F32)))
    return b.apply("div", b.constant(1.0), b.apply("add", e, b.constant(1.0)))


def _silu(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    return b.apply("mul", node(b, args[0]), _sigmoid(b, args, named))


def _log1p(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    return b.apply("log", b.apply("add", node(b, args[0]), b.constant(1.0)))


def _relu(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    return b.apply("max", node(b, args[0]), b.constant(0))


def _square(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    return b.apply("mul", node(b, args[0]), node(b, args[0]))


def _reciprocal(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    return b.apply("div", b.constant(1.0), node(b, args[0]))


def _ceil(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    return b.apply("neg", b.apply("floor", b.apply("neg", node(b, args[0]))))


def _sign(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    x = node(b, args[0])
    zero, kind = b.constant(0, b.type(x)), b.type(x)
    below = b.apply("where", b.apply("lt", x, zero), b.constant(-1, kind), zero)
    return b.apply("where", b.apply("lt", zero, x), b.constant(1, kind), below)


def _not(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    return b.apply("not", b.cast(node(b, args[0]), Type.BOOL))


def _full(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    given = [*args[1:], *(named[k] for k in ("fill_value",) if k in named)]
    return node(b, given[-1])


def _isinf(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    x = b.apply("abs", b.cast(node(b, args[0]), Type.F32))
    return b.apply("eq", x, b.constant(math.inf))


def _isnan(b: Builder, args: Sequence[Argument], named: Mapping[str, Argument]) -> int:
    del named
    x = b.cast(node(b, args[0]), Type.F32)
    return b.apply("ne", x, x)


SPECIAL: Mapping[str, Maker] = MappingProxyType(
    {
        "pow": _pow,
        "ipow": _pow,
        "div": _div,
        "divide": _div,
        "where": _where,
        "masked_fill": _masked_fill,
        "clamp": _clamp,
        "clip": _clamp,
        "clamp_min": lambda b, a, n: _clamp(b, [a[0], *(a[1:] or n.values())], {}),
        "clamp_max": lambda b, a, n: _clamp(b, [a[0], None, *(a[1:] or n.values())], {}),
        "sigmoid": _sigmoid,
        "silu": _silu,
        "log1p": _log1p,
        "relu": _relu,
        "square": _square,
        "reciprocal": _reciprocal,
        "ceil": _ceil,
        "sign": _sign,
        "logical_not": _not,
        "new_full": _full,
        "full_like": _full,
        "isinf": _isinf,
        "isnan": _isnan,
    }
)


def _unknown(name: str) -> RefusedError:
    """Why a name is not known, as far as that can be guessed."""
    if name in WAITS:
        return RefusedError(
            f"`{name}` asks for a value while the function is only written down",
            "stay on tensors: torch.where(condition, value, other)",
        )
    if name in REDUCES:
        return RefusedError(
            f"`{name}` needs other scores of the row than this one",
            "a function sees one score at a time; compute the rest before, and index it",
        )
    if name.endswith("_") and not name.endswith("__"):
        return RefusedError(f"`{name}` changes a tensor in place", f"use `{name.rstrip('_')}`")
    return RefusedError(f"kernels have no `{name}`", KNOWN)
