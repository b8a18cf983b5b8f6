"""Runs a user's function once on stand-ins, and writes down what it computes.

`score_mod(score, batch, head, q_idx, kv_idx)` and `mask_mod(batch, head, q_idx, kv_idx)` are
ordinary Python on scalar tensors. The stand-ins are torch.fx proxies: every operation on them
becomes nodes of an expression at once, so that what cannot be done is refused at its line.

Tensors that the function touches become captured tensors. Numbers that it closes over (cells,
defaults, globals, `functools.partial`) become captured numbers, so that another value is the same
expression; a number that Python itself must know (a branch, `range`) is part of the expression.
"""

import linecache
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.fx
from torch.overrides import TorchFunctionMode, is_tensor_method_or_property
from torch.utils._pytree import tree_leaves

from fa4gen.diag import Diagnostic, Fa4genError, Span
from fa4gen.ir.expression import INDICES, Captured, Expression, Node, Type

from .build import Builder, type_of
from .closure import PRINTING, Look, Rebound, Seen
from .modifiers import Function
from .operations import Ref, RefusedError, apply, type_of_dtype

SCORE_MOD = ("score_mod", ("score", *INDICES))
MASK_MOD = ("mask_mod", INDICES)
PACKAGE = Path(__file__).parents[1]
NOT_USER = (str(Path(torch.__file__).parent), str(PACKAGE / "flex"), str(PACKAGE / "ir"), "<")
FACTS = ("dtype", "device", "shape", "ndim", "layout", "is_cuda", "requires_grad")
CONVERT = ("to", "type", "type_as")
STAND_IN = torch.zeros((), dtype=torch.int32)


def trace_score_mod(function: Callable[..., Any]) -> Function:
    """The expression of a score_mod, a float. Raises Fa4genError FA0820 or FA0821."""
    return run(function, *SCORE_MOD, Type.F32).function


def trace_mask_mod(function: Callable[..., Any]) -> Function:
    """The expression of a mask_mod, a truth value. Raises Fa4genError FA0820 or FA0821."""
    return run(function, *MASK_MOD, Type.BOOL).function


def run(function: Any, what: str, inputs: tuple[str, ...], result: Type) -> Seen:
    """Traces, as often as it takes to know which captured numbers Python needs."""
    if not callable(function):
        raise _error(what, f"it is a {type(function).__name__}, and cannot be called", None)
    fixed: frozenset[str] = frozenset()
    while True:
        tracer = _Tracer(what, fixed)
        try:
            return tracer.run(function, inputs, result)
        except _ConcreteError as needed:
            fixed |= needed.names
        except Fa4genError:
            raise
        except Exception as problem:
            if tracer.values.keys() - fixed:  # perhaps Python must know the captured numbers
                fixed |= tracer.values.keys()
                continue
            title = f"it cannot be traced: {type(problem).__name__}: {problem}"
            raise _error(what, title, _place(problem) or _defined(function)) from problem


