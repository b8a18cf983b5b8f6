"""Prints the user's functions: an expression as a device function, each value where it belongs.

`score_mod(captured, batch, head)` computes what a tile has in common and returns three functions:
`row(query)` and `column(key)` give the values that a row, or a column, has in common;
`element(score, query, key, row, column)` one score (without `score`, for a mask), and for the
backward its derivative.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from fa4gen.diag import error
from fa4gen.ir.expression import INDICES, Captured, Expression, Modifiers, Node, Type

LEVELS = ("tile", "row", "column", "element")
TYPES: Mapping[Type, str] = MappingProxyType(
    {Type.BOOL: "cutlass.Boolean", Type.I32: "Int32", Type.I64: "Int64", Type.F32: "Float32"}
)
INFIX: Mapping[str, str] = MappingProxyType(
    {
        "add": "+",
        "sub": "-",
        "mul": "*",
        "floordiv": "//",
        "shl": "<<",
        "shr": ">>",
        "lt": "<",
        "le": "<=",
        "eq": "==",
        "ne": "!=",
        "and": "&",
        "or": "|",
        "xor": "^",
    }
)
CALLS: Mapping[str, str] = MappingProxyType(
    {
        **{f: f"cute.math.{f}({{}}, fastmath=True)" for f in ("exp", "exp2", "log", "log2")},
        **{f: f"cute.math.{f}({{}}, fastmath=True)" for f in ("sqrt", "rsqrt", "sin", "cos")},
        "tanh": "tanh({})",
        "floor": "cute.math.floor({})",
        "neg": "-{}",
        "div": "divide({}, {})",
    }
)


def functions(modifiers: Modifiers) -> str:
    """The text of `score_mod` and `mask_mod`, as far as there are any."""
    made = []
    if modifiers.score:
        made.append(_function("score_mod", modifiers.score, modifiers, ("score",)))
    if modifiers.mask:
        made.append(_function("mask_mod", modifiers.mask, modifiers, ()))
    return "\n\n\n".join(made)


def _function(name: str, e: Expression, modifiers: Modifiers, first: tuple[str, ...]) -> str:
    printed = _Printed(expression=e, tensors=modifiers.tensors)
    printed.run()
    result = ", ".join(printed.text(r, "element") for r in e.results)
    count = len(modifiers.numbers)
    names = [f"number_{n}" for n in range(count)]
    names += [f"tensor_{n}" for n in range(len(modifiers.tensors))]
    unpack = [f"{', '.join(names)}, = captured"] if names else []
    inner: tuple[tuple[str, tuple[str, ...], list[str], str], ...] = (
        ("row", ("query",), [], _tuple(printed.handed["row"])),
        ("column", ("key",), [], _tuple(printed.handed["column"])),
        (
            "element",
            (*first, "query", "key", "row", "column"),
            [f"{_tuple(printed.handed[x])} = {x}" for x in ("row", "column") if printed.handed[x]],
            result,
        ),
    )
    lines = [f"def {name}(captured, batch, head):", f'    """The {name} of the call."""']
    lines += [f"    {x}" for x in (*unpack, *printed.lines["tile"])]
    for level, parameters, before, answer in inner:
        lines += ["", f"    def {level}_values({', '.join(parameters)}):"]
        lines += [f"        {x}" for x in (*before, *printed.lines[level], f"return {answer}")]
    lines += ["", f"    return {', '.join(f'{level}_values' for level, *_ in inner)}"]
    return "\n".join(lines)


def _tuple(names: list[str]) -> str:
    return f"({', '.join(names)},)" if names else "()"


@dataclass(slots=True, kw_only=True)
class _Printed:
    """Assignments of each level; `handed`: names of a row or column that elements use."""

    expression: Expression
    tensors: tuple[Captured, ...]
    lines: dict[str, list[str]] = field(default_factory=lambda: {x: [] for x in LEVELS})
    handed: dict[str, list[str]] = field(default_factory=lambda: {"row": [], "column": []})
    names: dict[int, str] = field(default_factory=dict)
    extra: dict[str, tuple[str, str]] = field(default_factory=dict)  # text -> (name, level)
    levels: tuple[str, ...] = ()
    natural: tuple[bool, ...] = ()

    def run(self) -> None:
        """All nodes, in order."""
        self.levels = tuple(_level(uses) for uses in self.expression.uses())
        self.natural = tuple(naturals(self.expression))
        for n, node in enumerate(self.expression.nodes):
            self.names[n] = self._leaf(node) or self._assign(n, node)

    def _leaf(self, node: Node) -> str:
        """Text of what needs no computing; '' for other nodes."""
        match node.op:
            case "constant":
                return _constant(node)
            case "number":
                return f"number_{node.value}"
            case name if name in ("score", *INDICES):
                return name
            case _:
                return ""

    def text(self, n: int, level: str) -> str:
        """How a node is called at a level; it is handed over if it belongs to another."""
        return self._hand(self.names[n], self.levels[n], level)

    def _hand(self, name: str, own: str, level: str) -> str:
        leaf = not re.match(r"[vx]\d", name)
        if level == "element" and own in self.handed and not leaf and name not in self.handed[own]:
            self.handed[own].append(name)
        return name

    def _assign(self, n: int, node: Node) -> str:
        level = self.levels[n]
        args = [] if node.op == "load" else [self.text(a, level) for a in node.args]
        self.lines[level].append(f"v{n} = {self._operation(n, node, args)}")
        return f"v{n}"

    def _operation(self, n: int, node: Node, args: list[str]) -> str:  # noqa: C901 - a table
        nodes = [self.expression.nodes[a] for a in node.args]
        right = nodes[-1].value if nodes and nodes[-1].op == "constant" else None
        match node.op:
            case "load":
                return self._load(n, node)
            case "cast":
                return _cast(nodes[0].type, node.type, args[0])
            case "floordiv" | "mod" if node.type is Type.F32:
                quotient = f"cute.math.floor(divide({args[0]}, {args[1]}))"
                return quotient if node.op == "floordiv" else f"{args[0]} - {quotient} * {args[1]}"
            case "floordiv" if _shift(right):
                return f"{args[0]} >> {_shift(right)}"
            case "mod" if _shift(right):
                return f"{args[0]} & {int(right or 0) - 1}"
            case "mod":
                return f"floor_mod({args[0]}, {args[1]})"
            case "div":
                return f"{args[0]} * {self._reciprocal(node.args[1], self.levels[n])}"
            case "min" | "max" if node.type is Type.F32:
                return f"cute.arch.f{node.op}({', '.join(args)})"
            case "min" | "max" if node.type is Type.BOOL:
                return f"{args[0]} {'&' if node.op == 'min' else '|'} {args[1]}"
            case "min" | "max":
                return f"cutlass.{node.op}({', '.join(args)})"
            case "abs" if node.type is Type.F32:
                return f"absolute({args[0]})"
            case "abs":
                return f"cutlass.max({args[0]}, -{args[0]})"
            case "not" if node.type is Type.BOOL:
                return f"{args[0]} == False"
            case "not":
                return f"~{args[0]}"
            case "where":
                return f"{TYPES[node.type]}(cutlass.select_({', '.join(args)}))"
            case op if op in INFIX:
                return f"{args[0]} {INFIX[op]} {args[1]}"
            case op if op in CALLS:
                return CALLS[op].format(*args)
        raise error("FA0605", f"no device function does `{node.op}`")

    def _load(self, n: int, node: Node) -> str:
        """An element of a captured tensor; bounds are seen to where the index is computed."""
        tensor, level = f"tensor_{node.value}", self.levels[n]
        places = []
        for d, a in enumerate(node.args):
            check = "within" if self.natural[a] else "bounded"
            own = self.levels[a]
            kind = self.expression.nodes[a].type
            text = f"{check}({self.text(a, own)}, {tensor}.shape[{d}], {TYPES[kind]})"
            if kind is Type.I64:
                text = f"Int32({text})"
            places.append(self._value(text, own, level))
        found = f"{tensor}[{', '.join(places) or '0'}]"
        match self.tensors[int(node.value or 0)].dtype:
            case "bool":
                return f"{found} != 0"
            case _:
                return f"{TYPES[node.type]}({found})"

    def _reciprocal(self, n: int, level: str) -> str:
        node = self.expression.nodes[n]
        if node.op == "constant":
            value = 1.0 / float(node.value) if node.value else math.inf
            return _constant(Node(op="constant", type=Type.F32, value=value))
        own = self.levels[n]
        return self._value(f"cute.arch.rcp_approx({self.text(n, own)})", own, level)

    def _value(self, text: str, own: str, level: str) -> str:
        """A value that no node stands for, computed once, at the level where it belongs."""
        if text not in self.extra:
            name = f"x{len(self.extra)}"
            self.extra[text] = (name, own)
            self.lines[own].append(f"{name} = {text}")
        return self._hand(self.extra[text][0], own, level)


def _level(uses: frozenset[str]) -> str:
    if "score" in uses or {"query", "key"} <= uses:
        return "element"
    return "row" if "query" in uses else "column" if "key" in uses else "tile"


def naturals(e: Expression) -> Iterator[bool]:
    """For each node, whether it is surely a whole number that is not negative."""
    found: list[bool] = []
    for node in e.nodes:
        args = [found[a] for a in node.args]
        match node.op:
            case name if name in INDICES:
                made = True
            case "constant":
                made = isinstance(node.value, int) and node.value >= 0
            case "add" | "mul" | "min" | "max" | "floordiv" | "mod" | "and" | "shr" | "cast":
                made = all(args) and node.type is not Type.F32
            case "where":
                made = all(args[1:])
            case "abs":
                made = node.type is not Type.F32
            case _:
                made = False
        found.append(made)
    return iter(found)


def _shift(divisor: object) -> int:
    """The power of two that a divisor is; 0 where it is none."""
    if isinstance(divisor, bool) or not isinstance(divisor, int) or divisor < 2:
        return 0
    return divisor.bit_length() - 1 if divisor & (divisor - 1) == 0 else 0


def _constant(node: Node) -> str:
    value = node.value
    if node.type is Type.F32 and isinstance(value, float) and not math.isfinite(value):
        return f'Float32(float("{value}"))'
    return f"{TYPES[node.type]}({value!r})"


def _cast(have: Type, want: Type, text: str) -> str:
    if have is Type.BOOL:
        return f"float_of({text})" if want is Type.F32 else f"{TYPES[want]}(number_of({text}))"
    return f"{TYPES[want]}({text})"
