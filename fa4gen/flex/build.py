"""Builds expressions node by node: types are promoted as torch does, constants folded, equal
nodes are one, and what changes nothing is left out."""

import math
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

from fa4gen.ir.expression import COMPARISONS, INDICES, RANKS, Expression, Node, Type

Value = bool | int | float
INT32 = 2**31
SAME = frozenset({"add", "sub", "mul", "floordiv", "mod", "min", "max", "shl", "shr"})
FLOATING = frozenset(
    {"div", "floor", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "tanh", "sin", "cos"}
)
COMMUTE = frozenset({"add", "mul", "min", "max", "and", "or", "xor", "eq", "ne"})


def _safely(function: Callable[[float], float]) -> Callable[[float], float]:
    """The function with IEEE results outside of its domain or range."""

    def made(x: float) -> float:
        try:
            return function(x)
        except OverflowError:
            return math.inf
        except (ValueError, ZeroDivisionError):
            return math.nan

    return made


def _divide(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a)


FOLD: Mapping[str, Callable[..., Value]] = MappingProxyType(
    {
        "add": lambda a, b: a + b,
        "sub": lambda a, b: a - b,
        "mul": lambda a, b: a * b,
        "div": _divide,
        "floordiv": lambda a, b: a // b,
        "mod": lambda a, b: a % b,
        "min": min,
        "max": max,
        "and": lambda a, b: a & b,
        "or": lambda a, b: a | b,
        "xor": lambda a, b: a ^ b,
        "shl": lambda a, b: a << b,
        "shr": lambda a, b: a >> b,
        "lt": lambda a, b: a < b,
        "le": lambda a, b: a <= b,
        "eq": lambda a, b: a == b,
        "ne": lambda a, b: a != b,
        "neg": lambda a: -a,
        "abs": abs,
        "not": lambda a: not a if isinstance(a, bool) else ~a,
        "where": lambda c, a, b: a if c else b,
        "floor": lambda a: float(math.floor(a)) if math.isfinite(a) else a,
        "sqrt": _safely(math.sqrt),
        "rsqrt": _safely(lambda a: 1 / math.sqrt(a)),
        "exp": _safely(math.exp),
        "exp2": _safely(lambda a: 2.0**a),
        "log": lambda a: math.log(a) if a > 0 else (-math.inf if a == 0 else math.nan),
        "log2": lambda a: math.log2(a) if a > 0 else (-math.inf if a == 0 else math.nan),
        "tanh": math.tanh,
        "sin": _safely(math.sin),
        "cos": _safely(math.cos),
    }
)


def type_of(value: Value) -> Type:
    """The type of a Python number."""
    if isinstance(value, bool):
        return Type.BOOL
    if isinstance(value, int):
        return Type.I32 if -INT32 <= value < INT32 else Type.I64
    return Type.F32