class _ConcreteError(Exception):
    """Python itself needs to know the values of captured numbers."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names


@dataclass(frozen=True, slots=True)
class _Element:
    """A captured tensor, indexed as far as was written yet."""

    tensor: torch.Tensor
    indices: tuple[int, ...] = ()


class _Stand(torch.fx.Proxy):
    """A value of the traced function; `what` is its node, or a tensor on the way to an element."""

    tracer: "_Tracer"

    def __init__(self, node: Any, tracer: "_Tracer", what: "int | _Element") -> None:
        super().__init__(node, tracer)
        self.what = what

    def __getattr__(self, name: str) -> Any:
        if name in FACTS:
            return self.tracer.fact(self, name)
        return super().__getattr__(name)

    def __index__(self) -> int:
        return int(self.tracer.concrete(self, "an index or a count in Python"))

    def __int__(self) -> int:
        return int(self.tracer.concrete(self, "`int`"))

    def __float__(self) -> float:
        return float(self.tracer.concrete(self, "`float`, or a function of Python's `math`"))

    def __str__(self) -> str:
        raise self.tracer.refuse("it prints, or makes a string of, a traced value", PRINTING)

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def __len__(self) -> int:
        raise self.tracer.refuse("`len` of a scalar", "")

    def __array__(self, *_: object, **__: object) -> Any:
        raise self.tracer.refuse("it calls numpy on a traced value", NUMPY)

    def __array_ufunc__(self, ufunc: Any, *_: object, **__: object) -> Any:
        raise self.tracer.refuse(f"it calls numpy.{ufunc.__name__} on a traced value", NUMPY)

    def __array_function__(self, function: Any, *_: object, **__: object) -> Any:
        raise self.tracer.refuse(f"it calls numpy.{function.__name__} on a traced value", NUMPY)

    def __setitem__(self, *_: object) -> None:
        raise self.tracer.refuse("it writes into a tensor", "return a new value in place of it")


NUMPY = "use torch's function of that name: numpy computes on the CPU, while tracing"
BRANCH = (
    "torch.where(condition, value, other) for a branch; `&`, `|`, `~` for and, or, not; "
    "torch.minimum and torch.maximum for min and max; (a <= x) & (x < b) for a <= x < b"
)


class _Tracer(torch.fx.Tracer):
    """What one run writes down."""

    def __init__(self, what: str, fixed: frozenset[str]) -> None:
        super().__init__()
        self.graph = torch.fx.Graph()
        self.what = what
        self.fixed = fixed
        self.builder = Builder()
        self.tensors: list[torch.Tensor] = []
        self.looks: list[Look] = []
        self.lasting = True
        self.scalars: list[torch.Tensor] = []
        self.values: dict[str, int | float] = {}  # captured numbers by name, in order

    def run(self, function: Any, inputs: tuple[str, ...], result: Type) -> Seen:
        """Calls the function, and closes the expression."""
        stands = [self.stand(self.builder.input(name)) for name in inputs]
        with _Mode(self):
            answer = Rebound(self).of(function)(*stands)
            if answer is None:
                raise _error(self.what, "it returns nothing", _defined(function), fix="`return …`")
            node = self.node(answer)
        node = self.builder.cast(node, result)
        return self._closed(self.builder.expression(node))

    def _closed(self, expression: Expression) -> Seen:
        """Captured numbers and tensors that are used, numbered in the order of their use."""
        numbers: dict[int, int] = {}
        tensors: dict[int, int] = {}
        for node in expression.nodes:
            if node.op in ("number", "load"):
                table = numbers if node.op == "number" else tensors
                table.setdefault(int(node.value or 0), len(table))
        builder = Builder()
        results = builder.copy(expression, numbers=numbers, tensors=tensors)
        values = list(self.values.values())
        function = Function(
            expression=builder.expression(*results),
            tensors=tuple(self.tensors[n] for n in tensors),
            captured=tuple(_captured(self.tensors[n]) for n in tensors),
            numbers=tuple(values[n] for n in numbers),
        )
        names = list(self.values)
        return Seen(
            function=function,
            looks=tuple(self.looks),
            lasting=self.lasting,
            names=tuple(names[n] for n in numbers),
            fixed=self.fixed,
        )

    # stand-ins ------------------------------------------------------------------------------------
    def stand(self, what: "int | _Element") -> _Stand:
        """A stand-in for a value."""
        return _Stand(self.graph.placeholder(f"v{len(self.graph.nodes)}"), self, what)

    def captured(self, name: str, value: int | float) -> Any:
        """A number that the function closes over."""
        if name in self.fixed:
            return value
        number = list(self.values).index(name) if name in self.values else len(self.values)
        self.values[name] = value
        return self.stand(self.builder.number(number, type_of(value)))

    def node(self, value: Any) -> int:
        """The node of what an operation was given: a stand-in, a number, a scalar tensor."""
        if isinstance(value, torch.fx.proxy.Attribute):
            raise self.refuse(f"`.{value.attr}` of a traced value", "values are scalar tensors")
        if isinstance(value, _Stand):
            return value.what if isinstance(value.what, int) else self._load(value.what)
        if isinstance(value, torch.Tensor):
            if value.dim() == 0 and value.device.type == "cpu" and not value.requires_grad:
                return self._scalar(value)
            return self._load(_Element(value))
        if isinstance(value, bool | int | float):
            return self.builder.constant(value)
        raise self.refuse(f"a {type(value).__name__} where a number is expected", "")

    def _scalar(self, tensor: torch.Tensor) -> int:
        """A scalar tensor on the CPU goes with tensors on any device, as a number does."""
        known = next((n for n, t in enumerate(self.scalars) if t is tensor), len(self.scalars))
        self.scalars[known : known + 1] = [tensor]
        value = tensor.item()
        self.lasting = False
        if isinstance(value, bool):
            return self.builder.constant(value)
        return self.node(self.captured(f"scalar tensor {known}", value))

    def _load(self, element: _Element) -> int:
        tensor = element.tensor
        left = tensor.dim() - len(element.indices)
        if left:
            raise self.refuse(
                f"a captured tensor of shape {tuple(tensor.shape)} is used with {left} "
                "dimensions left",
                "index it down to one element: `bias[head, q_idx, kv_idx]`",
            )
        number = next((n for n, t in enumerate(self.tensors) if t is tensor), len(self.tensors))
        self.tensors[number : number + 1] = [tensor]
        return self.builder.load(number, self._type(tensor.dtype), element.indices)

    def _type(self, dtype: torch.dtype) -> Type:
        try:
            return type_of_dtype(str(dtype).removeprefix("torch."))
        except RefusedError as problem:
            raise self.refuse(problem.why, problem.fix) from None

    def _cast(self, node: int, dtype: torch.dtype) -> int:
        return self.builder.cast(node, self._type(dtype))

    # what happens to them -------------------------------------------------------------------------
    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *_: Any,
        **__: Any,
    ) -> Any:
        """One operation, done now."""
        name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        name = name.removesuffix(".default").removesuffix(".Tensor").removesuffix(".Scalar")
        if kind == "call_function" and target is getattr:
            raise self.refuse(f"`.{args[1]}` of a traced value", "values are scalar tensors")
        if name in ("getitem", "__getitem__"):
            return self._getitem(*args)
        if name in ("size", "dim", "get_device", "is_floating_point"):
            return getattr(STAND_IN, name)(*args[1:])
        if name in CONVERT:
            return self._convert(name, args, kwargs)
        shown = {k: v for k, v in kwargs.items() if k not in ("dtype", "device")}
        try:
            given = [self._argument(a) for a in args]
            named = {k: self._argument(v) for k, v in shown.items()}
            node = apply(self.builder, name, given, named)
        except RefusedError as problem:
            raise self.refuse(problem.why, problem.fix) from None
        except TypeError as problem:
            raise self.refuse(f"`{name}`: {problem}", "") from None
        if isinstance(kwargs.get("dtype"), torch.dtype):
            node = self._cast(node, kwargs["dtype"])
        return self.stand(node)

    def _argument(self, value: Any) -> Any:
        if isinstance(value, bool | int | float | str) or value is None:
            return value  # a string is the rounding mode of `div`
        if isinstance(value, tuple | list | torch.Size):
            return None  # the shape of a scalar
        return Ref(self.node(value))

    def _getitem(self, source: Any, index: Any) -> Any:
        element = source.what if isinstance(source, _Stand) else _Element(source)
        if not isinstance(element, _Element):
            raise self.refuse("a scalar is indexed", "only captured tensors have elements")
        indices = []
        for i in index if isinstance(index, tuple) else (index,):
            if isinstance(i, slice) or i is None or i is Ellipsis:
                raise self.refuse(
                    "a slice of a captured tensor", "one index for each dimension, or slice before"
                )
            node = self.node(i)
            if self.builder.type(node) is Type.F32:
                raise self.refuse("a float as an index", "`.long()` rounds towards zero")
            wide = self.builder.type(node) is Type.I64
            indices.append(self.builder.cast(node, Type.I64 if wide else Type.I32))
        if len(element.indices) + len(indices) > element.tensor.dim():
            raise self.refuse(
                f"too many indices for a tensor of shape {tuple(element.tensor.shape)}", ""
            )
        made = _Element(element.tensor, (*element.indices, *indices))
        done = len(made.indices) == made.tensor.dim()
        return self.stand(self._load(made) if done else made)

    def _convert(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """`x.to(...)`: a type counts; a device does not, for all of it runs on one."""
        dtype = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, torch.dtype)]
        if name == "type_as" and not isinstance(args[1], torch.fx.Proxy):
            dtype = [args[1].dtype]
        node = self.node(args[0])
        if dtype:
            node = self._cast(node, dtype[0])
        elif name == "type_as":
            node = self.builder.cast(node, self.builder.type(self.node(args[1])))
        return self.stand(node)

    def fact(self, stand: _Stand, name: str) -> Any:
        """`x.dtype`, `x.shape` and the like."""
        if isinstance(stand.what, _Element):
            left = stand.what.tensor[(0,) * len(stand.what.indices)]
            return getattr(left, name)
        if name == "dtype":
            kinds = {Type.F32: torch.float32, Type.I64: torch.int64, Type.BOOL: torch.bool}
            return kinds.get(self.builder.type(stand.what), torch.int32)
        return getattr(STAND_IN, name)

    def concrete(self, stand: _Stand, wanted: str) -> Any:
        """Python asks for the value. A captured number can be told, once it is fixed."""
        names = self._numbers(stand)
        if names:
            raise _ConcreteError(names)
        raise self.refuse(
            f"{wanted} needs the value of something that differs from score to score",
            "stay on tensors, with torch's functions",
        )

    def to_bool(self, obj: torch.fx.Proxy) -> bool:
        """A branch."""
        names = self._numbers(obj)
        if names:
            raise _ConcreteError(names)
        raise self.refuse("it branches on a score or an index", BRANCH)

    def iter(self, obj: torch.fx.Proxy) -> Iterator[Any]:
        """A loop over elements."""
        del obj
        raise self.refuse("it loops over a traced value", "values are scalar tensors")

    def _numbers(self, stand: torch.fx.Proxy) -> frozenset[str]:
        """The captured numbers that a value is made of, if it is made of nothing else."""
        what = stand.what if isinstance(stand, _Stand) else None
        if not isinstance(what, int):
            return frozenset()
        names, todo, seen = list(self.values), [what], set()
        found: set[str] = set()
        while todo:
            n = todo.pop()
            node: Node = self.builder.nodes[n]
            if node.op in ("score", "load", *INDICES):
                return frozenset()
            if node.op == "number":
                found.add(names[int(node.value or 0)])
            todo += [a for a in node.args if a not in seen]
            seen.add(n)
        return frozenset(found)

    def refuse(self, title: str, fix: str) -> Fa4genError:
        """The error, at the line of the user's function that is running."""
        frame: types.FrameType | None = sys._getframe(1)
        while frame and frame.f_code.co_filename.startswith(NOT_USER):
            frame = frame.f_back
        at = Span(frame.f_code.co_filename, frame.f_lineno, 1) if frame else None
        return _error(self.what, title, at, fix=fix)


