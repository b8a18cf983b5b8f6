"""Blackwell: every operation as primitives, one statement an instruction; tcgen05 and tensor
memory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fa4gen.diag import error
from fa4gen.ir.features import inputs
from fa4gen.ir.geometry import DESCRIPTOR_LAYOUT, STEP, Boxes, padded
from fa4gen.ir.head import Head, TensorMap
from fa4gen.ir.plan import Plan
from fa4gen.ir.program import (
    OWN,
    Access,
    Box,
    Call,
    Define,
    NamedSync,
    Pending,
    ProxyFence,
    Relative,
    Slot,
    Stmt,
    TmaLoad,
    TmaStore,
    TmemWait,
    TryCancel,
    Umma,
)
from fa4gen.ir.schedule import Buffer, Operation, Role, Schedule, Space
from fa4gen.scheduler.tile_ring import ANSWER_BYTES, CLC

from . import pages
from .blocks import WINDOW, block_index, limit, limits, masked, visited
from .cursors import Cursors
from .events import OpEvent, PendingEvent
from .lengths import batches, ended, extents, key_boxes, out_of, partial, tile_lengths
from .modifiers import asked, call_of, captured, changed
from .queries import Queries, queries
from .regions import Storage, accesses
from .scores import parameters, pieces, scale_log2, tile_values
from .sections import Occurrence
from .splits import FRAME, split
from .tiles import PLACE, asked_place, claim, counter, tile_scheduler

ALL_COLUMNS = 512  # a CTA has the SM to itself, so that column 0 is where the allocation begins
DTYPES = {"bf16": "BFloat16", "fp16": "Float16"}
ANSWER = "next_tile_array"
Touched = tuple[Access, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100:
    """Chooses Blackwell's statements for one plan."""

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

    # geometry -------------------------------------------------------------------------------------
    def _product(self, *, fresh: bool) -> Operation:
        return next(
            o for o in self.schedule.operations if o.kind == "umma" and bool(o.writes) == fresh
        )

    def _tile_m(self) -> int:
        return self._buffer_of(self._product(fresh=True).a).tile[0]

    def _queries(self) -> Queries:
        return queries(self.schedule, self._tile_m())

    def tile_rows(self) -> int:
        """Rows of Q in a CTA's tile: one MMA tile for each instance."""
        return self._tile_m() * self.schedule.index.count

    def block_keys(self) -> int:
        """Keys of a KV block."""
        return self._buffer_of(self._product(fresh=True).b).tile[0]

    def _buffer_of(self, item: str | None) -> Buffer:
        return self.schedule.buffer_of(item or "")

    def _boxes(self, item: str | None) -> Boxes:
        tile = self._buffer_of(item).tile
        columns = self._columns_of(item or "")
        return Boxes(rows=tile[0], columns=columns)

    def _out_boxes(self) -> Boxes:
        """One query tile of O; over Q, its boxes are as wide as Q's."""
        out = next(o.writes[0] for o in self.schedule.operations if o.kind == "normalise_store")
        over = self._buffer_of(out).overlays
        like = self._boxes(over).width if over else 0
        return Boxes(rows=self._tile_m(), columns=self.schedule.head_dim_v, like=like)

    def _columns_of(self, item: str) -> int:
        """A ring that K and V share has the wider one's slots; each has its own columns."""
        qk, pv = self._product(fresh=True), self._product(fresh=False)
        if item in (qk.a, qk.b):
            return self.schedule.head_dim
        return self.schedule.head_dim_v if item == pv.b else self._buffer_of(item).tile[1]

    def _home(self, item: str) -> Buffer:
        """The buffer whose shared memory an item uses."""
        buffer = self._buffer_of(item)
        return self._buffer_of(buffer.overlays) if buffer.overlays else buffer

    def _tile_elements(self, item: str) -> int:
        """Pitch of a ring's slots (or of instances): that of its largest tile."""
        name = self._home(item).name
        return next(p.tile_bytes for p in self.plan.smem if p.buffer == name) // 2

    def tx_bytes(self, o: Occurrence) -> int:
        """Bytes that one load brings; rows past the end of the tensor count too."""
        item = o.operation.writes[0]
        if o.operation.kind == "cancel_launch":
            return ANSWER_BYTES
        return self._boxes(item).tile_bytes

    def _column(self, item: str, instance: int | Relative | None) -> str:
        """First tensor memory column of an item's tile, as an expression."""
        columns = self.plan.columns[self._buffer_of(item).name]
        if instance is OWN:
            step = columns[1] - columns[0] if len(columns) > 1 else 0
            return f"{columns[0]} + own * {step}" if step else str(columns[0])
        return str(columns[instance if isinstance(instance, int) else 0])

    # statements -----------------------------------------------------------------------------------
    def operation(self, event: OpEvent, cursors: Cursors) -> list[Stmt]:  # noqa: C901 - a table, one case a kind
        """The statements of one operation."""
        o = event.occurrence
        touched = accesses(self.schedule, self.storage, o)
        match o.operation.kind:
            case "tma_load":
                return self._load(event, touched, cursors)
            case "umma":
                return [self._umma(o, touched, cursors)]
            case "row_max":
                return self._row_max(o, touched)
            case "rescale_factor":
                return self._rescale_factor(o, touched)
            case "exp2_convert":
                return self._exp2(o, touched)
            case "row_sum":
                pairs = " + ".join(f"e{n}" for n in range(self._exp_parts()))
                return [self._call(o, "row_sum", ("total", "factor", pairs), (), ("total",))]
            case "write_stats":
                args = (self._stats(), self._stats_index(o), str(self._tile_m()), "total", "m")
                return [self._call(o, "write_final", args, touched)]
            case "read_scale":
                if _absent(o):
                    return []
                place = (self._stats(), self._stats_index(o))
                return [self._call(o, "read_scale", place, touched, (self._factor(o),))]
            case "scale_rows":
                return [] if _absent(o) else self._scale_rows(o, touched)
            case "normalise_store":
                return self._store_o(o, touched)
            case "tma_store":
                return self._tma_store(o, touched)
            case "publish_tile":
                return [
                    self._call(
                        o, "publish_tile", ("next_tile_array", "claimed"), touched, ("tile",)
                    )
                ]
            case "read_tile":
                return [self._call(o, "read_tile", ("next_tile_array",), touched, ("tile",))]
            case "cancel_launch":
                return [self._ask(event, touched)]
            case "read_launch":
                varlen = self._queries().varlen
                answer = asked_place(self.schedule, f"{ANSWER}[0]", varlen=varlen)
                taken = self._call(o, *answer, touched, PLACE)
                return [taken, ProxyFence(span=o.span)]
        raise error(
            "FA0601",
            f"`{o.operation.name}`: {self.schedule.target} has no `{o.operation.kind}`",
            span=o.span,
        )

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

    def _load(self, event: OpEvent, touched: Touched, cursors: Cursors) -> list[Stmt]:
        o = event.occurrence
        item = o.operation.writes[0]
        (signal,) = event.signals
        buffer = self._buffer_of(item)
        ring = self.plan.stages[buffer.name] > 1
        slot = cursors.slot(self.schedule.ring_barrier(item, "empty"), item) if ring else ""
        base, boxes = f"raw_{buffer.name}", self._boxes(item)
        if ring:
            base += f" + {slot} * {self._tile_elements(item)}"
        if isinstance(o.instance, int) and o.instance:
            base += f" + {o.instance * self._tile_elements(item)}"
        at, armed = self._queries(), ""
        before: tuple[Define, ...] = ()
        lanes = 0
        if o.level == "tile":
            row = at.first(o.instance if isinstance(o.instance, int) else 0)
            armed = at.armed(boxes.count * boxes.width * 2)
            copies = tuple(
                Box(
                    smem=f"{base} + {n * boxes.elements}",
                    coords=at.coordinates(str(n * boxes.width), row),
                )
                for n in range(boxes.count)
            )
        else:
            row = f"{block_index(self.schedule, o)} * {buffer.tile[0]}"
            values = item == self._product(fresh=False).b
            keys = key_boxes(self.schedule, item, base, boxes, row, values=values)
            before, copies, lanes = keys.before, keys.boxes, keys.lanes
        load = TmaLoad(
            operation=o.operation.name,
            on=Slot(barrier=signal.barrier, instance=signal.instance, slot=slot),
            tx_bytes=self.tx_bytes(o),
            armed=armed,
            tensor_map=f"tma_{item}",
            boxes=copies,
            lanes=lanes,
            accesses=touched,
            span=o.span,
            prev=o.prev,
        )
        return [*(replace(d, span=o.span, prev=o.prev) for d in before), load]

    def _ask(self, event: OpEvent, touched: Touched) -> TryCancel:
        """The question for a tile of another CTA, whose answer completes a barrier."""
        (signal,) = event.signals
        return TryCancel(
            operation=event.occurrence.operation.name,
            on=Slot(barrier=signal.barrier, instance=signal.instance),
            tx_bytes=ANSWER_BYTES,
            smem=f"{ANSWER}.data_ptr()",
            accesses=touched,
            span=event.occurrence.span,
        )

    def _umma(self, o: Occurrence, touched: Touched, cursors: Cursors) -> Umma:
        op = o.operation
        fresh = bool(op.writes)
        result = (op.writes or op.updates)[0]
        b = op.b or ""
        slot = ""
        if self.plan.stages[self._buffer_of(b).name] > 1:
            taken = cursors.slot(self.schedule.ring_barrier(b, "full"), b)
            slot = f"{taken} * {self._tile_elements(b) * 2} + "
            ring = self._buffer_of(b).name
            touched = tuple(replace(a, slot=taken) if a.region == ring else a for a in touched)
        if fresh:
            steps = (0, padded(self.schedule.head_dim) // STEP)
            instance = o.instance if isinstance(o.instance, int) else 0
            a_off = str(instance * self._tile_elements(op.a or "") * 2)
            a = f"desc_{op.a}.advance_start_address({a_off} + {_k_major(self._boxes(op.a))})"
            off = _k_major(self._boxes(b))
            keep = "k > 0"
        else:
            first, keys = self._part(self._buffer_of(op.a), o)
            steps = (first // STEP, (first + keys) // STEP)
            column = self._column(op.a or "", o.instance)
            a = f"p.make_tmem_ptr(Int32({column} + {STEP // 2} * k), Float32)"
            off = f"k * {STEP * self._boxes(b).width * 2}"
            keep = f"{_continues(o)} if k == 0 else True"
        return Umma(
            operation=op.name,
            instruction=f"idesc_{op.name}",
            d=f"p.make_tmem_ptr(Int32({self._column(result, o.instance)}), Float32)",
            a=a,
            b=f"desc_{b}.advance_start_address({slot}{off})",
            k_first=steps[0],
            k_end=steps[1],
            keep=keep,
            accesses=touched,
            span=o.span,
            prev=o.prev,
        )

    def _row_max(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        source = o.operation.reads[0]
        load = self._call(
            o,
            "load_row",
            (f"lanes + {self._column(source, o.instance)}", str(self.block_keys())),
            touched,
            ("s",),
        )
        wait = TmemWait(kind="load", span=o.span, prev=o.prev)
        top = self._call(o, "row_max", ("s", "m"), (), ("m_new",))
        return [load, wait, *self._scores(o), *self._mask(o), top]

    def _scores(self, o: Occurrence) -> list[Call]:
        made = pieces(self.schedule, f"q_row + {self._left(o)} - seqlen_q")
        return [
            replace(self._call(o, function, ("s", *args), (), ("s",)), piece="score")
            for function, args in (*made, *changed(self.schedule, *self._where(o)))
        ]

    def _where(self, o: Occurrence) -> tuple[str, str]:
        """The query of a row, and the first key of a block."""
        return "q_row", f"{block_index(self.schedule, o)} * {self.block_keys()}"

    def _left(self, o: Occurrence) -> str:
        """How many keys there are from an operation's block on."""
        return f"seqlen_k - {block_index(self.schedule, o)} * {self.block_keys()}"

    def _mask(self, o: Occurrence) -> list[Stmt]:
        """Drops the keys past the end, beyond the diagonal, outside the window."""
        if not o.operation.options.get("mask"):
            return []
        if self.schedule.over == "block_list":
            return self._listed_mask(o)
        left = self._left(o)
        function = "mask_length"
        args: tuple[str, ...] = ("s", left)
        if "window" in self.schedule.features:
            function, args = "mask_window", (*args, f"q_row + {left} - seqlen_q", *WINDOW)
        elif self.schedule.causal:
            function, args = "mask_causal", (*args, f"q_row + {left} - seqlen_q")
        return [replace(self._call(o, function, args, (), ("s",)), piece="mask")]

    def _listed_mask(self, o: Occurrence) -> list[Stmt]:
        """Any block may be the last one of the sequence; partial ones have the user's mask."""
        query, key = self._where(o)
        left = f"{limit(self.schedule)} - {key}"
        made = [replace(self._call(o, "mask_length", ("s", left), (), ("s",)), piece="score")]
        if "mask_mod" in asked(self.schedule, o.operation, "mask"):
            args = ("s", call_of(self.schedule, "mask_mod"), query, key)
            made.append(replace(self._call(o, "mask_scores", args, (), ("s",)), piece="mask"))
        return list(made)

    def _rescale_factor(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        threshold = str(o.operation.options.get("threshold", 0))
        decide = self._call(
            o,
            "rescale_factor",
            ("m", "m_new", scale_log2(self.schedule), threshold),
            (),
            ("m", "factor", "bias"),
        )
        if not o.operation.writes:
            return [decide]
        return [
            decide,
            self._call(o, "write_scale", (self._stats(), self._stats_index(o), "factor"), touched),
        ]

    def _exp2(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        target = o.operation.writes[0]
        first, keys = self._part(self._buffer_of(target), o)
        share, degree = self._mix(o.operation)
        args = (
            "s",
            scale_log2(self.schedule),
            "bias",
            str(first),
            str(keys),
            str(polynomial_pairs(self.block_keys(), share)),
            str(degree),
            f"lanes + {self._column(target, o.instance)}",
            self.dtype,
        )
        call = self._call(o, "exp2_part", args, touched, (f"e{o.part or 0}",))
        return [call, TmemWait(kind="store", span=o.span, prev=o.prev)]

    def _mix(self, operation: Operation) -> tuple[float, int]:
        mix = operation.options.get("mix")
        if not isinstance(mix, Mapping):
            return 0.0, 3
        return float(mix.get("fma_share", 0.0)), int(mix.get("degree", 3))

    def _part(self, buffer: Buffer, o: Occurrence) -> tuple[int, int]:
        """First key and number of keys of a part of P."""
        if o.part is None:
            return 0, self.block_keys()
        return sum(buffer.parts[: o.part]), buffer.parts[o.part]

    def _exp_parts(self) -> int:
        exp = next(o for o in self.schedule.operations if o.kind == "exp2_convert")
        return max(1, len(self._buffer_of(exp.writes[0]).parts))

    def _scale_rows(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        target = o.operation.updates[0]
        lazy = o.operation.options.get("skip_when_unchanged")
        function = "scale_columns_if_moved" if lazy else "scale_columns"
        args = (
            f"lanes + {self._column(target, o.instance)}",
            self._factor(o),
            str(padded(self.schedule.head_dim_v)),
        )
        return [
            self._call(o, function, args, touched),
            TmemWait(kind="store", span=o.span, prev=o.prev),
        ]

    def _store_o(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        op = o.operation
        source = next(i for i in op.reads if self._buffer_of(i).space is Space.TMEM)
        out = op.writes[0]
        stats = [i for i in op.reads if i != source]
        own = isinstance(o.instance, int)
        total, top = (f"total_{o.instance}", f"m_{o.instance}") if stats and own else ("total", "m")
        made: list[Stmt] = self._join(o) if f"{op.role}_join" in self.joins() else []
        if stats:
            home = self.storage.pieces[self._buffer_of(stats[0]).name, None]
            read = tuple(a for a in touched if a.region in home)
            touched = tuple(a for a in touched if a not in read)
            place = (self._stats(), self._stats_index(o), str(self._tile_m()))
            made.append(self._call(o, "read_final", place, read, (total, top)))
        divisor = total
        if "sinks" in self.schedule.features:
            divisor = f"divisor_{o.instance}" if own else "divisor"
            joined = (total, top, f"sinks[{self._row_head()}]", scale_log2(self.schedule))
            made.append(self._call(o, "join_sink", joined, (), (divisor, total, top)))
        offset = o.instance if own else "own"
        pitch = self._tile_elements(out)
        address = f"lanes + {self._column(source, o.instance)}"
        args = (
            address,
            divisor,
            str(padded(self.schedule.head_dim_v)),
            self.dtype,
            f"raw_{self._home(out).name} + {offset} * {pitch}",
            "row",
            str(self._tile_m()),
            str(self._out_boxes().width),
        )
        at, first = self._queries(), self._queries().first(str(offset))
        place = ("head", f"{first} + row", "seqlen_q")
        if at.packed:  # rows behind the tile's whole queries are none
            end = f"cutlass.min(seqlen_q, {first} + queries)"
            place = (self._row_head(), f"{first} + row_query", end)
        out_o, lse, batch = out_of(self.schedule)
        store = self._call(o, "store_o", args, touched, ())
        if split(self.schedule):
            args = (address, total, out_o, batch, *place, str(self.schedule.head_dim_v))
            read = tuple(a for a in touched if not a.write)
            store = self._call(o, "store_row", args, read, ())
        made.append(replace(store, settled=True))  # it waits for each load of O itself
        args = (lse, total, top, scale_log2(self.schedule), batch, *place)
        made.append(self._call(o, "write_lse", args, ()))
        return [*made, ProxyFence(span=o.span)]

    def _row_head(self) -> str:
        """The query head of a thread's row."""
        return "head * pack + row_head" if self._queries().packed else "head"

    def _tma_store(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        item = o.operation.reads[0]
        offset = o.instance if isinstance(o.instance, int) else "own"
        pitch, boxes = self._tile_elements(item), self._out_boxes()
        base = f"raw_{self._home(item).name} + {offset} * {pitch}"
        at = self._queries()
        store = TmaStore(
            operation=o.operation.name,
            unit=f"tma_store_{o.operation.role}",
            tensor_map="tma_o",
            boxes=tuple(
                Box(
                    smem=f"{base} + {n * boxes.elements}",
                    coords=at.out_coordinates(str(n * boxes.width), at.first(str(offset))),
                )
                for n in range(boxes.count)
            ),
            accesses=touched,
            span=o.span,
        )
        joined = self._join(o) if f"{o.operation.role}_join" in self.joins() else []
        return joined if split(self.schedule) else [*joined, store]

    def _join(self, o: Occurrence) -> list[Stmt]:
        """The role's warps meet: all have written, or the one that stores has waited for its
        store."""
        instance = o.instance if o.instance is OWN else None
        return [
            NamedSync(on=Slot(barrier=f"{o.operation.role}_join", instance=instance), span=o.span)
        ]

    def _stats(self) -> str:
        return "stats_array"

    def _stats_index(self, o: Occurrence) -> str:
        """Each instance has two rows: the factor (then the sum), and the maximum."""
        step = 2 * self._tile_m()
        if isinstance(o.instance, int):
            return f"{o.instance * step} + row"
        return f"own * {step} + row"

    def _factor(self, o: Occurrence) -> str:
        """The factor of O: read from another role, or still in this one's registers."""
        return f"factor_{o.instance}" if isinstance(o.instance, int) else "factor"

    # declarations ---------------------------------------------------------------------------------
    def joins(self) -> dict[str, str]:
        """Roles whose warps must meet before one of them stores what all have written."""
        return {
            f"{o.role}_join": o.role
            for o in self.schedule.operations
            if o.kind == "tma_store" and self.schedule.role(o.role).warps > 1
        }

    def uniform(self, role: Role) -> bool:
        """Whether block 0 is like every other block: a running maximum of -inf makes it so."""
        del role
        return True

    def begin(self, role: Role) -> tuple[Stmt, ...]:
        """At the start of each tile: nothing that the tile's values do not say."""
        del role
        return ()

    def setup(self, role: Role) -> tuple[Define, ...]:
        """What a role computes once, inside its branch (a value kept across roles is spilled)."""
        if role.warps < 4:  # no rows of its own; with several warps, one of them acts for all
            leader = Define(name="warp_in_role", text=f"warp - {self.plan.first_warp[role.name]}")
            return (leader,) if role.warps > 1 else ()
        out = [
            ("row", "cute.arch.thread_idx()[0] % 128"),
            ("lanes", "(warp % 4) * (32 << 16)"),
            ("warp_in_role", "warp % 4"),
        ]
        if self._queries().packed:
            out.append(("row_query, row_head", "divmod(row, by_pack)"))
        if role.per:
            out.append(("own", f"(warp >> 2) - {self.plan.first_warp[role.name] // 4}"))
        return tuple(Define(name=a, text=b) for a, b in out)

    def tile(self, role: Role) -> tuple[Define, ...]:
        """Values of one work tile, computed where they are used."""
        at, keys = self._queries(), self.block_keys()
        kinds = {o.kind for o in self.schedule.operations if o.role == role.name}
        out = [*tile_lengths(self.schedule, at.of_tile), visited(self.schedule, at.of_tile, keys)]
        if "normalise_store" in kinds and split(self.schedule):
            out.append(partial(self.schedule))
        if "tma_load" in kinds:
            out.append(Define(name="head_kv", text="head // ratio"))
            out += claim(self.schedule)
        if "row_max" in kinds:
            out.append(Define(name="m", text="Float32(NEG_INF)"))
            out.append(Define(name="total", text="Float32(0.0)"))
            first, row = at.first("own"), "row_query" if at.packed else "row"
            ends = masked(self.schedule, first, at.of_instance, keys, merged=True)
            values = tile_values(self.schedule, (self._row_head(),))
            if ends or values or "score_mod" in self.schedule.features:
                out += [Define(name="q_row", text=f"{first} + {row}"), *ends, *values]
        return tuple(out)

    def end(self, _role: Role) -> tuple[Stmt, ...]:
        """At the end of the kernel: nothing is under way."""
        return ()

    def repeat(self, _role: Role) -> None:
        """Each block comes once."""

    def head(self, base: tuple[Define, ...], mbarriers: tuple[tuple[str, str], ...]) -> Head:
        """Shared memory, descriptors, tensor maps, launch."""
        s, at = self.schedule, self._queries()
        declare = [
            (
                "mbar_array",
                f"cutlass.Array(Int64, {len(mbarriers)}, space=cutlass.AddressSpace.smem)",
            ),
            ("tmem_address", "cutlass.Array(Int32, 1, space=cutlass.AddressSpace.smem)"),
        ]
        tiles = [p for p in self.plan.smem if p.alignment == 1024]
        for placed in self.plan.smem:
            aligned = ", alignment=1024" if placed in tiles else ""
            kind, size = ("Float32", 4) if placed not in tiles else (self.dtype, 2)
            if placed.buffer == "next_tile":
                kind, size = (
                    ("cutlass.Int128", ANSWER_BYTES) if s.scheduler in CLC else ("Int32", 4)
                )
            count = placed.total_bytes // size
            declare.append(
                (
                    f"{placed.buffer}_array",
                    f"cutlass.Array({kind}, {count}, space=cutlass.AddressSpace.smem{aligned})",
                )
            )
        declare.append(("mbar", "mbar_array.data_ptr()"))
        declare += [(f"raw_{p.buffer}", f"{p.buffer}_array.data_ptr()") for p in tiles]
        qk, pv = self._product(fresh=True), self._product(fresh=False)
        for item in (qk.a, qk.b, pv.b):
            boxes = self._boxes(item)
            leading = boxes.elements * 2 if item == pv.b else STEP  # K-major operands ignore it
            fields = (
                f"{self._buffer_of(item).name}_array",
                f"leading_byte_offset={leading}",
                f"stride_byte_offset={8 * boxes.width * 2}",  # from 8 rows to the next
                f"layout={DESCRIPTOR_LAYOUT[boxes.width]}",
            )
            declare.append((f"desc_{item}", f"p.Tcgen05SmemDesc.build({', '.join(fields)})"))
        rows, value = f"m_dim={self._tile_m()}", padded(s.head_dim_v)
        types = f"c_dtype=Float32, a_dtype={self.dtype}, b_dtype={self.dtype}"
        declare.append(
            (
                f"idesc_{qk.name}",
                f"p.Tcgen05InstrDesc.build({types}, n_dim={self.block_keys()}, {rows})",
            )
        )
        declare.append(
            (
                f"idesc_{pv.name}",
                f"p.Tcgen05InstrDesc.build({types}, n_dim={value}, {rows}, b_major=1)",
            )
        )
        passed = (*parameters(s), *at.parameters(), *pages.parameters(s))
        return Head(
            dtype=self.dtype,
            constants=base,
            functions=("combine",) if split(s) else (),
            maps=(
                _query_map(str(qk.a), self._boxes(qk.a), at),
                *(_key_map(s, str(i), self._boxes(i), values=i == pv.b) for i in (qk.b, pv.b)),
                *(_out_map(self._out_boxes(), at) for _ in (() if split(s) else (1,))),
            ),
            first=(*at.host(), *pages.host(s)),
            parameters=passed,
            arguments=tuple(name for name, _ in passed),
            lengths=extents(s),
            batches=batches(s),
            ratio=at.ratio,
            template=FRAME if split(s) else "kernel.j2",
            declare=tuple(Define(name=a, text=b) for a, b in declare),
            launch=limits(s),
            tiles=tile_scheduler(s, at),
            inputs=(*inputs(s.features), *captured(s), *counter(s)),
            modifiers=s.modifiers,
            mbarriers=mbarriers,
            tmem_columns=ALL_COLUMNS,
            alloc_warp=self.plan.first_warp[qk.role],
            head_dim=s.head_dim,
            head_dim_v=s.head_dim_v,
        )


def _query_map(tensor: str, boxes: Boxes, at: Queries) -> TensorMap:
    return replace(_tensor_map(tensor, boxes), packed=at.packed)


def _key_map(schedule: Schedule, item: str, boxes: Boxes, *, values: bool) -> TensorMap:
    rows = pages.rows_of_box(schedule, boxes.rows)
    return replace(_tensor_map(item, boxes), rows=rows, ends=ended(schedule, values=values))


def _out_map(boxes: Boxes, at: Queries) -> TensorMap:
    return replace(_query_map("o", boxes, at), ends="ending" if at.varlen else "")


def _tensor_map(tensor: str, boxes: Boxes) -> TensorMap:
    return TensorMap(
        name=f"tma_{tensor}",
        tensor=tensor,
        rows=boxes.rows,
        cols=boxes.width,
        swizzle=boxes.swizzle,
    )


def polynomial_pairs(keys: int, share: float) -> tuple[int, ...]:
    """Pairs of a row whose exponentials go to the FMA units: `share` of the keys, evenly spread.

    The last fragment of 32 keys stays with MUFU: its result is waited for soonest.
    """
    count = round(share * keys / 2)
    room = max((keys - 32) // 2, 1)
    if count > room:
        room = keys // 2
    return tuple(n for n in range(room) if (n + 1) * count // room > n * count // room)


def _absent(o: Occurrence) -> bool:
    """Nothing to do at a tile's first block, where O is still empty."""
    return o.head and o.operation.options.get("first") == "none"


def _k_major(boxes: Boxes) -> str:
    """Byte offset of K step `k` in a K-major tile: 32 bytes a step, some steps a box."""
    steps = boxes.width // STEP
    return f"(k // {steps}) * {boxes.elements * 2} + (k % {steps}) * {STEP * 2}"


def _continues(o: Occurrence) -> str:
    """Whether O already holds earlier blocks when this product adds to it."""
    match o.section:
        case "first":
            return "False"
        case "last":
            return "(n_blocks > 1)"
        case _:
            return "(i > 0)" if o.prev or o.uniform else "True"
