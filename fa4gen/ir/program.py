"""What will be printed: for each role a list of statements, waits and arrivals included.

The same object is checked and printed. Each statement is one line or block of the generated kernel
(`text` fields are Python expressions decided by lowering; a template only puts them in place), and
says what it means for synchronisation (barrier, unit, accesses), which is all that the checks read.

A role runs  start · tile* · end ; a tile runs
before · first(block 0) · rest(block 1) … rest(n-1) · last(n-1).
Where `merge_first` holds, `first` equals the body of the first segment and is printed as that
loop's first iteration (its trips then count block 0 too).
`rest` may be printed as several loops (segments: masked, unmasked) that synchronise alike. All
roles see the same list of block counts. A role with `instances` is one body for that many roles;
the index OWN stands for the instance at run time, NEXT for the one after it, round the ring.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from fa4gen.diag import Span


class Relative(StrEnum):
    """An instance known at run time only."""

    OWN = "own"
    NEXT = "next"


OWN, NEXT = Relative.OWN, Relative.NEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """One access to a version of a storage region; `rank` orders accesses within a version.

    version = a * block + b for block-level data (K and V of one ring: a = 2, b = 0 or 1), the
    number of the tile where `a` is 0. `region` is a key of `KernelProgram.regions`; overlapping
    columns are regions of their own. `slot`: the variable that picks the ring's slot, where it
    is printed in a text and not in a field of the statement.
    """

    region: str
    instance: int | Relative | None = None
    write: bool
    rank: int
    a: int = 1
    b: int = 0
    slot: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A barrier (of an instance), and the variable that holds the slot's number where it has
    several."""

    barrier: str
    instance: int | Relative | None = None
    slot: str = ""  # name of an integer variable; '' for single-stage barriers


@dataclass(frozen=True, slots=True, kw_only=True)
class Stmt:
    """Common to all: where it comes from, and whether it belongs to the block before the loop's.

    `only`: executed by that instance of the role alone (the first holder of a token, say).
    """

    span: Span | None = field(default=None, compare=False, repr=False)
    prev: bool = False
    only: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Stmt):
    """Until the role's next phase of a mbarrier is complete; `free`: one lap behind (first lap
    passes).

    `phase` names the variable that holds the parity asked for.
    """

    on: Slot
    phase: str
    free: bool = False


class Lanes(StrEnum):
    """Who arrives: every thread of the role, one elected lane of each warp (`WARPS`: once all its
    lanes have come there), or of the first warp."""

    ALL = "all"
    ELECTED = "elected"
    WARPS = "warps"
    LEADER = "leader"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrive(Stmt):
    """The role arrives at a mbarrier."""

    on: Slot
    lanes: Lanes = Lanes.ALL


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSync(Stmt):
    """Joins a round of a named barrier and waits for its end."""

    on: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedArrive(Stmt):
    """Joins a round of a named barrier without waiting."""

    on: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Stmt):
    """The role's own work: `results = function(args)`, a device function of `emit.device`.

    `piece`: 'score' changes the scores before their maximum is taken; 'mask' hides some of them,
    and is left out of the loop over blocks that are seen whole.
    `settled`: the function itself waits for the tensor memory loads that it begins
    (tcgen05.wait::ld).
    """

    operation: str
    results: tuple[str, ...] = ()
    function: str
    args: tuple[str, ...] = ()
    accesses: tuple[Access, ...] = ()
    settled: bool = False
    piece: str = ""  # '' | 'score' | 'mask'


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """One box of a TMA copy: shared memory address expression, coordinates (innermost first)."""

    smem: str
    coords: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaLoad(Stmt):
    """One elected lane arms `on` with `tx_bytes` and copies the boxes; arrives there when all are
    in.

    `armed`: the bytes as an expression, where boxes hold whole queries of several heads alone, and
    these may be fewer than a tile's rows ('': `tx_bytes`). `lanes`: so many lanes copy the boxes,
    each of them its own rows (0: the elected one does).
    """

    operation: str
    on: Slot
    tx_bytes: int
    armed: str = ""
    tensor_map: str
    lanes: int = 0
    boxes: tuple[Box, ...]
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryCancel(Stmt):
    """One elected lane arms `on` with `tx_bytes` and asks for a CTA that has not begun
    (clusterlaunchcontrol.try_cancel): the answer, of so many bytes, is written to shared memory as
    a load is."""

    operation: str
    on: Slot
    tx_bytes: int
    smem: str
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkLoad(Stmt):
    """One elected lane arms `on` with `tx_bytes` and copies so many bytes in one piece.

    `smem`, `source`: expressions of the addresses in shared and global memory.
    """

    operation: str
    on: Slot
    tx_bytes: int
    smem: str
    source: str
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Umma(Stmt):
    """A product on the tensor core, issued by one elected lane, in order with others of its unit.

    `d`, `a`, `b` are expressions in the step `k` of depth 16, which runs from `k_first` to `k_end`;
    `keep`: whether step `k` adds to what the accumulator holds.
    """

    operation: str
    unit: str = "tensor"
    instruction: str  # name of the instruction descriptor
    d: str
    a: str
    b: str
    k_first: int
    k_end: int
    keep: str
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wgmma(Stmt):
    """A product of one warpgroup, closed as one wgmma group.

    `mma`, `acc`, `a`, `b`: names of the CuTe objects; `a_slot`, `b_slot`: the variable (or literal)
    that picks the operand's stage, '' where it has none; `k_steps` fragments of K = 16;
    `accumulate`: False writes the accumulator afresh.
    """

    operation: str
    unit: str = "wgmma"
    mma: str
    acc: str
    a: str
    b: str
    a_slot: str = ""
    b_slot: str = ""
    k_steps: int
    accumulate: bool
    accesses: tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit(Stmt):
    """tcgen05.commit: one arrival once everything issued to the unit before is done."""

    unit: str = "tensor"
    on: Slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending(Stmt):
    """wgmma.wait_group (or the bulk one): at most `groups` groups of the unit are still running.

    `written`: of a bulk group not only has the source been read, the result is there too.
    """

    unit: str
    groups: int
    written: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TmaStore(Stmt):
    """One elected lane copies boxes from shared to global memory (or adds them there), as one bulk
    group."""

    operation: str
    unit: str = "tma_store"
    tensor_map: str
    boxes: tuple[Box, ...]
    accesses: tuple[Access, ...]
    adds: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFence(Stmt):
    """fence.proxy.async: the role's shared memory writes become visible to asynchronous readers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TmemWait(Stmt):
    """tcgen05.wait::ld or wait::st: the role's tensor memory accesses are over and seen."""

    kind: str  # 'load' | 'store'


