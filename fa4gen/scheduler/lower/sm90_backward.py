"""Hopper's backward: a CTA holds one tile of keys, and takes the queries that see it in blocks.

Each consumer warpgroup has its own keys: S^T, dP^T, dK and dV are rows of keys in its registers. dQ
sums over the keys of all consumers, whose dS therefore lie in shared memory; each consumer computes
its part of the rows or columns of dQ.
"""

from dataclasses import dataclass
from typing import Protocol

from fa4gen.diag import error
from fa4gen.ir.boxes import side_by_side
from fa4gen.ir.geometry import STEP, padded
from fa4gen.ir.program import (
    OWN,
    Box,
    BulkLoad,
    Call,
    Define,
    NamedSync,
    Pending,
    ProxyFence,
    Slot,
    Stmt,
    TmaLoad,
    TmaStore,
    Wgmma,
)
from fa4gen.ir.schedule import Operation, Role, Space
from fa4gen.scheduler.check_turns import ordered

from .blocks import QUERY_LIST, WINDOW, limit
from .cursors import Cursors
from .events import OpEvent, PendingEvent
from .modifiers import asked, call_of
from .query_blocks import query_block
from .regions import accesses
from .scores import scale_log2, sloped, turned_pieces
from .sections import Occurrence
from .sm90 import join_name, unit_name
from .sm90_backward_frame import Sm90BackwardFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90Backward(Sm90BackwardFrame):
    """Chooses Hopper's statements for one plan of the backward."""

    def operation(self, event: OpEvent, cursors: Cursors) -> list[Stmt]:
        """The statements of one operation."""
        o = event.occurrence
        match o.operation.kind:
            case "tma_load":
                return [self._load(event, cursors)]
            case "bulk_load":
                return [self._load_rows(event, cursors)]
            case "wgmma":
                return [self._wgmma(o, cursors)]
            case "tma_reduce" | "tma_store":
                return self._tma_store(o, cursors)
        return self._call(o, cursors)

    def _call(self, o: Occurrence, cursors: Cursors) -> list[Stmt]:
        """Work of the warps themselves."""
        op, touched = o.operation, self._touched(o, cursors)

        def call(function: str, *args: str) -> Call:
            return Call(
                operation=op.name,
                function=function,
                args=args,
                accesses=touched,
                span=o.span,
                prev=o.prev,
            )

        match op.kind:
            case "probabilities":
                (s,) = op.updates
                rows = self._row_values(op.reads[0], o, cursors)
                function = self._made_by()
                make = call(function, f"acc_{s}", rows, scale_log2(self.schedule))
                return [*self._scores(o, s), *self._masks(o, s), make]
            case "score_gradients":
                probs, rows_of = self._by_space(op)
                rows = self._row_values(rows_of, o, cursors)
                args = (f"acc_{op.updates[0]}", f"acc_{probs}", rows)
                if sloped(self.schedule):
                    return [call("score_gradients_slope", *args, "slope")]
                return [call("score_gradients", *args)]
            case "convert":
                return [call("round_pairs", f"acc_{op.reads[0]}", f"frag_{op.writes[0]}")]
            case "share_tile":
                return [self._share(o, cursors, call), ProxyFence(span=o.span, prev=o.prev)]
            case "stage_sum":
                return [self._stage(o, call), ProxyFence(span=o.span, prev=o.prev)]
            case "store_gradient":
                return [self._store(o, call), ProxyFence(span=o.span)]
        raise error("FA0601", f"`{op.name}`: sm_90a has no `{op.kind}` here", span=o.span)

    def pending(self, event: PendingEvent, role: Role) -> list[Stmt]:
        """A wait for groups of the role's own unit; one for all ends its turn to add."""
        unit, op = unit_name(event.unit.value, role.name), ordered(self.schedule)
        passes = op is not None and op.role == role.name and not event.groups
        wait = Pending(unit=unit, groups=event.groups, prev=event.prev, written=passes)
        if op is None or not passes:
            return [wait]
        args = ("dq_turns", "batch", "head", "turn_block")
        passed = Call(operation=op.name, function="pass_turn", args=args, span=op.span)
        return [wait, passed]

    def _await_turn(self, o: Occurrence) -> list[Stmt]:
        """Before the first of the consumers' parts of a block is added: the turn of this tile."""
        block, op = query_block(self.schedule, o), o.operation
        if op != ordered(self.schedule) or o.instance not in (0, None):
            return []
        rows, keys = self._queries(), self._keys()
        rank = "n_tile"
        if op.options["turns"] == "descending":
            last = "key_tiles - 1"
            if self.schedule.causal:
                sizes = f"seqlen_q, seqlen_k, key_tiles, {block}, {rows}, {keys}"
                last = f"last_key_tile({sizes})"
            rank = f"{last} - n_tile"
        args = ("dq_turns", "batch", "head", "turn_block", rank)
        waits = Call(operation=op.name, function="await_turn", args=args, span=o.span)
        return [Define(name="turn_block", text=block), waits]

    def _by_space(self, op: Operation) -> tuple[str, str]:
        """(the item in registers, the item in shared memory) of two that are read."""
        first, second = op.reads
        smem = self._buffer(first).space is Space.SMEM
        return (second, first) if smem else (first, second)

    def _made_by(self) -> str:
        """The device function of the probabilities; a user's function may make anything of rows
        that do not exist."""
        return "probabilities_of_rows" if "score_mod" in self.schedule.features else "probabilities"

    def _scores(self, o: Occurrence, s: str) -> list[Call]:
        """What happens to scores before masks."""
        made = turned_pieces(self.schedule, f"coord, {self._diagonal(o)}", self._where(o))
        return [
            self._piece(o, "score", f, f"acc_{s}", *(("coord",) if "turned" in f else ()), *a)
            for f, a in made
        ]

    def _piece(self, o: Occurrence, piece: str, function: str, *args: str) -> Call:
        return Call(
            operation=o.operation.name,
            function=function,
            args=args,
            piece=piece,
            span=o.span,
            prev=o.prev,
        )

    def _where(self, o: Occurrence) -> tuple[str, str]:
        """First query of the block, and first key of the tile."""
        start = f"{query_block(self.schedule, o)} * {self._queries()}"
        return start, f"n_tile * {self._keys()}"

    def _diagonal(self, o: Occurrence) -> str:
        """The row at which the key stands that is the place of the block's first query."""
        start, key = self._where(o)
        return f"{key} - {start} - (seqlen_k - seqlen_q)"

    def _masks(self, o: Occurrence, s: str) -> list[Call]:
        """Drops the keys past the end, beyond the diagonal, outside of the window; loops without it
        are derived."""
        if not o.operation.options.get("mask"):
            return []
        left = f"{limit(self.schedule)} - n_tile * {self._keys()}"
        args: tuple[str, ...] = (f"acc_{s}", "coord", left)
        if self.schedule.over == QUERY_LIST:
            return self._listed_masks(o, *args)
        if "window" in self.schedule.features:
            found = ("mask_keys_window", *args, self._diagonal(o), *WINDOW)
        elif self.schedule.causal:  # query r sees key c up to c = r + seqlen_k - seqlen_q
            found = ("mask_keys_causal", *args, self._diagonal(o))
        else:
            found = ("mask_keys", *args)
        return [self._piece(o, "mask", *found)]

    def _listed_masks(self, o: Occurrence, *args: str) -> list[Call]:
        """Any tile may be the last one of the sequence; partial blocks have the user's mask."""
        found = [self._piece(o, "score", "mask_keys_tail", *args, str(self._keys()))]
        if "mask_mod" in asked(self.schedule, o.operation, "mask"):
            mod = call_of(self.schedule, "mask_mod")
            found.append(self._piece(o, "mask", "mask_turned", *args[:2], mod, *self._where(o)))
        return found

    def _load(self, event: OpEvent, cursors: Cursors) -> TmaLoad:
        o = event.occurrence
        item = o.operation.writes[0]
        (signal,) = event.signals
        boxes, slot = self._boxes(item), self._slot(item, o, cursors)
        base = self._at(item, slot, boxes.tile_bytes // 2)
        row, head = f"n_tile * {self._keys()}", "head_kv"
        if o.level == "block":
            row, head = f"{query_block(self.schedule, o)} * {boxes.rows}", "head"
        return TmaLoad(
            operation=o.operation.name,
            on=Slot(barrier=signal.barrier, instance=signal.instance, slot=slot),
            tx_bytes=self.tx_bytes(o),
            tensor_map=f"tma_{item}",
            boxes=tuple(
                Box(
                    smem=f"{base} + {n * boxes.elements}",
                    coords=(str(n * boxes.width), row, head, "batch"),
                )
                for n in range(boxes.count)
            ),
            accesses=accesses(self.schedule, self.storage, o),
            span=o.span,
            prev=o.prev,
        )

    def _load_rows(self, event: OpEvent, cursors: Cursors) -> BulkLoad:
        o = event.occurrence
        item = o.operation.writes[0]
        (signal,) = event.signals
        slot, first = self._slot(item, o, cursors), query_block(self.schedule, o)
        return BulkLoad(
            operation=o.operation.name,
            on=Slot(barrier=signal.barrier, instance=signal.instance, slot=slot),
            tx_bytes=self.tx_bytes(o),
            smem=self._at(item, slot, self._queries()),
            source=f"row_address({item}_rows, batch, head, {first} * {self._queries()})",
            accesses=accesses(self.schedule, self.storage, o),
            span=o.span,
            prev=o.prev,
        )

    def _wgmma(self, o: Occurrence, cursors: Cursors) -> Wgmma:
        op = o.operation
        a, b = op.a or "", op.b or ""
        return Wgmma(
            operation=op.name,
            unit=unit_name("wgmma", op.role),
            mma=f"mma_{op.name}",
            acc=f"acc_{self._result(op)}",
            a=f"frag_{a}" if self._in_registers(a) else f"a_{op.name}",
            b=f"b_{op.name}",
            a_slot="" if self._in_registers(a) else self._slot(a, o, cursors) or "0",
            b_slot=self._slot(b, o, cursors) or "0",
            k_steps=self._sum(op) // STEP,
            accumulate=not op.writes,
            accesses=self._touched(o, cursors),
            span=o.span,
            prev=o.prev,
        )

    def _share(self, o: Occurrence, cursors: Cursors, call: "_Maker") -> Call:
        (item,) = o.operation.writes
        boxes, slot = self._boxes(item), self._slot(item, o, cursors)
        home = self._at(item, slot, boxes.tile_bytes // 2) + self._own_boxes(item)
        row, columns = f"{self._own_row(item)}warp_in_role * 16", self._buffer(item).tile[1]
        args = (home, str(boxes.rows), row, str(columns), str(boxes.width))
        return call("share_tile", f"frag_{o.operation.reads[0]}", *args)

    def _own_row(self, item: str) -> str:
        """The first row of this consumer, to add to."""
        aside = side_by_side(self.schedule, self._buffer(item))
        return "" if aside else f"own * {self._buffer(item).tile[0]} + "

    def _own_boxes(self, item: str) -> str:
        """From a tile's first element to this consumer's first column."""
        if not side_by_side(self.schedule, self._buffer(item)):
            return ""
        return f" + own * {self._boxes(item).tile_bytes // 2 // self.instances}"

    def _stage(self, o: Occurrence, call: "_Maker") -> Call:
        (item,) = o.operation.writes
        boxes = self._sums(item)
        home = f"raw_{self._home(item)} + own * {boxes.tile_bytes // 4}"
        args = (home, str(boxes.rows), str(boxes.width))
        return call("stage_sum", f"acc_{o.operation.reads[0]}", *args)

    def _store(self, o: Occurrence, call: "_Maker") -> Call:
        (item,) = o.operation.writes
        boxes = self._boxes(item)
        scale = "softmax_scale" if o.operation.options.get("scaled") else "Float32(1.0)"
        home = f"raw_{self._home(item)}{self._own_boxes(item)}"
        row = f"{self._own_row(item)}lane_row"
        args = (scale, self.dtype, home, str(boxes.rows), row)
        widths = (str(padded(self._buffer(item).tile[1])), str(boxes.width))
        return call("store_gradient", f"acc_{o.operation.reads[0]}", *args, *widths)

    def _tma_store(self, o: Occurrence, cursors: Cursors) -> list[Stmt]:
        op = o.operation
        adds = op.kind == "tma_reduce"
        store = TmaStore(
            operation=op.name,
            unit=unit_name("tma_store", op.role),
            tensor_map="tma_dq_sum" if adds else f"tma_{self._gradient(op)}",
            boxes=self._added(o) if adds else self._gradients(op),
            accesses=self._touched(o, cursors),
            adds=adds,
            span=o.span,
        )
        if op.role not in self.joins().values():
            return [*self._await_turn(o), store]
        return [NamedSync(on=Slot(barrier=join_name(op.role), instance=OWN), span=o.span), store]

    def _gradients(self, op: Operation) -> tuple[Box, ...]:
        (item,) = op.reads
        boxes, (rows, columns) = self._boxes(item), self._buffer(item).tile
        aside = side_by_side(self.schedule, self._buffer(item))
        row = f"n_tile * {self._keys()}" + ("" if aside else f" + own * {rows}")
        first = f"own * {columns} + " if aside else ""
        base = self._own_boxes(item) if aside else f" + own * {rows * boxes.width}"
        return tuple(
            Box(
                smem=f"raw_{self._home(item)} + {n * boxes.elements}{base}",
                coords=(f"{first}{n * boxes.width}", row, "head_kv", "batch"),
            )
            for n in range(boxes.count // (self.instances if aside else 1))
        )

    def _added(self, o: Occurrence) -> tuple[Box, ...]:
        """Boxes of one consumer's part of dQ: its rows, or its columns."""
        (item,) = o.operation.reads
        boxes, own = self._sums(item), int(str(o.instance))
        row = f"{query_block(self.schedule, o)} * {self._queries()}"
        by_rows = self._by_rows(item)
        row += f" + {own * boxes.rows}" if by_rows and own else ""
        first = 0 if by_rows else own * boxes.columns
        base = own * boxes.tile_bytes // 4
        return tuple(
            Box(
                smem=f"raw_{self._home(item)} + {base + n * boxes.elements}",
                coords=(str(first + n * boxes.width), row, "head", "batch"),
            )
            for n in range(boxes.count)
        )


class _Maker(Protocol):
    """Makes a call of the operation at hand."""

    def __call__(self, function: str, *args: str) -> Call: ...
