"""What a PTX module says, typed: entries, their parameters, shared symbols and statements.

Registers are resolved to the scope that declares them and labels to statement numbers, so that the
rest of the emulator never sees a name twice.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register: `kind` is pred, b16, b32, b64 or b128; `index` counts in the entry."""

    name: str
    kind: str
    index: int


@dataclass(frozen=True, slots=True)
class Special:
    """A read-only special register such as `%tid.x`."""

    name: str


@dataclass(frozen=True, slots=True)
class Immediate:
    """A literal. Floats are given by their bits, `width` 32 or 64; integers have width 0."""

    value: int
    width: int = 0


@dataclass(frozen=True, slots=True)
class Negated:
    """`!p`, a predicate read the other way round."""

    register: Register


@dataclass(frozen=True, slots=True)
class Symbol:
    """A parameter, or a shared variable."""

    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """The target of a branch, as a statement number of the entry."""

    name: str
    target: int


@dataclass(frozen=True, slots=True)
class Sink:
    """`_`: the result is dropped."""


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, ...}`."""

    items: tuple["Operand", ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`a|p`: two destinations."""

    first: "Operand"
    second: "Operand"


@dataclass(frozen=True, slots=True)
class Address:
    """`[base + offset]`, and for tensor copies `[base, {coordinates}]`."""

    base: "Operand"
    offset: int = 0
    coordinates: tuple["Operand", ...] = ()


Operand = Register | Negated | Special | Immediate | Symbol | Label | Sink | Vector | Pair | Address


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """`@p` or `@!p`."""

    register: Register
    negated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One instruction. `line` counts from 1 in the PTX text; `source` is its `.loc`, if any."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    line: int
    text: str
    source: str = ""

    @property
    def parts(self) -> list[str]:
        """The opcode split at its dots."""
        return self.opcode.split(".")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A kernel parameter: `bytes` long, at `offset` of the entry's parameter space."""

    name: str
    bytes: int
    align: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """A shared variable; `bytes` is 0 for the dynamic array."""

    name: str
    bytes: int
    align: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PtxEntry:
    """One kernel."""

    name: str
    params: tuple[Parameter, ...]
    shared: tuple[Shared, ...]
    registers: tuple[Register, ...]
    statements: tuple[Statement, ...]
    reqntid: tuple[int, int, int] | None

    @property
    def param_bytes(self) -> int:
        """Size of the parameter space, in bytes."""
        return max((p.offset + p.bytes for p in self.params), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PtxModule:
    """A parsed file: `name` is what messages call it; `decoded` keeps what was decoded of it."""

    name: str
    target: str
    entries: dict[str, PtxEntry]
    decoded: dict[tuple[str, int], object] = field(default_factory=dict, compare=False, repr=False)