class _Mode(TorchFunctionMode):
    """Sees what torch does with real tensors while a function is traced."""

    def __init__(self, tracer: _Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """With a stand-in among the arguments it is written down; else done."""
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        if any(isinstance(x, torch.fx.Proxy) for x in leaves):
            if func is torch.Tensor.__setitem__:
                raise self.tracer.refuse("it writes into a tensor", "return a new value")
            large = any(isinstance(x, torch.Tensor) and x.dim() for x in leaves)
            stands = [x for x in leaves if isinstance(x, _Stand)]
            if large and "getitem" not in func.__name__:
                names = [self.tracer._numbers(s) for s in stands]
                if all(names):
                    raise _ConcreteError(frozenset().union(*names))
            kind = "call_method" if is_tensor_method_or_property(func) else "call_function"
            return self.tracer.create_proxy(kind, func, args, kwargs)
        name = getattr(func, "__name__", "")
        if (name.endswith("_") and not name.endswith("__")) or name in ("__setitem__", "__iadd__"):
            raise self.tracer.refuse(f"`{name}` changes a captured tensor", "make a new one before")
        made = func(*args, **kwargs)
        self.tracer.lasting &= not any(isinstance(x, torch.Tensor) for x in tree_leaves(made))
        return made


def _captured(tensor: torch.Tensor) -> Captured:
    return Captured(dtype=str(tensor.dtype).removeprefix("torch."), rank=tensor.dim())


def _defined(function: Any) -> Span | None:
    code = getattr(function, "__code__", None)
    return Span(code.co_filename, code.co_firstlineno, 1) if code else None


def _place(problem: BaseException) -> Span | None:
    """The innermost line of the user's that an exception came through."""
    at, found = problem.__traceback__, None
    while at is not None:
        file = at.tb_frame.f_code.co_filename
        if not file.startswith(NOT_USER):
            found = Span(file, at.tb_lineno, 1)
        at = at.tb_next
    return found


def _error(what: str, title: str, at: Span | None, *, fix: str = "") -> Fa4genError:
    """The one error of tracing, with the line drawn."""
    text = "".join(linecache.getlines(at.file)) if at else ""
    if at and text:
        line = linecache.getline(at.file, at.line)
        at = Span(at.file, at.line, len(line) - len(line.lstrip()) + 1)
    return Fa4genError(
        [
            Diagnostic(
                code="FA0820",
                title=f"{what}: {title}",
                span=at,
                why="the function becomes part of a kernel, which computes one score at a time",
                fix=fix,
            )
        ],
        {at.file: text} if at and text else {},
    )
