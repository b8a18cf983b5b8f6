"""Shapes of single values: each reads a node, and says itself as JSON Schema.

One definition serves both, so an editor's completion and the compiler agree. Reading reports every
fault to the environment's bag and goes on; a value with a fault is None.
"""

import re
from dataclasses import dataclass
from typing import Protocol

from . import phrases
from .expressions import Environment, nearest
from .reader import Node, Scalar, Seq

Json = dict[str, object]

_EXPRESSION = {"type": "string", "description": "an integer expression over parameters"}


class Shape(Protocol):
    """What a value looks like."""

    def read(self, node: Node, env: Environment) -> object:
        """The value, or None after reporting why not."""

    def json(self) -> Json:
        """The same as JSON Schema."""


def picked(one: Json) -> Json:
    """Where a scalar stands, a choice by mask or by head dim may stand too."""
    by_mask = {
        "type": "object",
        "properties": {"full": one, "causal": one},
        "required": ["full", "causal"],
        "additionalProperties": False,
    }
    by_width = {
        "type": "object",
        "properties": {
            "up_to": {
                "type": "object",
                "patternProperties": {"^[0-9]+$": {"anyOf": [one, by_mask]}},
                "additionalProperties": False,
            }
        },
        "required": ["up_to"],
        "additionalProperties": False,
    }
    return {"anyOf": [one, by_mask, by_width]}


def describe(node: Node) -> str:
    """What stands there, for a message."""
    if isinstance(node, Scalar):
        return f"`{node.text}`" if node.plain else f"the text `{node.text}`"
    return "a list" if isinstance(node, Seq) else "a mapping"


@dataclass(frozen=True, slots=True, kw_only=True)
class Name:
    """A name, taken as it stands."""

    pattern: str = phrases.NAME
    what: str = "a name of lower-case letters, digits and `_`"

    def read(self, node: Node, env: Environment) -> object:
        """The text."""
        node = env.pick(node)
        if (
            isinstance(node, Scalar)
            and matches(self.pattern, node.text)
            and isinstance(node.value, str)
        ):
            return node.text
        env.error("FA0106", f"{self.what} is expected, not {describe(node)}", node.span)
        return None

    def json(self) -> Json:
        """A string with a pattern."""
        return picked({"type": "string", "pattern": f"^{self.pattern}$"})


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few words, or a parameter that holds one."""

    options: tuple[str, ...]

    def read(self, node: Node, env: Environment) -> object:
        """The word."""
        node = env.pick(node)
        if isinstance(node, Scalar) and node.text not in self.options:
            node = env.resolve(node)
        if isinstance(node, Scalar) and node.text in self.options:
            return node.text
        title = f"{describe(node)} is none of {', '.join(f'`{o}`' for o in self.options)}"
        fix = nearest(node.text, list(self.options)) if isinstance(node, Scalar) else ""
        env.error("FA0109", title, node.span, fix if fix.startswith("write") else "")
        return None

    def json(self) -> Json:
        """An enumeration."""
        return picked({"enum": list(self.options)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Integer:
    """An integer, or an expression over parameters."""

    low: int
    high: int

    def read(self, node: Node, env: Environment) -> object:
        """The integer."""
        value = env.integer(node)
        if value is not None and not self.low <= value <= self.high:
            env.error("FA0109", f"{value} is outside {self.low} … {self.high}", env.pick(node).span)
            return None
        return value

    def json(self) -> Json:
        """An integer in its range, or an expression."""
        bounded = {"type": "integer", "minimum": self.low, "maximum": self.high}
        return {"anyOf": [*alternatives(picked(bounded)), _EXPRESSION]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """A number of stages, or `max`: as many as fit (read as None)."""

    high: int = 32  # FA4's own bound; more stages than that hide nothing

    def read(self, node: Node, env: Environment) -> object:
        """The number; None for `max`."""
        found = env.resolve(node)
        if isinstance(found, Scalar) and found.text == "max":
            return None
        return Integer(low=1, high=self.high).read(node, env)

    def json(self) -> Json:
        """An integer, an expression, or `max`."""
        return Integer(low=1, high=self.high).json()


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number, integer or not, or a parameter that holds one."""

    low: float
    high: float

    def read(self, node: Node, env: Environment) -> object:
        """The number, as float."""
        found = env.resolve(node)
        value = found.value if isinstance(found, Scalar) else None
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            env.error("FA0106", f"a number is expected, not {describe(found)}", node.span)
            return None
        if not self.low <= value <= self.high:
            env.error("FA0109", f"{value} is outside {self.low:g} … {self.high:g}", found.span)
            return None
        return float(value)

    def json(self) -> Json:
        """A number in its range, or a parameter's name."""
        bounded = {"type": "number", "minimum": self.low, "maximum": self.high}
        return {
            "anyOf": [
                *alternatives(picked(bounded)),
                {"type": "string", "pattern": f"^{phrases.NAME}(\\.{phrases.NAME})*$"},
            ]
        }


@dataclass(frozen=True, slots=True)
class Flag:
    """`true` or `false`."""

    def read(self, node: Node, env: Environment) -> object:
        """The bool."""
        found = env.resolve(node)
        if isinstance(found, Scalar) and isinstance(found.value, bool):
            return found.value
        env.error("FA0106", f"`true` or `false` is expected, not {describe(found)}", node.span)
        return None

    def json(self) -> Json:
        """A boolean, or a parameter's name."""
        return {
            "anyOf": [
                *alternatives(picked({"type": "boolean"})),
                {"type": "string", "pattern": f"^{phrases.NAME}$"},
            ]
        }


def matches(pattern: str, text: str) -> bool:
    """Whether a text is of a pattern as a whole."""
    return re.fullmatch(pattern, text) is not None


def alternatives(schema: Json) -> list[object]:
    """The members of an `anyOf`."""
    found = schema["anyOf"]
    return list(found) if isinstance(found, list) else [schema]
