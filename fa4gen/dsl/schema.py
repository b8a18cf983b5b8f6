"""Shapes of lists, texts of tokens and mappings, made of the shapes of single values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fa4gen.diag import Bag, Span

from . import phrases
from .expressions import Environment, nearest
from .reader import Map, Node, Scalar, Seq
from .shapes import Json, Shape, describe, matches, picked


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOf:
    """A list of one shape; with `or_one`, a single value stands for a list of it."""

    item: Shape
    low: int = 1
    high: int = 16
    or_one: bool = False

    def read(self, node: Node, env: Environment) -> object:
        """A tuple, without the items at fault."""
        found = env.pick(node)
        if isinstance(found, Scalar) and not self.or_one:
            found = env.resolve(found)
        if isinstance(found, Scalar) and self.or_one:
            items: tuple[Node, ...] = (found,)
        elif isinstance(found, Seq):
            items = found.items
        else:
            env.error("FA0106", f"a list is expected, not {describe(found)}", node.span)
            return None
        if not self.low <= len(items) <= self.high:
            env.error(
                "FA0106",
                f"{self.low} … {self.high} items are expected, not {len(items)}",
                found.span,
            )
            return None
        values = [self.item.read(i, env) for i in items]
        return tuple(v for v in values if v is not None)

    def json(self) -> Json:
        """An array, or one item, or (for numbers) a parameter's name."""
        array: Json = {
            "type": "array",
            "items": self.item.json(),
            "minItems": self.low,
            "maxItems": self.high,
        }
        other = (
            self.item.json() if self.or_one else {"type": "string", "pattern": f"^{phrases.NAME}$"}
        )
        return {"anyOf": [array, other]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """Steps or ends, as a text or a list of texts."""

    pattern: str
    separator: str
    parse: Callable[[Node, Bag], object]

    def read(self, node: Node, env: Environment) -> object:
        """The tokens."""
        node = env.pick(node)
        scalars = node.items if isinstance(node, Seq) else (node,)
        for s in scalars:
            if not isinstance(s, Scalar) or not isinstance(s.value, str):
                env.error("FA0106", f"names of operations are expected, not {describe(s)}", s.span)
                return None
        return self.parse(node, env.bag)

    def json(self) -> Json:
        """A string of tokens, or a list of such strings."""
        text: Json = {
            "type": "string",
            "pattern": f"^{self.pattern}({self.separator}{self.pattern})*$",
        }
        return picked({"anyOf": [text, {"type": "array", "items": text}]})


STEPS = Phrase(pattern=phrases.STEP, separator=" +", parse=phrases.steps)
ENDS = Phrase(pattern=phrases.END, separator=r" *\| *", parse=phrases.ends)


@dataclass(frozen=True, slots=True)
class Anything:
    """Values that are read where they are used (parameters, patches)."""

    def read(self, node: Node, env: Environment) -> object:
        """The node itself, if it is a mapping."""
        if isinstance(node, Map):
            return node
        env.error("FA0106", f"a mapping is expected, not {describe(node)}", node.span)
        return None

    def json(self) -> Json:
        """Any object."""
        return {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of a record."""

    shape: Shape
    doc: str
    required: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """A record that was read: values by key, places of the keys, and its own place."""

    values: Mapping[str, object]
    keys: Mapping[str, Span]
    span: Span

    def has(self, key: str) -> bool:
        """Whether the key was written (even if its value is at fault)."""
        return key in self.keys

    def at(self, key: str) -> Span:
        """Where the key stands, else the record."""
        return self.keys.get(key, self.span)

    def text(self, key: str) -> str:
        """A word; '' if it is left out."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def integer(self, key: str, default: int) -> int:
        """An integer."""
        value = self.values.get(key)
        return value if isinstance(value, int) else default

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of integers; empty if it is left out."""
        return tuple(v for v in self._list(key) if isinstance(v, int))

    def names(self, key: str) -> tuple[str, ...]:
        """A list of words; empty if it is left out."""
        return tuple(v for v in self._list(key) if isinstance(v, str))

    def steps(self, key: str) -> tuple[phrases.StepToken, ...]:
        """Steps; empty if they are left out."""
        return tuple(v for v in self._list(key) if isinstance(v, phrases.StepToken))

    def ends(self, key: str) -> tuple[tuple[phrases.EndToken, ...], ...]:
        """Alternatives of ends; empty if they are left out."""
        return tuple(
            tuple(e for e in v if isinstance(e, phrases.EndToken))
            for v in self._list(key)
            if isinstance(v, tuple)
        )

    def _list(self, key: str) -> tuple[object, ...]:
        value = self.values.get(key)
        return value if isinstance(value, tuple) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A mapping with known keys; if `named`, a parameter that holds one may stand for it."""

    what: str
    keys: Mapping[str, Key] = field(default_factory=dict)
    named: bool = False

    def read(self, node: Node, env: Environment) -> object:
        """`Fields`; unknown and missing keys are reported."""
        found = env.resolve(node) if self.named else env.pick(node)
        if not isinstance(found, Map):
            env.error("FA0106", f"{self.what} is a mapping, not {describe(found)}", node.span)
            return None
        node = found
        values = {}
        for key, value in node.entries:
            known = self.keys.get(key.text)
            if known is None:
                env.error(
                    "FA0105",
                    f"{self.what} has no key `{key.text}`",
                    key.span,
                    nearest(key.text, list(self.keys)),
                )
                continue
            values[key.text] = known.shape.read(value, env)
        for name, key_ in self.keys.items():
            if key_.required and name not in values:
                env.error("FA0107", f"{self.what} needs a key `{name}`: {key_.doc}", node.span)
        return Fields(values=values, keys={k.text: k.span for k, _ in node.entries}, span=node.span)

    def json(self) -> Json:
        """An object without other keys."""
        shape: Json = {
            "type": "object",
            "properties": {
                n: {"description": k.doc, **k.shape.json()} for n, k in self.keys.items()
            },
            "required": [n for n, k in self.keys.items() if k.required],
            "additionalProperties": False,
        }
        name = {"type": "string", "pattern": f"^{phrases.NAME}$"}
        return {"anyOf": [shape, name]} if self.named else shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A mapping from names that the author chooses to one shape."""

    what: str
    entry: Shape
    pattern: str = phrases.NAME
    low: int = 0  # entries

    def read(self, node: Node, env: Environment) -> object:
        """A tuple of (key, value) for the entries without fault."""
        if not isinstance(node, Map):
            env.error(
                "FA0106", f"{self.what} is a mapping of names, not {describe(node)}", node.span
            )
            return ()
        if len(node.entries) < self.low:
            env.error("FA0106", f"{self.what} is empty", node.span)
        out = []
        for key, value in node.entries:
            if not matches(self.pattern, key.text):
                env.error("FA0108", f"`{key.text}` is no name in {self.what}", key.span)
                continue
            read = self.entry.read(value, env)
            if read is not None:
                out.append((key, read))
        return tuple(out)

    def json(self) -> Json:
        """An object with keys of a pattern."""
        return {
            "type": "object",
            "patternProperties": {f"^{self.pattern}$": self.entry.json()},
            "minProperties": self.low,
            "additionalProperties": False,
        }
