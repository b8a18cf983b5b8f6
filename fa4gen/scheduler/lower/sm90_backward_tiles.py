"""How the tiles of Hopper's backward lie in shared memory and registers, and what a product is made
of."""

from dataclasses import dataclass, replace

from fa4gen.ir.boxes import boxes, columns_split, side_by_side
from fa4gen.ir.geometry import Boxes, padded
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import Access
from fa4gen.ir.schedule import Buffer, Operation, Schedule, Space

from .cursors import Cursors
from .regions import Storage, accesses
from .sections import Occurrence
from .sm90 import DTYPES, join_name

Touched = tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90BackwardTiles:
    """Tiles, slots and products of one plan."""

    plan: Plan
    storage: Storage

    @property
    def schedule(self) -> Schedule:
        """The schedule of the plan."""
        return self.plan.schedule

    @property
    def instances(self) -> int:
        """Consumer warpgroups."""
        return self.schedule.index.count

    @property
    def dtype(self) -> str:
        """The element type in cutlass."""
        return DTYPES[self.schedule.dtype]

    def _buffer(self, item: str) -> Buffer:
        return self.schedule.buffer_of(item)

    def _rows(self, buffer: Buffer) -> int:
        """Rows of a tile in shared memory, those of all consumers together."""
        below = buffer.per and not side_by_side(self.schedule, buffer)
        return buffer.tile[0] * (self.instances if below else 1)

    def _boxes(self, item: str) -> Boxes:
        """Boxes of a 16-bit tile, of all consumers together."""
        return boxes(self.schedule, self._buffer(item))

    def _sums(self, item: str) -> Boxes:
        """Boxes of one consumer's float32 tile."""
        rows, columns = self._buffer(item).tile
        return Boxes(rows=rows, columns=columns, bits=32)

    def _home(self, item: str) -> str:
        buffer = self._buffer(item)
        return buffer.overlays or buffer.name

    def _keys(self) -> int:
        """Keys of a CTA's tile."""
        return self._rows(self._buffer("k"))

    def _queries(self) -> int:
        """Queries of a block."""
        return self._buffer("q").tile[0]

    def _by_rows(self, item: str) -> bool:
        """Whether consumers share dQ by rows (else by columns)."""
        return self._buffer(item).tile[0] < self._queries()

    def tx_bytes(self, o: Occurrence) -> int:
        """Bytes that one load brings; rows past the end of the tensor count too."""
        item = o.operation.writes[0]
        if o.operation.kind == "bulk_load":
            return 4 * self._queries()
        return self._boxes(item).tile_bytes

    def _slot(self, item: str, o: Occurrence, cursors: Cursors) -> str:
        """The variable that picks an item's slot; '' where it has one."""
        if self.plan.stages[self._buffer(item).name] == 1:
            return ""
        side = "empty" if item in o.operation.writes else "full"
        return cursors.slot(self.schedule.ring_barrier(item, side), item)

    def _touched(self, o: Occurrence, cursors: Cursors) -> Touched:
        """What an operation touches, with the slots of rings."""
        op = o.operation
        slots = {
            self._home(i): self._slot(i, o, cursors) for i in (*op.reads, *op.writes, *op.updates)
        }
        found = accesses(self.schedule, self.storage, o)
        return tuple(replace(a, slot=slots[a.region]) for a in found)

    def _at(self, item: str, slot: str, elements: int) -> str:
        """First element of an item's slot in shared memory."""
        return (
            f"raw_{self._home(item)} + {slot} * {elements}" if slot else f"raw_{self._home(item)}"
        )

    def _row_values(self, item: str, o: Occurrence, cursors: Cursors) -> str:
        """Address of one float32 for each query of the block that this consumer has scores of."""
        first = self._at(item, self._slot(item, o, cursors), self._queries())
        columns = self._buffer(o.operation.updates[0]).tile[1]
        return first if columns == self._queries() else f"{first} + own * {columns}"

    def _in_registers(self, item: str) -> bool:
        return self._buffer(item).space is Space.RMEM

    def _result(self, op: Operation) -> str:
        return (op.writes or op.updates)[0]

    def _sum(self, op: Operation) -> int:
        """Elements that a product sums over, whole steps of the instruction."""
        a = self._buffer(op.a or "")
        if "a" in op.transposed:
            return self._rows(a) if op.options.get("sums_over") else a.tile[0]
        return padded(a.tile[1] * (self.instances if side_by_side(self.schedule, a) else 1))

    def _columns_split(self, op: Operation) -> bool:
        return columns_split(self.schedule, op)

    def _products(self) -> tuple[Operation, ...]:
        return tuple(o for o in self.schedule.operations if o.kind == "wgmma")

    def _gradient(self, op: Operation) -> str:
        """The tensor that a tile goes to has the name of the accumulator that it was made of."""
        made = next(o for o in self.schedule.operations if set(o.writes) & set(op.reads))
        return made.reads[0]

    def joins(self) -> dict[str, str]:
        """Roles whose warps must meet before one of them stores what all have written."""
        return {
            join_name(o.role): o.role
            for o in self.schedule.operations
            if o.kind == "tma_store" and self.schedule.role(o.role).warps > 1
        }