class Builder:
    """The nodes so far. A method returns the number of the node that has the value asked for."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._known: dict[str, int] = {}

    def expression(self, *results: int) -> Expression:
        """What the results need, in order, and nothing else."""
        keep, todo = set(), list(results)
        while todo:
            n = todo.pop()
            if n not in keep:
                keep.add(n)
                todo += self.nodes[n].args
        order = sorted(keep)
        new = {n: i for i, n in enumerate(order)}
        nodes = (self.nodes[n] for n in order)
        return Expression(
            nodes=tuple(
                Node(op=x.op, type=x.type, args=tuple(new[a] for a in x.args), value=x.value)
                for x in nodes
            ),
            results=tuple(new[r] for r in results),
        )

    def type(self, n: int) -> Type:
        """The type of a node."""
        return self.nodes[n].type

    def value(self, n: int) -> Value | None:
        """The value of a constant; None for what is none."""
        node = self.nodes[n]
        return node.value if node.op == "constant" else None

    def input(self, name: str) -> int:
        """The score, or an index."""
        return self._add(Node(op=name, type=Type.F32 if name == "score" else Type.I32))

    def constant(self, value: Value, kind: Type | None = None) -> int:
        """A number that is part of the expression."""
        kind = kind or type_of(value)
        made: Value = value
        if kind is Type.BOOL:
            made = bool(value)
        elif kind is Type.F32:
            made = float(value)
        elif isinstance(value, float):
            made = int(value) if math.isfinite(value) else 0
        else:
            made = int(value)
        return self._add(Node(op="constant", type=kind, value=made))

    def number(self, number: int, kind: Type) -> int:
        """A captured number."""
        return self._add(Node(op="number", type=kind, value=number))

    def load(self, tensor: int, kind: Type, indices: Iterable[int]) -> int:
        """An element of a captured tensor."""
        return self._add(Node(op="load", type=kind, args=tuple(indices), value=tensor))

    def cast(self, n: int, kind: Type) -> int:
        """The value in another type; a number becomes the truth value that it is not 0."""
        have = self.type(n)
        if have is kind:
            return n
        if kind is Type.BOOL:
            return self.apply("ne", n, self.constant(0, have))
        if (value := self.value(n)) is not None:
            return self.constant(value, kind)
        return self._add(Node(op="cast", type=kind, args=(n,)))

    def apply(self, op: str, *args: int) -> int:
        """An operation on values of any types that it makes sense for (TypeError: it does not)."""
        types = [self.type(a) for a in args]
        widest = max(types[-2:], key=RANKS.__getitem__)
        if op in ("add", "mul", "sub") and widest is Type.BOOL:
            if op == "sub":
                raise TypeError("truth values cannot be subtracted")
            return self.apply("or" if op == "add" else "and", *args)
        if op in ("and", "or", "xor", "not", "shl", "shr") and widest is Type.F32:
            raise TypeError(f"`{op}` is for integers and truth values")
        if op in ("neg", "abs", "floordiv", "mod", "shl", "shr") and widest is Type.BOOL:
            widest = Type.I32
        if op in FLOATING:
            widest = Type.F32
        first = [self.cast(args[0], Type.BOOL)] if op == "where" else []
        cast = [*first, *(self.cast(a, widest) for a in args[len(first) :])]
        return self._simple(op, Type.BOOL if op in COMPARISONS else widest, cast)

    def _simple(self, op: str, kind: Type, args: list[int]) -> int:
        values = [self.value(a) for a in args]
        known = [v for v in values if v is not None]
        if len(known) == len(args) and not (op in ("floordiv", "mod") and not values[1]):
            return self.constant(FOLD[op](*known), kind)
        if op in COMMUTE and (values[0] is not None or (values[1] is None and args[0] > args[1])):
            args, values = args[::-1], values[::-1]  # a constant stands on the right
        if op in COMPARISONS and 0 in values:
            args = self._without_difference(args, values)
        same = self._identity(op, kind, args, values)
        if same is not None:
            return same
        return self._add(Node(op=op, type=kind, args=tuple(args)))

    def _identity(  # noqa: C901 - a table of rules
        self, op: str, kind: Type, args: list[int], values: list[Value | None]
    ) -> int | None:
        """A node that has the same value already, or for less; None where no rule holds."""
        a, b = args[0], args[-1]
        right = values[-1]
        whole = kind is not Type.F32
        equal = a == b and len(args) == 2
        match op:
            case "add" | "sub" if right == 0:
                return a
            case "sub" if equal and whole:
                return self.constant(0, kind)
            case "mul" | "floordiv" if right == 1 and whole:
                return a
            case "mul" | "div" if right == 1:
                return a
            case "mul" if right == 0 and whole:
                return b
            case "div" if isinstance(right, float) and _power_of_two(right):
                return self._simple("mul", kind, [a, self.constant(1.0 / right)])
            case "mod" if right == 1 and whole:
                return self.constant(0, kind)
            case "and" | "or" | "min" | "max" if equal:
                return a
            case "and" if kind is Type.BOOL and right is not None:
                return a if right else b
            case "or" if kind is Type.BOOL and right is not None:
                return b if right else a
            case "xor" | "ne" if equal and self.type(a) is not Type.F32:
                return self.constant(False, kind)
            case "eq" if equal and self.type(a) is not Type.F32:
                return self.constant(True)
            case "ne" if self.type(a) is Type.BOOL and right is False:
                return a
            case "lt" if equal:
                return self.constant(False)
            case "le" if equal and self.type(a) is not Type.F32:
                return self.constant(True)
            case "not" if kind is Type.BOOL:
                return self._negated(a)
            case "where" if args[1] == args[2]:
                return args[1]
            case "where" if values[0] is not None:
                return args[1] if values[0] else args[2]
            case "where" if kind is Type.BOOL and values[1:] == [True, False]:
                return a
            case "neg" if self.nodes[a].op == "neg":
                return self.nodes[a].args[0]
            case "abs" if self.nodes[a].op == "abs":
                return a
        return None

    def _without_difference(self, args: list[int], values: list[Value | None]) -> list[int]:
        """`a - b` beside 0 is `a` beside `b`, for whole numbers."""
        n = 1 if values[0] == 0 else 0
        node = self.nodes[args[n]]
        if node.op != "sub" or node.type is Type.F32:
            return args
        return list(node.args[::-1] if n else node.args)

    def _negated(self, n: int) -> int | None:
        """A comparison of integers turned round."""
        node = self.nodes[n]
        if node.op == "not":
            return node.args[0]
        if node.op in ("eq", "ne"):
            other = "ne" if node.op == "eq" else "eq"
            return self._add(Node(op=other, type=Type.BOOL, args=node.args))
        if node.op in ("lt", "le") and self.type(node.args[0]) is not Type.F32:
            other = "le" if node.op == "lt" else "lt"
            return self._add(Node(op=other, type=Type.BOOL, args=node.args[::-1]))
        return None

    def _add(self, node: Node) -> int:
        found = self._known.setdefault(str(node), len(self.nodes))
        if found == len(self.nodes):
            self.nodes.append(node)
        return found

    def copy(
        self,
        expression: Expression,
        *,
        numbers: int | Mapping[int, int] = 0,
        tensors: int | Mapping[int, int] = 0,
        inputs: Mapping[str, int] = MappingProxyType({}),
    ) -> tuple[int, ...]:
        """Another expression's nodes added to these; returns its results here.

        `numbers`, `tensors`: where its captured ones are in the table of these (an offset, or a
        map); `inputs`: nodes of these that stand for its score or indices.
        """
        new: list[int] = []
        for node in expression.nodes:
            args = [new[a] for a in node.args]
            match node.op:
                case "constant":
                    new.append(self.constant(node.value or 0, node.type))
                case "number":
                    new.append(self.number(_moved(numbers, node.value), node.type))
                case "load":
                    new.append(self.load(_moved(tensors, node.value), node.type, args))
                case "cast":
                    new.append(self.cast(args[0], node.type))
                case name if name in ("score", *INDICES):
                    new.append(inputs[name] if name in inputs else self.input(name))
                case op:
                    new.append(self.apply(op, *args))
        return tuple(new[r] for r in expression.results)


def _moved(table: int | Mapping[int, int], number: object) -> int:
    assert isinstance(number, int)
    return number + table if isinstance(table, int) else table[number]


def _power_of_two(value: float) -> bool:
    return value != 0 and math.isfinite(value) and math.frexp(abs(value))[0] == 0.5
