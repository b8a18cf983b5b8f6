"""What users' functions add to a kernel: arguments of the launch, and pieces of the softmax."""

from collections.abc import Mapping
from types import MappingProxyType

from fa4gen.ir.expression import Type
from fa4gen.ir.inputs import Input
from fa4gen.ir.schedule import Operation, Schedule

NUMBERS: Mapping[Type, str] = MappingProxyType(
    {Type.I32: "Int32", Type.I64: "Int64", Type.F32: "Float32"}
)
ELEMENTS: Mapping[str, str] = MappingProxyType(
    {
        "float32": "Float32",
        "bfloat16": "BFloat16",
        "float16": "Float16",
        "int64": "Int64",
        "int32": "Int32",
        "int16": "cutlass.Int16",
        "int8": "Int8",
        "uint8": "cutlass.Uint8",
        "bool": "cutlass.Uint8",  # one byte each, 0 or 1
    }
)


def captured(schedule: Schedule) -> tuple[Input, ...]:
    """Numbers and tensors that the functions close over; a scalar tensor has one element."""
    m = schedule.modifiers
    numbers = [
        Input(name=f"number_{n}", type=NUMBERS[t], example=f"{NUMBERS[t]}(1)")
        for n, t in enumerate(m.numbers)
    ]
    tensors = [
        Input(
            name=f"tensor_{n}",
            type="cute.Tensor",
            example=f"open_tensor({ELEMENTS[t.dtype]}, {max(t.rank, 1)})",
        )
        for n, t in enumerate(m.tensors)
    ]
    return (*numbers, *tensors)


def call_of(schedule: Schedule, function: str) -> str:
    """A user's function, given what it captured and the tile's batch and head."""
    names = "".join(f"{i.name}, " for i in captured(schedule))
    return f"{function}(({names}), batch, head)"


def changed(schedule: Schedule, *where: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The call of a user's score function, with its arguments behind the scores and `where`: the
    tile's first row and the block's first column."""
    if "score_mod" not in schedule.features:
        return ()
    return (("modify_scores", (call_of(schedule, "score_mod"), *where)),)


def asked(schedule: Schedule, operation: Operation, option: str) -> tuple[str, ...]:
    """The pieces that an operation's `score` or `mask` names, as far as they are on."""
    on = schedule.features | {"seqlen_k"} | ({"causal"} if schedule.causal else set())
    words = operation.options.get(option) or ()
    words = (words,) if isinstance(words, str) else words
    assert isinstance(words, tuple)
    return tuple(w for w in words if w in on)
