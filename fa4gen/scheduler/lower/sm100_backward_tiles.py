"""What the backward's tiles are on Blackwell: boxes, columns, operands, who does what."""

from dataclasses import dataclass

from fa4gen.ir.geometry import Boxes, padded
from fa4gen.ir.plan import Plan
from fa4gen.ir.schedule import Buffer, Operation, Role, Schedule, Space

from .regions import Storage
from .sm100 import DTYPES
from .umma import SmemOperand, tmem_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100BackwardTiles:
    """The tiles of one plan."""

    plan: Plan
    storage: Storage

    @property
    def schedule(self) -> Schedule:
        """The schedule of the plan."""
        return self.plan.schedule

    @property
    def dtype(self) -> str:
        """The element type in cutlass."""
        return DTYPES[self.schedule.dtype]

    def _buffer(self, item: str | None) -> Buffer:
        return self.schedule.buffer_of(item or "")

    def _boxes(self, item: str | None) -> Boxes:
        """Boxes of one instance's tile."""
        rows, columns = self._buffer(item).tile
        return Boxes(rows=rows, columns=columns)

    def _home(self, item: str) -> str:
        buffer = self._buffer(item)
        return buffer.overlays or buffer.name

    def _keys(self) -> int:
        """Keys of a CTA's tile."""
        return self._buffer("k").tile[0]

    def _queries(self) -> int:
        """Queries of a block."""
        return self._buffer("q").tile[0]

    def _all_columns(self, item: str | None) -> int:
        """Columns of a tile, of all instances side by side."""
        buffer = self._buffer(item)
        return padded(buffer.tile[1]) * (self.schedule.index.count if buffer.per else 1)

    def _operand(self, op: Operation, side: str, slot: str = "") -> SmemOperand | str:
        """A or B: a tile in shared memory, or the text of step `k` of one in tensor memory."""
        item = (op.a if side == "a" else op.b) or ""
        buffer = self._buffer(item)
        if buffer.space is Space.TMEM:
            return tmem_step(self.plan.columns[buffer.name], buffer.tile[1])
        boxes = self._boxes(item)
        return SmemOperand(
            item=item,
            array=buffer.name,
            boxes=boxes,
            down=(side in op.transposed) == (side == "a"),
            slot=slot,
            pitch_bytes=boxes.tile_bytes,
        )

    def _sum(self, op: Operation) -> int:
        """Elements that a product sums over, whole steps of the instruction."""
        if "a" in op.transposed:
            return self._buffer(op.a).tile[0]
        return self._all_columns(op.a)

    def _pieces(self, item: str) -> tuple[str, ...]:
        return self.storage.pieces[self._buffer(item).name, None]

    def _gradient(self, op: Operation) -> str:
        """The tensor that a tile goes to has the name of the accumulator that it was made of."""
        made = next(o for o in self.schedule.operations if set(o.writes) & set(op.reads))
        return made.reads[0]

    def _of(self, role: Role) -> tuple[Operation, ...]:
        return tuple(o for o in self.schedule.operations if o.role == role.name)

    def _kinds(self, role: Role) -> set[str]:
        return {o.kind for o in self._of(role)}
