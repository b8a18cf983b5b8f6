"""What a function closes over: numbers replaced for a trace, and looked at again afterwards."""

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from fa4gen.diag import Fa4genError

from .build import type_of
from .modifiers import Function

TORCH = str(Path(torch.__file__).parent)
PRINTING = "take it out: the function is written down once, and does not run for each score"
UNCHANGING = (  # what computes the same whenever it is the same object
    torch.Tensor,
    torch.dtype,
    types.ModuleType,
    types.FunctionType,  # of torch
    types.BuiltinFunctionType,
    type(torch.Tensor.add),
    type(None),
    str,
    type,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Where a function found something that it closes over, and what; a number has a name."""

    get: Callable[[], Any]
    value: Any
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A traced function with all that it looked at. `lasting`: nothing else can change what it
    computes. `names`: of its captured numbers, in order; `fixed`: of those compiled in."""

    function: Function
    looks: tuple[Look, ...]
    lasting: bool
    names: tuple[str, ...]
    fixed: frozenset[str]

    def again(self) -> Function | None:
        """The function with the numbers of now; None where anything else has changed."""
        numbers = dict(zip(self.names, self.function.numbers, strict=True))
        for look in self.looks:
            try:
                now = look.get()
            except (ValueError, KeyError):
                return None
            if not look.name:
                if now is not look.value:
                    return None
            elif (
                type(now) is not type(look.value)
                or type_of(now) is not type_of(look.value)
                or (look.name in self.fixed and now != look.value)
            ):
                return None
            elif look.name in numbers:
                numbers[look.name] = now
        return replace(self.function, numbers=tuple(numbers.values()))


class Tracer(Protocol):
    """What is asked of the one who traces."""

    looks: list[Look]
    lasting: bool

    def captured(self, name: str, value: int | float) -> Any: ...
    def refuse(self, title: str, fix: str) -> Fa4genError: ...


class Rebound:
    """Functions of the user as they are, but for the numbers that they close over."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.made: dict[int, Any] = {}

    def of(self, value: Any, name: str = "") -> Any:
        """The value with every number in it, of its own or of functions in it, a stand-in."""
        if isinstance(value, bool):
            return value
        if isinstance(value, int | float) and name:
            return self.tracer.captured(name, value)
        if type(value) in (tuple, list) and name:
            return type(value)(self.of(v, f"{name}[{n}]") for n, v in enumerate(value))
        if isinstance(value, functools.partial):
            keywords = {k: self.of(v, f"{name}.{k}") for k, v in value.keywords.items()}
            args = (self.of(v, f"{name}.{n}") for n, v in enumerate(value.args))
            return functools.partial(self.of(value.func, name), *args, **keywords)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.of(value.__func__, name), value.__self__)
        if isinstance(value, types.FunctionType) and not _is_torchs(value):
            if id(value) not in self.made:
                self._function(value)
            return self.made[id(value)]
        self.tracer.lasting &= isinstance(value, UNCHANGING)
        return value

    def look(self, get: Callable[[], Any], name: str) -> Any:
        """What the function finds there, with numbers replaced."""
        value = get()
        number = isinstance(value, int | float) and not isinstance(value, bool)
        self.tracer.looks.append(Look(get=get, value=value, name=name if number else ""))
        self.tracer.lasting &= not isinstance(value, list | functools.partial | types.MethodType)
        return self.of(value, name)

    def _function(self, function: types.FunctionType) -> None:
        code, path = function.__code__, f"{function.__qualname__}#{id(function)}"
        scope = dict(function.__globals__)
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(code, scope, function.__name__, None, cells)
        self.made[id(function)] = made  # before what it closes over: it may close over itself
        for own, cell, name in zip(
            cells, function.__closure__ or (), code.co_freevars, strict=True
        ):
            try:
                own.cell_contents = self.look(
                    partial(getattr, cell, "cell_contents"), f"{path}.{name}"
                )
            except ValueError:
                continue  # a cell that is still empty
        for name in _names(code):
            if name in scope:
                get = partial(function.__globals__.__getitem__, name)
                scope[name] = self.look(get, f"{path}.{name}")
        scope["print"] = self._print
        self.tracer.lasting &= not function.__kwdefaults__
        made.__defaults__ = self.of(function.__defaults__, f"{path}.defaults")
        made.__kwdefaults__ = {
            k: self.of(v, f"{path}.{k}") for k, v in (function.__kwdefaults__ or {}).items()
        }

    def _print(self, *_: object, **__: object) -> None:
        raise self.tracer.refuse("it prints", PRINTING)


def _is_torchs(function: types.FunctionType) -> bool:
    """A function of the library's own; what combines masks is the user's by what it holds."""
    return function.__code__.co_filename.startswith(TORCH) and not function.__closure__


def _names(code: types.CodeType) -> set[str]:
    """Global names that a function and the functions in it use."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)
