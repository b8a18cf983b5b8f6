"""Names and small integer expressions in values: `tile_m * 2`, `head_dim // 64`, `exp2.degree`.

Parameters are looked up when they are used, so they may refer to each other in any order; a circle
is an error. Nothing but integers is computed.
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

from fa4gen.diag import Bag, Diagnostic, Span

from .reader import Map, Node, Scalar, Value

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod)
MAX_LENGTH = 200  # characters of one expression


def nearest(name: str, known: list[str]) -> str:
    """'write `x`' for the known name closest to a mistyped one, or the list of what there is."""
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f"write `{close[0]}`"
    return f"one of {', '.join(f'`{k}`' for k in known)}" if 0 < len(known) <= 16 else ""


@dataclass(slots=True)
class Environment:
    """What names mean: parameters (nodes), and the bound problem; errors go to the bag."""

    params: Map
    problem: Mapping[str, Value]
    mask: str  # 'full' | 'causal': which side of `{full: …, causal: …}` holds
    bag: Bag
    open: list[str] = field(default_factory=list)

    def pick(self, node: Node) -> Node:
        """The side of a choice that the bound problem asks for.

        `{full: a, causal: b}` goes by the mask, `{up_to: {64: a, 128: b}}` by the wider head dim.
        """
        while isinstance(node, Map) and node.entries:
            if set(node.keys()) <= {"full", "causal"}:
                chosen, what = node.get(self.mask), f"the {self.mask} mask"
            elif set(node.keys()) == {"up_to"} and isinstance(table := node.get("up_to"), Map):
                chosen, what = self._up_to(table), f"head dim {self.width}"
            else:
                break
            if chosen is None:
                self.error("FA0107", f"no value for {what}", node.span)
                chosen = node.entries[0][1]
            node = chosen
        return node

    @property
    def width(self) -> int:
        """The wider one of the head dims (of Q and K, of V)."""
        dims = (self.problem.get("head_dim"), self.problem.get("head_dim_v"))
        return max((d for d in dims if isinstance(d, int)), default=0)

    def _up_to(self, table: Map) -> Node | None:
        """The entry of the smallest bound that the head dim does not exceed."""
        bounds = [(int(k.text), v) for k, v in table.entries if k.text.isdigit()]
        return next((v for b, v in sorted(bounds, key=lambda e: e[0]) if self.width <= b), None)

    def resolve(self, node: Node) -> Node:
        """Follows plain names of parameters to what they stand for (`kv_stages` -> `max`)."""
        seen: set[str] = set()
        node = self.pick(node)
        while isinstance(node, Scalar) and isinstance(node.value, str) and node.text not in seen:
            seen.add(node.text)
            found = self.param(node.text)
            if found is None:
                break
            node = self.pick(found)
        return node

    def param(self, path: str) -> Node | None:
        """A parameter by its dotted path, or None."""
        node: Node | None = self.params
        for part in path.split("."):
            node = self.pick(node).get(part) if isinstance(node, Map) else None  # type: ignore[union-attr]
            if node is None:
                return None
        return node

    def known(self, text: str) -> bool:
        """Whether a text is an expression all of whose names are known."""
        tree = _parse(text)
        if tree is None:
            return False
        called = [n.func for n in ast.walk(tree) if isinstance(n, ast.Call)]
        outer = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n not in called]
        return all(n.id in self.problem or self.params.get(n.id) is not None for n in outer)

    def names(self) -> list[str]:
        """All names an expression may use."""
        return [*self.params.keys(), *self.problem]

    def error(self, code: str, title: str, span: Span, fix: str = "") -> None:
        """Keeps one error."""
        self.bag.add(Diagnostic(code=code, title=title, span=span, fix=fix))

    def integer(self, node: Node) -> int | None:
        """The integer that a scalar stands for; None (and an error) if there is none."""
        node = self.pick(node)
        if not isinstance(node, Scalar):
            self.error("FA0106", "an integer is expected here", node.span)
            return None
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.value
        tree = _parse(node.text) if isinstance(node.value, str) else None
        if tree is None:
            self.error("FA0106", f"an integer is expected, not `{node.text}`", node.span)
            return None
        return self._value(tree, node)

    def _value(self, tree: ast.expr, at: Scalar) -> int | None:
        match tree:
            case ast.Constant(value=int(number)):
                return number
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                inner = self._value(operand, at)
                return None if inner is None else -inner
            case ast.BinOp(left=left, op=operator, right=right):
                a, b = self._value(left, at), self._value(right, at)
                return None if a is None or b is None else self._computed(a, operator, b, at)
            case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
                values = [self._value(a, at) for a in args]
                found = [v for v in values if v is not None]
                whole = len(found) == len(values) > 0
                return (min(found) if name == "min" else max(found)) if whole else None
        return self._named(ast.unparse(tree), at)

    def _computed(self, a: int, operator: ast.operator, b: int, at: Scalar) -> int | None:
        match operator:
            case ast.Add():
                return a + b
            case ast.Sub():
                return a - b
            case ast.Mult():
                return a * b
        if b == 0:
            self.error("FA0210", f"`{at.text}` divides by zero", at.span)
            return None
        return a // b if isinstance(operator, ast.FloorDiv) else a % b

    def _named(self, name: str, at: Scalar) -> int | None:
        if name in self.problem:
            value = self.problem[name]
            if value is None:  # `serves` is at fault, and has been reported
                return None
            if isinstance(value, int) and not isinstance(value, bool):
                return value
        found = self.param(name)
        if found is None:
            self.error(
                "FA0204", f"no parameter is called `{name}`", at.span, nearest(name, self.names())
            )
            return None
        if name in self.open:
            circle = " -> ".join([*self.open[self.open.index(name) :], name])
            self.error("FA0210", f"parameters refer to each other in a circle: {circle}", at.span)
            return None
        self.open.append(name)
        value = self.integer(found)
        self.open.pop()
        return value


def _parse(text: str) -> ast.expr | None:
    """The tree of an integer expression, or None if the text is none."""
    if len(text) > MAX_LENGTH:
        return None
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if _allowed(tree) else None


def _allowed(tree: ast.expr) -> bool:
    match tree:
        case ast.Constant(value=value):
            return isinstance(value, int) and not isinstance(value, bool)
        case ast.Name():
            return True
        case ast.Attribute(value=inner):
            return isinstance(inner, (ast.Name, ast.Attribute)) and _allowed(inner)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _allowed(operand)
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _allowed(left) and _allowed(right)
        case ast.Call(func=ast.Name(id="min" | "max"), args=args, keywords=[]):
            return bool(args) and all(map(_allowed, args))
    return False
