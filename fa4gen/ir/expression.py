"""What a user's modification of attention computes: typed operations on one score, in order.

A node is an input (the score; batch, head, query and key index), a constant, a captured number or
an element of a captured tensor (both arguments of the kernel), or an operation on earlier nodes.
Two expressions that print alike mean the same, whoever wrote them: the text is their identity.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType


class Type(StrEnum):
    """Types of values, in the order of promotion; floating point is computed in 32 bits."""

    BOOL = "bool"
    I32 = "i32"
    I64 = "i64"
    F32 = "f32"


RANKS: Mapping[Type, int] = MappingProxyType({t: n for n, t in enumerate(Type)})
INDICES = ("batch", "head", "query", "key")

OPERATIONS: Mapping[str, int] = MappingProxyType(  # name -> number of arguments
    {
        **dict.fromkeys(("add", "sub", "mul", "div", "floordiv", "mod", "min", "max"), 2),
        **dict.fromkeys(("and", "or", "xor", "shl", "shr", "lt", "le", "eq", "ne"), 2),
        **dict.fromkeys(("neg", "abs", "not", "floor", "sqrt", "rsqrt"), 1),
        **dict.fromkeys(("exp", "exp2", "log", "log2", "tanh", "sin", "cos", "cast"), 1),
        "where": 3,
    }
)
COMPARISONS = frozenset({"lt", "le", "eq", "ne"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One value: `args` are numbers of earlier nodes; indices of the tensor, for a `load`.

    `value`: of a `constant`; the number of the captured `number`, or of the tensor of a `load`.
    """

    op: str  # 'score', a name of INDICES, 'constant', 'number', 'load', or a key of OPERATIONS
    type: Type
    args: tuple[int, ...] = ()
    value: bool | int | float | None = None

    def __str__(self) -> str:
        shown = "" if self.value is None else f" {self.value!r}"
        return f"{self.op}{shown}({', '.join(f'%{a}' for a in self.args)}): {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Captured:
    """A tensor that the function closes over: its type in torch's words, and its rank."""

    dtype: str  # 'float32', 'bfloat16', 'int64', 'bool', …
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """Nodes in an order in which each comes after its arguments, and the nodes asked for."""

    nodes: tuple[Node, ...]
    results: tuple[int, ...]

    def __str__(self) -> str:
        lines = [f"%{n} = {node}" for n, node in enumerate(self.nodes)]
        return "\n".join([*lines, "return " + ", ".join(f"%{r}" for r in self.results)])

    def uses(self) -> tuple[frozenset[str], ...]:
        """For each node, the inputs that its value depends on ('score' and names of INDICES)."""
        found: list[frozenset[str]] = []
        for node in self.nodes:
            own = {node.op} & {"score", *INDICES}
            found.append(frozenset(own.union(*(found[a] for a in node.args))))
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Modifiers:
    """What a kernel does with scores besides softmax: `score` replaces one, `mask` may hide it.

    Both use the same tables of captured numbers (their types) and tensors.
    """

    score: Expression | None = None
    mask: Expression | None = None
    numbers: tuple[Type, ...] = ()
    tensors: tuple[Captured, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The features that they turn on."""
        given = (("score_mod", self.score), ("mask_mod", self.mask))
        return tuple(name for name, expression in given if expression)

    def completed(self, features: Collection[str]) -> "Modifiers":
        """With functions that change nothing for features that are on without one."""
        score = SAME_SCORE if "score_mod" in features else None
        mask = ALL_SEEN if "mask_mod" in features else None
        return replace(self, score=self.score or score, mask=self.mask or mask)

    def __str__(self) -> str:
        parts = [f"score_mod:\n{self.score}"] if self.score else []
        parts += [f"mask_mod:\n{self.mask}"] if self.mask else []
        captured = [f"number {n}: {t}" for n, t in enumerate(self.numbers)]
        captured += [f"tensor {n}: {t.dtype}, rank {t.rank}" for n, t in enumerate(self.tensors)]
        return "\n".join([*parts, *captured])


UNCHANGED = Modifiers()
SAME_SCORE = Expression(nodes=(Node(op="score", type=Type.F32),), results=(0,))
ALL_SEEN = Expression(nodes=(Node(op="constant", type=Type.BOOL, value=True),), results=(0,))
