"""Blackwell's backward: a CTA holds one tile of keys, and the queries that see it come by, block by
block.

Scores are transposed, lanes of tensor memory are keys. The compute groups have parts of a block's
queries; a product takes the tiles of all groups side by side.
"""

from dataclasses import dataclass, replace

from fa4gen.diag import error
from fa4gen.ir.geometry import STEP, SUM_COLUMNS, padded
from fa4gen.ir.program import (
    OWN,
    Access,
    Box,
    BulkLoad,
    Call,
    NamedSync,
    Pending,
    ProxyFence,
    Slot,
    Stmt,
    TmaLoad,
    TmaStore,
    TmemWait,
    Umma,
)
from fa4gen.ir.schedule import Role, Space

from .blocks import QUERY_LIST
from .cursors import Cursors
from .events import OpEvent, PendingEvent
from .modifiers import asked, call_of
from .query_blocks import query_block
from .regions import accesses
from .scores import scale_log2, sloped, turned_pieces
from .sections import Occurrence
from .sm100_backward_frame import WARP_ROWS, Sm100BackwardFrame

Touched = tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100Backward(Sm100BackwardFrame):
    """Chooses Blackwell's statements for one plan of the backward."""

    # geometry -------------------------------------------------------------------------------------
    def _column(self, item: str, o: Occurrence) -> str:
        """First tensor memory column of an item's tile, as an expression."""
        columns = self.plan.columns[self._buffer(item).name]
        if len(columns) > 1 and o.instance is OWN:
            return f"{columns[0]} + own * {columns[1] - columns[0]}"
        return str(columns[0])

    def tx_bytes(self, o: Occurrence) -> int:
        """Bytes that one load brings; rows past the end of the tensor count too."""
        item = o.operation.writes[0]
        return (
            4 * self._queries() if o.operation.kind == "bulk_load" else self._boxes(item).tile_bytes
        )

    # statements -----------------------------------------------------------------------------------
    def operation(self, event: OpEvent, cursors: Cursors) -> list[Stmt]:
        """The statements of one operation."""
        o = event.occurrence
        match o.operation.kind:
            case "tma_load":
                return [self._load(event, cursors)]
            case "bulk_load":
                return [self._load_rows(event, cursors)]
            case "umma":
                return [self._umma(o, cursors)]
            case "probabilities":
                return self._probabilities(o, cursors)
            case "score_gradients":
                return self._score_gradients(o, cursors)
            case "take_sum":
                return self._take(o, cursors)
            case "reduce_tile":
                return [self._reduce(o, cursors)]
            case "store_gradient":
                return [self._store(o, cursors), ProxyFence(span=o.span)]
            case "tma_store":
                return self._tma_store(o, cursors)
        title = f"`{o.operation.name}`: {self.schedule.target} has no `{o.operation.kind}` here"
        raise error("FA0601", title, span=o.span)

    def pending(self, event: PendingEvent, role: Role) -> list[Stmt]:
        """A wait for the role's bulk stores."""
        return [
            Pending(unit=f"{event.unit.value}_{role.name}", groups=event.groups, prev=event.prev)
        ]

    def _call(
        self,
        o: Occurrence,
        function: str,
        args: tuple[str, ...],
        touched: Touched,
        results: tuple[str, ...] = (),
    ) -> Call:
        return Call(
            operation=o.operation.name,
            results=results,
            function=function,
            args=args,
            accesses=touched,
            span=o.span,
            prev=o.prev,
        )

    def _slot(self, item: str, o: Occurrence, cursors: Cursors) -> str:
        """The variable that picks an item's slot; '' where it has one."""
        if self.plan.stages[self._buffer(item).name] == 1:
            return ""
        side = "empty" if item in o.operation.writes else "full"
        return cursors.slot(self.schedule.ring_barrier(item, side), item, before=o.prev)

    def _touched(self, o: Occurrence, cursors: Cursors, *items: str) -> Touched:
        """What an operation touches (of `items`, if given), with the slots of rings."""
        op = o.operation
        every = (*op.reads, *op.writes, *op.updates)
        slots = {r: self._slot(i, o, cursors) for i in every for r in self._pieces(i)}
        wanted = {r for i in items or every for r in self._pieces(i)}
        writes = {i in (*op.writes, *op.updates) for i in items or every}
        found = accesses(self.schedule, self.storage, o)
        return tuple(
            replace(a, slot=slots[a.region])
            for a in found
            if a.region in wanted and a.write in writes
        )

    def _at(self, item: str, slot: str, elements: int) -> str:
        """First element of an item's slot in shared memory."""
        return (
            f"raw_{self._home(item)} + {slot} * {elements}" if slot else f"raw_{self._home(item)}"
        )

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

    # products -------------------------------------------------------------------------------------
    def _umma(self, o: Occurrence, cursors: Cursors) -> Umma:
        op = o.operation
        texts = []
        for side, item in (("a", op.a), ("b", op.b)):
            in_smem = self._buffer(item).space is Space.SMEM
            slot = self._slot(item or "", o, cursors) if in_smem else ""
            operand = self._operand(op, side, slot)
            texts.append(operand if isinstance(operand, str) else operand.step)
        column = self.plan.columns[(op.writes or op.updates)[0]][0]
        return Umma(
            operation=op.name,
            instruction=f"idesc_{op.name}",
            d=f"p.make_tmem_ptr(Int32({column}), Float32)",
            a=texts[0],
            b=texts[1],
            k_first=0,
            k_end=self._sum(op) // STEP,
            keep="k > 0" if op.writes else _continues(o),
            accesses=self._touched(o, cursors),
            span=o.span,
            prev=o.prev,
        )

    # the compute groups ---------------------------------------------------------------------------
    def _rows_of(self, item: str, o: Occurrence, cursors: Cursors) -> str:
        """Address of the first float32 of this group's queries."""
        part = self._part(o)
        return f"{self._at(item, self._slot(item, o, cursors), self._queries())} + own * {part}"

    def _part(self, o: Occurrence) -> int:
        """Queries of one group."""
        return self._buffer(o.operation.reads[0]).tile[1]

    def _probabilities(self, o: Occurrence, cursors: Cursors) -> list[Stmt]:
        op = o.operation
        (scores, rows), (target,) = op.reads, op.writes
        read = tuple(a for a in self._touched(o, cursors, scores) if not a.write)
        address = f"lanes + {self._column(scores, o)}"
        load = self._call(o, "load_row", (address, str(self._part(o))), read, ("s",))
        args = ("s", self._rows_of(rows, o, cursors), scale_log2(self.schedule))
        made_by = "probabilities"
        if "score_mod" in self.schedule.features:  # it may make anything of rows that are none
            made_by = "probabilities_of_rows"
        make = self._call(o, made_by, args, self._touched(o, cursors, rows), ("e",))
        written = tuple(a for a in self._touched(o, cursors, target) if a.write)
        args = ("e", f"lanes + {self._column(target, o)}", self.dtype)
        store = self._call(o, "store_p", args, written)
        changes = [*self._scores(o), *(self._masks(o) if op.options.get("mask") else [])]
        loaded, stored = (TmemWait(kind=k, span=o.span, prev=o.prev) for k in ("load", "store"))
        slopes = self._call(o, "with_slopes", ("e", "slope"), (), ("e",))
        last = [stored, slopes] if sloped(self.schedule) else [stored]
        return [load, loaded, *changes, make, store, *last]

    def _first(self, o: Occurrence) -> str:
        """The first query of this group, of the operation's block."""
        return f"{query_block(self.schedule, o)} * {self._queries()} + own * {self._part(o)}"

    def _piece(self, o: Occurrence, piece: str, function: str, *args: str) -> Call:
        results = ("s", "slope") if function.endswith("_slope") else ("s",)
        return replace(self._call(o, function, ("s", *args), (), results), piece=piece)

    def _scores(self, o: Occurrence) -> list[Call]:
        """What happens to scores before masks."""
        first, key = self._first(o), f"n_tile * {self._keys()} + row"
        place = f"{key} - (seqlen_k - seqlen_q) - ({first})"
        made = []
        for function, args in turned_pieces(self.schedule, place, (first, key)):
            if function == "cap_scores_slope":  # the first to give a derivative
                args = args[1:]
            elif args[-1:] == ("True",):
                args = (*args[:-2], "None", "True")
            made.append(self._piece(o, "score", function, *args))
        return made

    def _masks(self, o: Occurrence) -> list[Call]:
        """Drops what does not see this thread's key; loops without it are derived."""
        parts = (query_block(self.schedule, o), self._queries(), self._part(o))
        first = "{} * {} - own * {}".format(*parts)  # less this
        if self.schedule.over == QUERY_LIST:
            found = [self._piece(o, "score", "mask_queries", f"seen_from - {first}")]
            if "mask_mod" in asked(self.schedule, o.operation, "mask"):
                mod, key = call_of(self.schedule, "mask_mod"), f"n_tile * {self._keys()} + row"
                found.append(self._piece(o, "mask", "mask_turned", mod, self._first(o), key))
            return found
        if "window" in self.schedule.features:
            ends = (f"seen_from - {first}", f"seen_to - {first}")
            return [self._piece(o, "mask", "mask_queries_window", *ends)]
        return [self._piece(o, "mask", "mask_queries", f"seen_from - {first}")]

    def _score_gradients(self, o: Occurrence, cursors: Cursors) -> list[Stmt]:
        op = o.operation
        dp, rows = op.reads
        target, shared = sorted(op.writes, key=lambda i: self._buffer(i).space is Space.SMEM)
        boxes = self._boxes(shared)
        args = (
            "e",
            f"lanes + {self._column(dp, o)}",
            self._rows_of(rows, o, cursors),
            f"lanes + {self._column(target, o)}",
            str(self._upper_half(target, dp)),
            f"raw_{self._home(shared)} + own * {boxes.tile_bytes // 2}",
            "row",
            str(boxes.rows),
            str(boxes.width),
            self.dtype,
        )
        make = self._call(o, "score_gradients", args, self._touched(o, cursors))
        stored = TmemWait(kind="store", span=o.span, prev=o.prev)
        fence = ProxyFence(span=o.span, prev=o.prev)
        return [replace(make, settled=True), stored, fence]

    def _upper_half(self, over: str, under: str) -> bool:
        """Whether a 16-bit tile lies over the upper half of the float32 tile that it is made of."""
        apart = self.plan.columns[over][0] - self.plan.columns[under][0]
        width = self.plan.widths[over]
        if apart not in (0, width) and abs(apart) < 2 * width:
            raise error(
                "FA0603",
                f"`{over}` lies {apart} columns into `{under}`, which is read while it is written",
                span=self._buffer(over).span,
                fix=f"leave `columns` of `{over}` out, or let it begin where `{under}` begins",
            )
        return apart == width

    # what leaves the CTA --------------------------------------------------------------------------
    def _take(self, o: Occurrence, cursors: Cursors) -> list[Stmt]:
        (dq,) = o.operation.reads
        args = (f"lanes + {self._column(dq, o)}", str(self._all_columns(dq)))
        load = self._call(o, "load_row", args, self._touched(o, cursors), ("dq",))
        return [load, TmemWait(kind="load", span=o.span, prev=o.prev)]

    def _reduce(self, o: Occurrence, cursors: Cursors) -> Call:
        (out,) = o.operation.writes
        boxes = self._buffer(out).tile[1] // SUM_COLUMNS
        args = (
            "dq",
            f"raw_{self._home(out)} + warp_in_role * {boxes * WARP_ROWS * SUM_COLUMNS}",
            str(boxes),
            "tma_dq_sum",
            f"{query_block(self.schedule, o)} * {self._queries()} + warp_in_role * {WARP_ROWS}",
            "head",
            "batch",
        )
        return self._call(o, "reduce_tile", args, self._touched(o, cursors))

    def _store(self, o: Occurrence, cursors: Cursors) -> Call:
        op = o.operation
        (source,), (out,) = op.reads, op.writes
        boxes, columns = self._boxes(out), padded(self._buffer(out).tile[1])
        args = (
            f"lanes + {self._column(source, o)}",
            "softmax_scale" if op.options.get("scaled") else "Float32(1.0)",
            f"own * {columns}",
            str(columns),
            str(self._all_columns(source)),
            self.dtype,
            f"raw_{self._home(out)} + own * {boxes.tile_bytes // 2}",
            "row",
            str(boxes.rows),
            str(boxes.width),
        )
        return replace(
            self._call(o, "store_gradient", args, self._touched(o, cursors)), settled=True
        )

    def _tma_store(self, o: Occurrence, cursors: Cursors) -> list[Stmt]:
        op = o.operation
        (item,) = op.reads
        boxes, columns = self._boxes(item), self._buffer(item).tile[1]
        base = f"raw_{self._home(item)} + own * {boxes.tile_bytes // 2}"
        store = TmaStore(
            operation=op.name,
            unit=f"tma_store_{op.role}",
            tensor_map=f"tma_{self._gradient(op)}",
            boxes=tuple(
                Box(
                    smem=f"{base} + {n * boxes.elements}",
                    coords=(
                        f"own * {columns} + {n * boxes.width}",
                        f"n_tile * {self._keys()}",
                        "head_kv",
                        "batch",
                    ),
                )
                for n in range(boxes.count)
            ),
            accesses=self._touched(o, cursors),
            span=o.span,
        )
        return [NamedSync(on=Slot(barrier=f"{op.role}_join", instance=OWN), span=o.span), store]


def _continues(o: Occurrence) -> str:
    """Whether step `k` adds to what an accumulator holds: earlier steps, and earlier blocks."""
    match o.section:
        case "first":
            return "k > 0"
        case "last":
            return "(n_blocks > 1) if k == 0 else True"
        case _:
            return "(i > 0) if k == 0 else True" if o.prev else "True"