@dataclass(frozen=True, slots=True, kw_only=True)
class Define(Stmt):
    """`name = text`: an address, a fragment, a value of the tile; no meaning for
    synchronisation."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Take(Stmt):
    """Remembers the slot that a cursor points to: `name = cursor slot`."""

    name: str
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Keep(Stmt):
    """Keeps the slot of the block before under another name: `name = of`."""

    name: str
    of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance(Stmt):
    """Moves a cursor to the next slot of its ring; with one stage, flips its phase."""

    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A role's place in rings: variables `<name>_slot` (if stages > 1) and `<name>_phase`.

    `barriers`: those that it stands for; `phase`: its value at start (1: a free first lap).
    """

    name: str
    stages: int
    phase: int
    barriers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One loop over a part of the blocks 1 … n-1; segments of a role synchronise alike.

    `start`: where its counter `i` begins, if the body looks at it and segments go before.
    """

    name: str
    trips: str  # expression for the number of iterations
    body: tuple[Stmt, ...]
    start: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """All blocks of a tile come `trips` times over, with values of their own: `name` counts."""

    name: str
    trips: str
    values: tuple[Define, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleProgram:
    """One role: its warps, registers, and its statements, section by section.

    `repeat`: the loops over blocks are printed once, inside a loop; what synchronises is the same
    as if all blocks followed each other in one loop.
    """

    name: str
    instances: int = 1
    first_warp: int
    warps: int  # of one instance
    active: int  # of these, how many run the program
    registers: int
    registers_change: str  # 'increase' | 'decrease'
    cursors: tuple[Cursor, ...] = ()
    setup: tuple[Define, ...] = ()
    start: tuple[Stmt, ...] = ()
    tile: tuple[Define, ...] = ()
    before: tuple[Stmt, ...] = ()
    merge_first: bool = False
    first: tuple[Stmt, ...] = ()
    segments: tuple[Segment, ...] = ()
    repeat: Repeat | None = None
    last: tuple[Stmt, ...] = ()
    end: tuple[Stmt, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def rest(self) -> tuple[Stmt, ...]:
        """The body of the block loop (of its first segment; the others synchronise alike)."""
        return self.segments[0].body if self.segments else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """Who arrives in one phase of a barrier, and how many arrivals that makes.

    Several operations of the role take turns, one in each phase.
    """

    role: str
    operations: tuple[str, ...]
    arrivals: int

    def __str__(self) -> str:
        return f"{self.arrivals} {self.role}.{' | '.join(self.operations)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierPlan:
    """A barrier as placed: `base` is its first index in the mbarrier array, or its first named id.

    `arrive_count` is what mbarrier.init gets (threads of one round, for a named barrier); a barrier
    has `instances` x `stages` of these. `tx_bytes`: bytes that loads bring in one phase; where
    items of different size take turns, `tx_turns` holds the bytes of each, and `tx_bytes` the most.
    """

    name: str
    named: bool = False
    base: int
    instances: int = 1
    stages: int = 1
    arrive_count: int
    tx_bytes: int = 0
    tx_turns: tuple[int, ...] = ()
    contributions: tuple[Contribution, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A piece of storage as the hazard checks see it: a ring of `stages` slots, for each instance.

    Two buffers whose columns overlap share the regions of the overlap.
    """

    name: str
    space: str  # 'smem' | 'tmem' | 'rmem'
    stages: int = 1
    instances: int = 1
    what: str = ""  # for messages: 'columns 64-111 of s[0]'


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitPlan:
    """An asynchronous unit: `in_order` is the assumption that its operations take effect as issued.

    `owner`: role that issues to it (one unit for each instance of that role).
    """

    name: str
    owner: str
    in_order: bool
    assumption: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelProgram:
    """The whole kernel: roles, barriers, regions, units, and what the kernel's head declares."""

    name: str
    target: str
    schedule_file: str
    roles: tuple[RoleProgram, ...]
    barriers: tuple[BarrierPlan, ...]
    regions: tuple[Region, ...]
    units: tuple[UnitPlan, ...]
    threads: int
    assumptions: tuple[str, ...] = ()  # beside those of the units
    head: object  # the target's declarations (emit prints them); see `ir.head`

    def barrier(self, name: str) -> BarrierPlan:
        """The barrier of that name (KeyError if there is none)."""
        for b in self.barriers:
            if b.name == name:
                return b
        raise KeyError(name)
