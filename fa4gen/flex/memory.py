"""Functions that were traced, for as long as they live."""

import types
import weakref
from collections.abc import Callable
from typing import Any

from fa4gen.ir.expression import Type

from . import trace
from .closure import Seen
from .modifiers import Function


class Memory:
    """A function that is asked for again is not traced again, unless it may compute something
    else."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[Any, Seen] = weakref.WeakKeyDictionary()

    def score_mod(self, function: Callable[..., Any]) -> Function:
        """As `trace_score_mod`."""
        return self._of(function, trace.SCORE_MOD, Type.F32)

    def mask_mod(self, function: Callable[..., Any]) -> Function:
        """As `trace_mask_mod`."""
        return self._of(function, trace.MASK_MOD, Type.BOOL)

    def _of(self, function: Any, what: tuple[str, tuple[str, ...]], result: Type) -> Function:
        if not isinstance(function, types.FunctionType):
            return trace.run(function, *what, result).function
        known = self._seen.get(function)
        found = known.again() if known else None
        if found is None:
            seen = trace.run(function, *what, result)
            found = seen.function
            if seen.lasting:
                self._seen[function] = seen
        return found
