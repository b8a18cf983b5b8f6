"""What the author declared: a schedule with its parameters bound, every name and position kept.

Nothing here is derived: arrival counts, phases, bytes, fences, columns left open and loop segments
are decided later, in `ir.plan` and `ir.program`. All containers are tuples or read-only mappings.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fa4gen.diag import Span

from .expression import UNCHANGED, Modifiers


class Space(StrEnum):
    """Where a buffer lives: shared memory, tensor memory, a warpgroup's registers."""

    SMEM = "smem"
    TMEM = "tmem"
    RMEM = "rmem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A replicated coordinate: `name: count` makes `x[name]` exist `count` times."""

    name: str
    count: int
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """A group of warps with one program; `per` replicates it over the index (one body, run-time
    index)."""

    name: str
    warps: int
    registers: int
    per: bool = False
    active: int | None = None  # warps that do something; the rest only give their registers away
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """Storage for one tile of data: `tile` is (rows, columns) in elements.

    `ring` names the items that take turns in one ring of `stages` slots (default: the buffer
    itself).
    `parts` are widths (in columns of the tile) that are handed over one after the other.
    `overlays` names the buffer whose storage this one reuses; `columns` are the first tensor memory
    columns of each instance (None: placed by the compiler).
    """

    name: str
    space: Space
    tile: tuple[int, ...]
    dtype: str  # 'io' for the type of Q, K, V and O, or a name of `fa4gen.dtypes`
    per: bool = False
    stages: int | None = 1  # None: as many as fit
    ring: tuple[str, ...] = ()
    parts: tuple[int, ...] = ()
    overlays: str | None = None
    columns: tuple[int, ...] | None = None
    one_load: bool = False  # all instances are filled by one box
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def items(self) -> tuple[str, ...]:
        """Names under which operations use this buffer."""
        return self.ring or (self.name,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One occurrence of an operation in a role's order.

    `instance`: a literal index, or None (the role's own instance, or an operation without one).
    `ahead`: by how many blocks it runs ahead of the loop's block.
    """

    operation: str  # its name, 'qk'
    instance: int | None = None
    ahead: int = 0
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """A role's own order: once a tile before its blocks, for each block, once a tile after them."""

    role: str
    tile: tuple[Step, ...] = ()
    block: tuple[Step, ...] = ()
    after: tuple[Step, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    def all(self) -> tuple[Step, ...]:
        """The steps of all three sections."""
        return (*self.tile, *self.block, *self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What a step does: its kind (a name of `ir.ops`), the buffers it touches, its options.

    `reads`, `writes`, `updates`: item names ('kv.v' is written 'v'). `a`, `b`: operands of a matrix
    product, also in `reads`; `transposed` says which of them are taken transposed ('a', 'b').
    `options`: the rest, as typed values (mask, threshold, mix, first, …).
    """

    name: str  # 'qk', unique in the schedule
    role: str  # whose steps name it; '' if none do
    kind: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    updates: tuple[str, ...] = ()
    a: str | None = None
    b: str | None = None
    transposed: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a barrier: an operation, perhaps one part of it, of an instance.

    `instance`: a literal; or None for an operation without instances; or 'same' for the barrier's
    own index (`s_full[s]: {after: "qk[s]"}`); or 'all' (written `x[s]` under a barrier without
    an index: every instance takes part).
    """

    operation: str
    part: int | None = None
    instance: int | str | None = None
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Barrier:
    """An edge of the graph: what comes `before` it waits for what comes `after` … of `distance`
    earlier.

    (`after: A, before: B` reads: the barrier comes after A and before B.) Each side is a tuple of
    alternatives that take turns (`A | B`), each of them a tuple of operations that take part
    together (`[A, B]`). `ring`/`side` derive both ends from a buffer's writers and readers.
    """

    name: str
    per: bool = False
    after: tuple[tuple[End, ...], ...] = ()
    before: tuple[tuple[End, ...], ...] = ()
    level: str = "block"  # 'tile': once a tile
    distance: int = 0
    ring: str | None = None
    side: str | None = None  # 'full' | 'empty'
    kind: str = "mbarrier"  # 'mbarrier' | 'named'
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A token that goes round the instances of a role: held from `first` to `last`; instance 0
    begins."""

    name: str
    first: Step
    last: Step
    role: str
    kind: str = "named"
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One kernel as its author declared it, for one choice of parameters."""

    name: str
    kernel: str  # 'attention_forward' | 'attention_backward'
    target: str  # 'sm_90a', 'sm_100a'
    file: str
    serves: Mapping[
        str, tuple[object, ...]
    ]  # head_dim, head_dim_v, dtype, causal, features: what it may be built for
    dtype: str  # 'bf16' | 'fp16', bound
    causal: bool  # bound
    head_dim: int
    head_dim_v: int
    params: Mapping[str, object]
    index: Index
    scheduler: str  # 'single' | 'static_persistent' | 'lpt' | 'lpt_persistent'
    over: str  # 'kv_blocks', 'block_list' (the feature of that name is always on), 'query_blocks'
    order: str  # 'descending' | 'ascending' over the blocks
    empty: str  # what a tile without blocks does: 'mask' (one block, all masked) | 'skip'
    roles: tuple[Role, ...]
    buffers: tuple[Buffer, ...]
    steps: tuple[Steps, ...]
    operations: tuple[Operation, ...]
    barriers: tuple[Barrier, ...]
    turns: tuple[Turn, ...] = ()
    features: frozenset[str] = frozenset()  # bound: those of `ir.features` that are on
    modifiers: Modifiers = UNCHANGED  # of the features score_mod and mask_mod
    level_spans: Mapping[str, Span] = field(default_factory=dict, compare=False, repr=False)
    span: Span | None = field(default=None, compare=False, repr=False)

    def role(self, name: str) -> Role:
        """The role of that name (KeyError if there is none)."""
        for r in self.roles:
            if r.name == name:
                return r
        raise KeyError(name)

    def operation(self, name: str) -> Operation:
        """The operation of that name (KeyError if there is none)."""
        for o in self.operations:
            if o.name == name:
                return o
        raise KeyError(name)

    def steps_of(self, role: str) -> Steps:
        """A role's order; empty if it has none."""
        return next((s for s in self.steps if s.role == role), Steps(role=role))

    def buffer_of(self, item: str) -> Buffer:
        """The buffer that holds an item ('k' in the ring `kv`)."""
        for b in self.buffers:
            if item in b.items:
                return b
        raise KeyError(item)

    def tile(self) -> tuple[int, int]:
        """Queries of a forward's CTA tile (of all its instances), and keys of a block; queries of a
        backward's block, and keys of its CTA tile."""
        if self.kernel == "attention_backward":
            keys = self.buffer_of("k")
            count = self.index.count if keys.per else 1
            return self.buffer_of("q").tile[0], keys.tile[0] * count
        (product,) = (o for o in self.operations if o.a and o.writes)
        rows = self.buffer_of(product.a or "").tile[0] * self.index.count
        return rows, self.buffer_of(product.b or "").tile[0]

    def ring_barrier(self, item: str, side: str) -> str:
        """Name of the `full` or `empty` barrier of the ring that holds an item."""
        ring = self.buffer_of(item).name
        for b in self.barriers:
            if b.ring == ring and b.side == side:
                return b.name
        raise KeyError((item, side))
