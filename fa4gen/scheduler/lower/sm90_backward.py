"""Hopper's backward: a CTA holds one tile of keys, and takes the queries that see it in blocks.

Each consumer warpgroup has its own keys: S^T, dP^T, dK and dV are rows of keys in its registers. dQ
sums over the keys of all consumers, whose dS therefore lie in shared memory; each consumer computes
its part of the rows or columns of dQ.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from fa4gen.diag import error
from fa4gen.ir.geometry import STEP, Boxes, padded
from fa4gen.ir.head import Head, TensorMap
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import (
    OWN,
    Access,
    Box,
    BulkLoad,
    Call,
    Define,
    NamedSync,
    Pending,
    ProxyFence,
    Repeat,
    Slot,
    Stmt,
    TmaLoad,
    TmaStore,
    Wgmma,
)
from fa4gen.ir.schedule import Buffer, Operation, Role, Schedule, Space

from .blocks import query_block
from .cursors import Cursors
from .events import OpEvent, PendingEvent
from .regions import Storage, accesses
from .sections import Occurrence
from .sm90 import DTYPES, join_name, unit_name
from .tiles import key_tile_scheduler

Touched = tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90Backward:
    """Chooses Hopper's statements for one plan of the backward."""

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

    # geometry -------------------------------------------------------------------------------------
    def _buffer(self, item: str) -> Buffer:
        return self.schedule.buffer_of(item)

    def _rows(self, buffer: Buffer) -> int:
        """Rows of a tile in shared memory, those of all consumers together."""
        return buffer.tile[0] * (self.instances if buffer.per else 1)

    def _boxes(self, item: str) -> Boxes:
        """Boxes of a 16-bit tile; over another tile, each row lies where that row lay."""
        buffer = self._buffer(item)
        like = self._boxes(buffer.overlays).width if buffer.overlays else 0
        return Boxes(rows=self._rows(buffer), columns=buffer.tile[1], like=like)

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

    # statements -----------------------------------------------------------------------------------
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
                mask = [self._mask(o, s)] if op.options.get("mask") else []
                return [*mask, call("probabilities", f"acc_{s}", rows, "scale_log2")]
            case "score_gradients":
                probs, rows_of = self._by_space(op)
                rows = self._row_values(rows_of, o, cursors)
                args = (f"acc_{op.updates[0]}", f"acc_{probs}", rows)
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
        """A wait for groups of the role's own unit."""
        unit = unit_name(event.unit.value, role.name)
        return [Pending(unit=unit, groups=event.groups, prev=event.prev)]

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
        """Address of one float32 for each query of the block."""
        return self._at(item, self._slot(item, o, cursors), self._queries())

    def _by_space(self, op: Operation) -> tuple[str, str]:
        """(the item in registers, the item in shared memory) of two that are read."""
        first, second = op.reads
        smem = self._buffer(first).space is Space.SMEM
        return (second, first) if smem else (first, second)

    def _mask(self, o: Occurrence, s: str) -> Call:
        """Drops the keys past the end (and beyond the diagonal); loops without it are derived."""
        left = f"seqlen_k - n_tile * {self._keys()}"
        args: tuple[str, ...] = (f"acc_{s}", "coord", left)
        function = "mask_keys"
        if self.schedule.causal:
            # query r sees key c up to c = r + seqlen_k - seqlen_q
            start = f"{query_block(o)} * {self._queries()}"
            diagonal = f"n_tile * {self._keys()} - {start} - (seqlen_k - seqlen_q)"
            function, args = "mask_keys_causal", (*args, diagonal)
        return Call(
            operation=o.operation.name,
            function=function,
            args=args,
            piece="mask",
            span=o.span,
            prev=o.prev,
        )

    def _load(self, event: OpEvent, cursors: Cursors) -> TmaLoad:
        o = event.occurrence
        item = o.operation.writes[0]
        (signal,) = event.signals
        boxes, slot = self._boxes(item), self._slot(item, o, cursors)
        base = self._at(item, slot, boxes.tile_bytes // 2)
        row, head = f"n_tile * {self._keys()}", "head_kv"
        if o.level == "block":
            row, head = f"{query_block(o)} * {boxes.rows}", "head"
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
        slot = self._slot(item, o, cursors)
        return BulkLoad(
            operation=o.operation.name,
            on=Slot(barrier=signal.barrier, instance=signal.instance, slot=slot),
            tx_bytes=self.tx_bytes(o),
            smem=self._at(item, slot, self._queries()),
            source=f"row_address({item}_rows, batch, head, {query_block(o)} * {self._queries()})",
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

    def _result(self, op: Operation) -> str:
        return (op.writes or op.updates)[0]

    def _in_registers(self, item: str) -> bool:
        return self._buffer(item).space is Space.RMEM

    def _sum(self, op: Operation) -> int:
        """Elements that a product sums over, whole steps of the instruction."""
        a = self._buffer(op.a or "")
        if "a" in op.transposed:
            return self._rows(a) if op.options.get("sums_over") else a.tile[0]
        return padded(a.tile[1])

    def _share(self, o: Occurrence, cursors: Cursors, call: "_Maker") -> Call:
        (item,) = o.operation.writes
        boxes, slot = self._boxes(item), self._slot(item, o, cursors)
        home = self._at(item, slot, boxes.tile_bytes // 2)
        row = f"own * {self._buffer(item).tile[0]} + warp_in_role * 16"
        args = (home, str(boxes.rows), row, str(boxes.columns), str(boxes.width))
        return call("share_tile", f"frag_{o.operation.reads[0]}", *args)

    def _own_row(self, item: str) -> str:
        return f"own * {self._buffer(item).tile[0]} + lane_row"

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
        args = (scale, self.dtype, f"raw_{self._home(item)}", str(boxes.rows), self._own_row(item))
        widths = (str(padded(boxes.columns)), str(boxes.width))
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
            return [store]
        return [NamedSync(on=Slot(barrier=join_name(op.role), instance=OWN), span=o.span), store]

    def _gradient(self, op: Operation) -> str:
        """The tensor that a tile goes to has the name of the accumulator that it was made of."""
        made = next(o for o in self.schedule.operations if set(o.writes) & set(op.reads))
        return made.reads[0]

    def _gradients(self, op: Operation) -> tuple[Box, ...]:
        (item,) = op.reads
        boxes, rows = self._boxes(item), self._buffer(item).tile[0]
        row = f"n_tile * {self._keys()} + own * {rows}"
        return tuple(
            Box(
                smem=f"raw_{self._home(item)} + {n * boxes.elements} + own * {rows * boxes.width}",
                coords=(str(n * boxes.width), row, "head_kv", "batch"),
            )
            for n in range(boxes.count)
        )

    def _added(self, o: Occurrence) -> tuple[Box, ...]:
        """Boxes of one consumer's part of dQ: its rows, or its columns."""
        (item,) = o.operation.reads
        boxes, own = self._sums(item), int(str(o.instance))
        row = f"{query_block(o)} * {self._queries()}"
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

    # declarations ---------------------------------------------------------------------------------
    def joins(self) -> dict[str, str]:
        """Roles whose warps must meet before one of them stores what all have written."""
        return {
            join_name(o.role): o.role
            for o in self.schedule.operations
            if o.kind == "tma_store" and self.schedule.role(o.role).warps > 1
        }

    def _products(self) -> tuple[Operation, ...]:
        return tuple(o for o in self.schedule.operations if o.kind == "wgmma")

    def setup(self, role: Role) -> tuple[Define, ...]:
        """What a role computes once, inside its branch (a value kept across roles is spilled)."""
        if not role.per:
            return ()
        first = self.plan.first_warp[role.name]
        out = [
            ("tid", f"cute.arch.thread_idx()[0] - {32 * first}"),
            ("own", f"(warp >> 2) - {first // 4}"),
            ("warp_in_role", "warp % 4"),
            ("lane_row", "warp_in_role * 16 + cute.arch.lane_idx() // 4"),
        ]
        for op in self._products():
            out += self._operands(op)
        for o in self.schedule.operations:
            if o.kind == "convert":
                shape = f"as_a_operand(acc_{o.reads[0]}).layout.shape"
                made = f"cute.make_rmem_tensor({shape}, {self.dtype})"
                out.append((f"frag_{o.writes[0]}", made))
            elif o.kind == "probabilities":
                score = next(p for p in self._products() if p.writes == o.updates)
                shape = f"({self._keys()}, {self._queries()})"
                made = f"thr_{score.name}.partition_C(cute.make_identity_tensor({shape}))"
                out.append(("coord", made))
        return tuple(Define(name=a, text=b) for a, b in out)

    def _operands(self, op: Operation) -> list[tuple[str, str]]:
        """This thread's slice of a product, its operands and its accumulator."""
        mma, thr, result = f"mma_{op.name}", f"thr_{op.name}", self._result(op)
        out = [(thr, f"{mma}.get_slice(tid)")]
        a, b = op.a or "", op.b or ""
        if not self._in_registers(a):
            tile = self._tile(a, "a" in op.transposed)
            out.append((f"a_{op.name}", f"{mma}.make_fragment_A({thr}.partition_A({tile}))"))
        tile = self._tile(b, "b" not in op.transposed)
        out.append((f"b_{op.name}", f"{mma}.make_fragment_B({thr}.partition_B({tile}))"))
        rows, columns = self._shape(op)
        made = f"cute.make_rmem_tensor({mma}.partition_shape_C(({rows}, {columns})), Float32)"
        return [*out, (f"acc_{result}", made)]

    def _tile(self, item: str, turned: bool) -> str:
        return f"s_{item}_turned" if turned else f"s_{item}"

    def _shape(self, op: Operation) -> tuple[int, int]:
        """Rows and columns of a product of all consumers together."""
        rows, columns = self._buffer(self._result(op)).tile
        if self._columns_split(op):
            return rows, columns * self.instances
        return rows * self.instances, padded(columns)

    def _columns_split(self, op: Operation) -> bool:
        return bool(op.options.get("sums_over")) and not self._by_rows(self._result(op))

    def tile(self, role: Role) -> tuple[Define, ...]:
        """Values of one work tile, computed where they are used."""
        keys, rows = self._keys(), self._queries()
        key = f"n_tile * {keys}"
        first = f"first_query_block(seqlen_q, seqlen_k, {key}, {rows})"
        out = [
            ("first_block", first if self.schedule.causal else "Int32(0)"),
            ("n_blocks", f"(seqlen_q + {rows - 1}) // {rows} - first_block"),
        ]
        if role.per:
            masked = f"cutlass.select_({key} + {keys} > seqlen_k, n_blocks, Int32(0))"
            if self.schedule.causal:
                lengths = f"seqlen_q, seqlen_k, {key}, {keys}, first_block, n_blocks, {rows}"
                masked = f"masked_query_blocks({lengths})"
            out.append(("n_masked", masked))
        return tuple(Define(name=a, text=b) for a, b in out)

    def end(self, _role: Role) -> tuple[Stmt, ...]:
        """At the end of the kernel: nothing is under way."""
        return ()

    def repeat(self, role: Role) -> Repeat | None:
        """The query heads that share the keys, one after the other: dK and dV sum over them."""
        if not self.schedule.steps_of(role.name).block:
            return None
        head = Define(name="head", text="head_kv * ratio + member")
        return Repeat(name="member", trips="ratio", values=() if role.per else (head,))

    def uniform(self, role: Role) -> bool:
        """Block 0 is like every other block: sums begin with zero."""
        return bool(role.name)

    def begin(self, role: Role) -> tuple[Stmt, ...]:
        """At the start of each tile: dK and dV are zero."""
        if not role.per:
            return ()
        return tuple(
            Call(operation="", function="clear", args=(f"acc_{o.updates[0]}",))
            for o in self._products()
            if o.updates
        )

    def head(self, base: tuple[Define, ...], mbarriers: tuple[tuple[str, str], ...]) -> Head:
        """Shared memory, atoms, tensor maps, launch."""
        s = self.schedule
        mmas = tuple(f"mma_{o.name}" for o in self._products())
        return Head(
            dtype=self.dtype,
            constants=base,
            functions=("preprocess", "postprocess"),
            maps=self._maps(),
            parameters=tuple((m, "cute.TiledMma") for m in mmas),
            arguments=mmas,
            declare=tuple(Define(name=a, text=b) for a, b in self._declare(len(mbarriers))),
            launch=tuple(
                Define(name=f"mma_{o.name}", text=self._tiled_mma(o)) for o in self._products()
            ),
            tiles=key_tile_scheduler(s, self._keys()),
            inputs=(),
            mbarriers=mbarriers,
            head_dim=s.head_dim,
            head_dim_v=s.head_dim_v,
            title="attention backward",
            template="backward.j2",
        )

    def _declare(self, mbarriers: int) -> list[tuple[str, str]]:
        """Shared memory: rows and sums first, then the swizzled tiles, then their views."""
        out = [
            ("smem", "cutlass.memory.SmemAllocator()"),
            ("mbar_array", f"smem.allocate_array(Int64, {mbarriers})"),
            ("mbar", "mbar_array.raw_ptr()"),
        ]
        own = [b for b in self.schedule.buffers if b.space is Space.SMEM and not b.overlays]
        views: list[tuple[str, str]] = []
        for b in sorted(own, key=lambda b: b.dtype == "io"):
            if b.dtype != "io":
                count = self._sum_room(b)
                aligned = 1024 if self._is_sum(b) else 128
                made = f"smem.allocate_array(Float32, {count}, byte_alignment={aligned})"
                out.append((f"s_{b.name}", made))
                views.append((f"raw_{b.name}", f"s_{b.name}.raw_ptr()"))
                continue
            boxes = self._boxes(b.name)
            stages = self.plan.stages[b.name]
            shape = f"({boxes.rows}, {padded(boxes.columns)}, {stages})"
            atom = f"warpgroup.SmemLayoutAtomKind.K_SW{boxes.swizzle}"
            out.append((f"s_{b.name}", f"smem_tile(smem, {self.dtype}, {shape}, {atom})"))
            out += self._room_behind(b)
            views.append((f"raw_{b.name}", f"s_{b.name}.iterator.raw_ptr()"))
            if self._is_turned(b.name):
                turned = f"transposed(s_{b.name}, {padded(boxes.columns)}, {boxes.rows}, {stages})"
                views.append((f"s_{b.name}_turned", turned))
        return [*out, *views]

    def _is_sum(self, buffer: Buffer) -> bool:
        return buffer.tile[0] > 1

    def _sum_room(self, buffer: Buffer) -> int:
        """Elements of a float32 buffer."""
        sums = self._is_sum(buffer)
        one = self._sums(buffer.name).tile_bytes // 4 if sums else buffer.tile[-1]
        return one * (self.instances if buffer.per else 1) * self.plan.stages[buffer.name]

    def _room_behind(self, buffer: Buffer) -> list[tuple[str, str]]:
        """A gradient takes the place of its operand; where it is wider, there is room behind."""
        over = [b for b in self.schedule.buffers if b.overlays == buffer.name]
        most = max((self._boxes(b.name).tile_bytes for b in over), default=0)
        missing = most - self._boxes(buffer.name).tile_bytes
        if missing <= 0:
            return []
        return [(f"{buffer.name}_room", f"smem.allocate_array(Int8, {missing})")]

    def _is_turned(self, item: str) -> bool:
        return any(
            (o.a == item and "a" in o.transposed) or (o.b == item and "b" not in o.transposed)
            for o in self._products()
        )

    def _maps(self) -> tuple[TensorMap, ...]:
        loads = [o.writes[0] for o in self.schedule.operations if o.kind == "tma_load"]
        maps = [_tensor_map(i, self._boxes(i)) for i in loads]
        for o in self.schedule.operations:
            if o.kind == "tma_store":
                rows = self._buffer(o.reads[0]).tile[0]
                maps.append(
                    _tensor_map(self._gradient(o), replace(self._boxes(o.reads[0]), rows=rows))
                )
            elif o.kind == "tma_reduce":
                maps.append(_tensor_map("dq_sum", self._sums(o.reads[0])))
        return tuple(maps)

    def _tiled_mma(self, op: Operation) -> str:
        a_major = "MN" if "a" in op.transposed else "K"
        b_major = "K" if "b" in op.transposed else "MN"
        source = "RMEM" if self._in_registers(op.a or "") else "SMEM"
        split = self._columns_split(op)
        groups = f"(1, {self.instances})" if split else f"({self.instances}, 1)"
        columns = padded(self._buffer(self._result(op)).tile[1])
        majors = f"OperandMajorMode.{a_major}, OperandMajorMode.{b_major}"
        return (
            f"tiled_product({self.dtype}, {groups}, {columns}, {majors}, "
            f"warpgroup.OperandSource.{source})"
        )


class _Maker(Protocol):
    """Makes a call of the operation at hand."""

    def __call__(self, function: str, *args: str) -> Call: ...


def _tensor_map(tensor: str, boxes: Boxes) -> TensorMap:
    return TensorMap(
        name=f"tma_{tensor}",
        tensor=tensor,
        rows=boxes.rows,
        cols=boxes.width,
        swizzle=boxes.swizzle,
    )
