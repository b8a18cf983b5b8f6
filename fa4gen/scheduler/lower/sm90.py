"""Hopper: operations as wgmma through CuTe atoms, TMA and mbarriers as primitives."""

from dataclasses import dataclass, replace

from fa4gen.diag import error
from fa4gen.ir.features import inputs
from fa4gen.ir.geometry import STEP, Boxes, padded
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
    Slot,
    Stmt,
    TmaLoad,
    TmaStore,
    Wgmma,
)
from fa4gen.ir.schedule import Operation, Role, Schedule

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
from .tiles import claim, counter, tile_scheduler

Touched = tuple[Access, ...]
DTYPES = {"bf16": "BFloat16", "fp16": "Float16"}
PLACES = ("head_0", "row_0", "head_1", "row_1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90:
    """Chooses Hopper's statements for one plan."""

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
    def _rows(self, item: str) -> int:
        """Rows of an item's tile that one box covers."""
        buffer = self.schedule.buffer_of(item)
        return buffer.tile[0] * (self.instances if buffer.one_load else 1)

    def _boxes(self, item: str) -> Boxes:
        return Boxes(rows=self._rows(item), columns=self.schedule.buffer_of(item).tile[1])

    def _out_boxes(self) -> Boxes:
        """All rows of O of a CTA tile; over Q, each row lies where that row of Q lay."""
        over_q = self._out_home() == self._query()
        return Boxes(
            rows=self.tile_rows(),
            columns=self.schedule.head_dim_v,
            like=self._boxes(self._query()).width if over_q else 0,
        )

    def tx_bytes(self, o: Occurrence) -> int:
        """Bytes that one load brings; rows past the end of the tensor count too."""
        item = o.operation.writes[0]
        return self._boxes(item).tile_bytes

    def tile_rows(self) -> int:
        """Rows of Q in a CTA's tile."""
        return self.schedule.buffer_of(self._query()).tile[0] * self.instances

    def block_keys(self) -> int:
        """Keys of a KV block."""
        return self.schedule.buffer_of(self._product(fresh=True).b or "").tile[0]

    def _queries(self) -> Queries:
        return queries(self.schedule, self.tile_rows() // self.instances)

    def _query(self) -> str:
        return self._product(fresh=True).a or ""

    def _product(self, *, fresh: bool) -> Operation:
        return next(
            o for o in self.schedule.operations if o.kind == "wgmma" and bool(o.writes) == fresh
        )

    # statements -----------------------------------------------------------------------------------
    def operation(self, event: OpEvent, cursors: Cursors) -> list[Stmt]:  # noqa: C901 - a table, one case a kind
        """The statements of one operation."""
        o = event.occurrence
        touched = accesses(self.schedule, self.storage, o)
        name = o.operation.name
        match o.operation.kind:
            case "tma_load":
                return self._load(event, cursors)
            case "wgmma":
                return [self._wgmma(o, touched, cursors)]
            case "online_softmax":
                step = Call(
                    operation=name,
                    results=("scales",),
                    function="online_softmax",
                    args=("acc_s", "m", "total", scale_log2(self.schedule), str(o.head)),
                    accesses=touched,
                    span=o.span,
                    prev=o.prev,
                )
                return [*self._scores(o), *self._mask(o), step]
            case "convert":
                return [self._call(o, "convert", ("acc_s", "p_frag", self.dtype), touched)]
            case "scale_rows":
                if o.head and o.operation.options.get("first") == "none":
                    return []
                return [self._call(o, "rescale", ("acc_o", "scales"), touched)]
            case "normalise_store" if split(self.schedule):
                return self._store_partial(o, touched)
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
        raise error("FA0601", f"`{name}`: sm_90a has no `{o.operation.kind}`", span=o.span)

    def pending(self, event: PendingEvent, role: Role) -> list[Stmt]:
        """A wait for groups of the role's own unit."""
        return [
            Pending(
                unit=unit_name(event.unit.value, role.name), groups=event.groups, prev=event.prev
            )
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

    def _scores(self, o: Occurrence) -> list[Call]:
        place = f"tile_row + {self._left(o)} - seqlen_q"
        alike = {} if self._queries().packed else {"bias_scores": "bias_scores_alike"}
        made = [
            *(("acc_s", alike.get(f, f), a) for f, a in pieces(self.schedule, f"coord, {place}")),
            *(("acc_s, coord", f, a) for f, a in changed(self.schedule, *self._where(o))),
        ]
        return [
            replace(self._call(o, function, (scores, *args), ()), piece="score")
            for scores, function, args in made
        ]

    def _where(self, o: Occurrence) -> tuple[str, str]:
        """First query and key of the scores of a block."""
        return "tile_row", f"{block_index(self.schedule, o)} * {self.block_keys()}"

    def _left(self, o: Occurrence) -> str:
        """How many keys there are from an operation's block on."""
        return f"seqlen_k - {block_index(self.schedule, o)} * {self.block_keys()}"

    def _mask(self, o: Occurrence) -> list[Stmt]:
        """Drops the keys past the end (and beyond the diagonal); loops without it are derived."""
        if not o.operation.options.get("mask"):
            return []
        if self.schedule.over == "block_list":
            return self._listed_mask(o)
        base = self._left(o)
        function = "mask_length"
        args: tuple[str, ...] = ("acc_s", "coord", base)
        if "window" in self.schedule.features:
            function, args = "mask_window", (*args, f"tile_row + {base} - seqlen_q", *WINDOW)
        elif self.schedule.causal:
            function, args = "mask_causal", (*args, f"tile_row + {base} - seqlen_q")
        return [replace(self._call(o, function, args, ()), piece="mask")]

    def _listed_mask(self, o: Occurrence) -> list[Stmt]:
        """Any block may be the last one of the sequence; partial ones have the user's mask."""
        query, key = self._where(o)
        left = f"{limit(self.schedule)} - {key}"
        tail = self._call(o, "mask_tail", ("acc_s", "coord", left, str(self.block_keys())), ())
        made: list[Stmt] = [replace(tail, piece="score")]
        if "mask_mod" in asked(self.schedule, o.operation, "mask"):
            mod = call_of(self.schedule, "mask_mod")
            partial = "n_partial > 0" if o.section == "first" else "True"
            args = ("acc_s", "coord", mod, query, key, partial)
            made.append(replace(self._call(o, "mask_scores", args, ()), piece="mask"))
        return made

    def _load(self, event: OpEvent, cursors: Cursors) -> list[Stmt]:
        o = event.occurrence
        item = o.operation.writes[0]
        (signal,) = event.signals
        ring = self.plan.stages[self.schedule.buffer_of(item).name] > 1
        boxes = self._boxes(item)
        slot = cursors.slot(self.schedule.ring_barrier(item, "empty"), item) if ring else ""
        base = f"raw_{item} + {slot} * {boxes.tile_bytes // 2}" if ring else f"raw_{item}"
        before: tuple[Define, ...] = ()
        lanes = 0
        if o.level == "tile":
            copies, armed = self._query_boxes(item, base)
        else:
            row = f"{block_index(self.schedule, o)} * {self._rows(item)}"
            armed = ""
            keys = key_boxes(self.schedule, item, base, boxes, row, values=item == "v")
            before, copies, lanes = keys.before, keys.boxes, keys.lanes
        load = TmaLoad(
            operation=o.operation.name,
            on=Slot(barrier=signal.barrier, instance=signal.instance, slot=slot if ring else ""),
            tx_bytes=self.tx_bytes(o),
            armed=armed,
            tensor_map=f"tma_{item}",
            boxes=copies,
            lanes=lanes,
            accesses=accesses(self.schedule, self.storage, o),
            span=o.span,
            prev=o.prev,
        )
        return [*(replace(d, span=o.span, prev=o.prev) for d in before), load]

    def _query_boxes(self, item: str, base: str) -> tuple[tuple[Box, ...], str]:
        """The boxes of a CTA's Q, and the bytes that they bring where that is not all of the tile:
        heads are packed for each consumer apart."""
        boxes, at = self._boxes(item), self._queries()
        apart = range(self.instances) if at.packed else range(1)
        copies = tuple(
            Box(
                smem=f"{base} + {n * boxes.elements + own * at.rows * boxes.width}",
                coords=at.coordinates(str(n * boxes.width), at.first(own)),
            )
            for own in apart
            for n in range(boxes.count)
        )
        return copies, at.armed(len(copies) * boxes.width * 2)

    def _wgmma(self, o: Occurrence, touched: Touched, cursors: Cursors) -> Wgmma:
        op = o.operation
        fresh = bool(op.writes)
        b = op.b or ""
        depth = padded(self.schedule.head_dim) if fresh else self.block_keys()
        ring = self.plan.stages[self.schedule.buffer_of(b).name] > 1
        return Wgmma(
            operation=op.name,
            unit=unit_name("wgmma", op.role),
            mma="mma_qk" if fresh else "mma_pv",
            acc="acc_s" if fresh else "acc_o",
            a="a_q" if fresh else "p_frag",
            b="b_k" if fresh else "b_v",
            b_slot=cursors.slot(self.schedule.ring_barrier(b, "full"), b) if ring else "0",
            k_steps=depth // STEP,
            accumulate=not (fresh or o.head),  # block 0 is the first that O takes
            accesses=touched,
            span=o.span,
            prev=o.prev,
        )

    def _store_o(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        rows = self._out_rows()
        args = (
            "acc_o",
            "m",
            "total",
            scale_log2(self.schedule),
            self.dtype,
            self._out(),
            str(rows),
            self._own_row(),
            str(padded(self.schedule.head_dim_v)),
            str(self._out_boxes().width),
        )
        store = self._call(o, "store_o", args, touched, ("row_lse",))
        _, out, batch = out_of(self.schedule)
        lse = (out, "row_lse[0]", "row_lse[1]", batch)
        write = self._call(o, "write_lse", (*lse, "head", "q_row + lane_row", "seqlen_q"), ())
        before = [*self._join_before(o), *self._sink(o)]
        if not self._queries().packed:
            return [*before, store, write, ProxyFence(span=o.span)]
        write = self._call(o, "write_lse_of", (*lse, *PLACES, "seqlen_q"), ())
        return [*before, store, self._places(o), write, ProxyFence(span=o.span)]

    def _places(self, o: Occurrence) -> Call:
        """Head and query of this lane's two rows; `seqlen_q` or more where there is none."""
        if self._queries().packed:
            args = ("head", "pack", "queries", "by_pack", "q_row", "lane_row", "seqlen_q")
            return self._call(o, "packed_rows", args, (), PLACES)
        return self._call(o, "own_rows", ("head", "q_row + lane_row"), (), PLACES)

    def _store_partial(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        """A split's O and LSE, from the registers to global memory."""
        read = tuple(a for a in touched if not a.write)
        args = ("acc_o", "m", "total", scale_log2(self.schedule))
        normalise = self._call(o, "normalise", args, read, ("row_lse",))
        width = str(self.schedule.head_dim_v)
        out, lse, batch = out_of(self.schedule)
        place = (batch, *PLACES, "seqlen_q")
        return [
            normalise,
            self._places(o),
            self._call(o, "store_rows", ("acc_o", out, *place, width), ()),
            self._call(o, "write_lse_of", (lse, "row_lse[0]", "row_lse[1]", *place), ()),
        ]

    def _sink(self, o: Occurrence) -> list[Stmt]:
        if "sinks" not in self.schedule.features:
            return []
        sinks = ", ".join(f"sinks[{head}]" for head in self._row_heads())
        args = ("acc_o", "m", "total", f"({sinks})", scale_log2(self.schedule))
        return [self._call(o, "join_sinks", args, ())]

    def _join_before(self, o: Occurrence) -> list[Stmt]:
        """Only one warp waits for the bulk store of the tile before: the others wait for that
        warp."""
        out = self.schedule.buffer_of(o.operation.writes[0])
        if out.overlays or join_name(o.operation.role) not in self.joins():
            return []
        return [NamedSync(on=Slot(barrier=join_name(o.operation.role), instance=OWN), span=o.span)]

    def _out(self) -> str:
        return f"raw_{self._out_home()}"

    def _out_home(self) -> str:
        out = next(o.writes[0] for o in self.schedule.operations if o.kind == "normalise_store")
        buffer = self.schedule.buffer_of(out)
        return buffer.overlays or buffer.name

    def _out_rows(self) -> int:
        return self.tile_rows()

    def _own_row(self) -> str:
        rows = self.schedule.buffer_of(self._query()).tile[0]
        return f"own * {rows} + lane_row"

    def _tma_store(self, o: Occurrence, touched: Touched) -> list[Stmt]:
        rows = self.schedule.buffer_of(self._query()).tile[0]
        boxes = self._out_boxes()
        join = NamedSync(on=Slot(barrier=join_name(o.operation.role), instance=OWN), span=o.span)
        copies = tuple(
            Box(
                smem=f"{self._out()} + {n * boxes.elements} + own * {rows * boxes.width}",
                coords=self._queries().out_coordinates(
                    str(n * boxes.width), self._queries().first("own")
                ),
            )
            for n in range(boxes.count)
        )
        store = TmaStore(
            operation=o.operation.name,
            unit=unit_name("tma_store", o.operation.role),
            tensor_map="tma_o",
            boxes=copies,
            accesses=touched,
            span=o.span,
        )
        return [join] if split(self.schedule) else [join, store]

    # declarations ---------------------------------------------------------------------------------
    def joins(self) -> dict[str, str]:
        """Roles whose warps must meet before one of them stores what all have written."""
        return {
            join_name(o.role): o.role
            for o in self.schedule.operations
            if o.kind == "tma_store" and self.schedule.role(o.role).warps > 1
        }

    def setup(self, role: Role) -> tuple[Define, ...]:
        """What a role computes once, inside its branch (a value kept across roles is spilled)."""
        if not role.per:
            return ()
        first = self.plan.first_warp[role.name]
        n, dv = self.block_keys(), padded(self.schedule.head_dim_v)
        rows = self.tile_rows()
        return tuple(
            Define(name=a, text=b)
            for a, b in (
                ("tid", f"cute.arch.thread_idx()[0] - {32 * first}"),
                ("own", f"(warp >> 2) - {first // 4}"),
                ("warp_in_role", "warp % 4"),
                ("lane_row", "warp_in_role * 16 + cute.arch.lane_idx() // 4"),
                ("thr_qk", "mma_qk.get_slice(tid)"),
                ("thr_pv", "mma_pv.get_slice(tid)"),
                ("a_q", "mma_qk.make_fragment_A(thr_qk.partition_A(s_q))"),
                ("b_k", "mma_qk.make_fragment_B(thr_qk.partition_B(s_k))"),
                ("b_v", "mma_pv.make_fragment_B(thr_pv.partition_B(s_vt))"),
                (
                    "acc_s",
                    f"cute.make_rmem_tensor(mma_qk.partition_shape_C(({rows}, {n})), Float32)",
                ),
                (
                    "acc_o",
                    f"cute.make_rmem_tensor(mma_pv.partition_shape_C(({rows}, {dv})), Float32)",
                ),
                (
                    "p_frag",
                    f"cute.make_rmem_tensor(as_a_operand(acc_s).layout.shape, {self.dtype})",
                ),
                *self._coordinates(f"cute.make_identity_tensor(({rows}, {n}))"),
                ("m", "cute.make_rmem_tensor(2, Float32)"),
                ("total", "cute.make_rmem_tensor(2, Float32)"),
            )
        )

    def _coordinates(self, tile: str) -> tuple[tuple[str, str], ...]:
        """Row (of the queries of a CTA's tile) and column of each element of S."""
        places = ("coord", f"thr_qk.partition_C({tile})")
        if not self._queries().packed:
            return (places,)
        return (places, ("coord", "packed_coord(coord, own * queries, lane_row, by_pack)"))

    def tile(self, role: Role) -> tuple[Define, ...]:
        """Values of one work tile, computed where they are used."""
        at, keys = self._queries(), self.block_keys()
        out = [*tile_lengths(self.schedule, at.of_tile), visited(self.schedule, at.of_tile, keys)]
        if not role.per:
            return (*out, Define(name="head_kv", text="head // ratio"), *claim(self.schedule))
        out += [partial(self.schedule)] if split(self.schedule) else []
        out.append(Define(name="tile_row", text=at.first(0)))
        out.append(Define(name="q_row", text=f"tile_row + own * {at.of_instance}"))
        return (
            *out,
            *masked(self.schedule, "q_row", at.of_instance, keys, merged=False),
            *self._heads_of_rows(),
            *tile_values(self.schedule, self._row_heads()),
        )

    def _row_heads(self) -> tuple[str, str]:
        """The query heads of a lane's two rows."""
        return ("heads[0]", "heads[1]") if self._queries().packed else ("head", "head")

    def _heads_of_rows(self) -> tuple[Define, ...]:
        asked = {"alibi", "sinks"} & self.schedule.features
        if not asked or not self._queries().packed:
            return ()
        return (Define(name="heads", text="heads_of_rows(head * pack, lane_row, by_pack)"),)

    def uniform(self, role: Role) -> bool:
        """Whether block 0 is like every other block, so that one loop serves them all."""
        kinds = {
            self.schedule.operation(s.operation).kind
            for s in self.schedule.steps_of(role.name).block
        }
        return "online_softmax" not in kinds

    def begin(self, role: Role) -> tuple[Stmt, ...]:
        """At the start of each tile: O is empty."""
        if not role.per:
            return ()
        return (Call(operation="", function="clear", args=("acc_o",)),)

    def _room_behind_q(self) -> tuple[tuple[str, str], ...]:
        """O takes the place of Q; where it is wider, the allocator leaves room behind Q."""
        q = Boxes(rows=self.tile_rows(), columns=self.schedule.head_dim).tile_bytes
        missing = self._out_boxes().tile_bytes - q
        if self._out_home() != self._query() or missing <= 0:
            return ()
        return (("q_room", f"smem.allocate_array(Int8, {missing})"),)

    def end(self, _role: Role) -> tuple[Stmt, ...]:
        """At the end of the kernel: nothing is under way."""
        return ()

    def repeat(self, _role: Role) -> None:
        """Each block comes once."""

    def head(self, base: tuple[Define, ...], mbarriers: tuple[tuple[str, str], ...]) -> Head:
        """Shared memory, atoms, tensor maps, launch."""
        s = self.schedule
        rows, keys = self.tile_rows(), self.block_keys()
        k_stages = self.plan.stages[s.buffer_of("k").name]
        v_stages = self.plan.stages[s.buffer_of("v").name]
        own, at = rows // self.instances, self._queries()
        declare = (
            ("smem", "cutlass.memory.SmemAllocator()"),
            ("mbar_array", f"smem.allocate_array(Int64, {len(mbarriers)})"),
            ("mbar", "mbar_array.raw_ptr()"),
            *(
                ("next_tile_array", "smem.allocate_tensor(Int32, cute.make_layout(1), 4)")
                for _ in claim(s)
            ),
            ("s_q", _tensor(self.dtype, rows, s.head_dim)),
            *self._room_behind_q(),
            ("s_k", _tensor(self.dtype, keys, s.head_dim, k_stages)),
            ("s_v", _tensor(self.dtype, keys, s.head_dim_v, v_stages)),
            ("s_vt", f"transposed(s_v, {padded(s.head_dim_v)}, {keys}, {v_stages})"),
            *((f"raw_{n}", f"s_{n}.iterator.raw_ptr()") for n in "qkv"),
        )
        behind = 7 + len(claim(s)) + len(self._room_behind_q())
        if self._out_home() not in ("q", "k", "v"):
            declare = (
                *declare[:behind],
                (f"s_{self._out_home()}", _tensor(self.dtype, rows, s.head_dim_v)),
                *declare[behind:],
                (f"raw_{self._out_home()}", f"s_{self._out_home()}.iterator.raw_ptr()"),
            )
        launch = (
            (
                "mma_qk",
                _tiled_mma(self.dtype, self.instances, keys, "K", "SMEM"),
            ),
            (
                "mma_pv",
                _tiled_mma(self.dtype, self.instances, padded(s.head_dim_v), "MN", "RMEM"),
            ),
        )
        return Head(
            dtype=self.dtype,
            constants=base,
            functions=("combine",) if split(s) else (),
            maps=(
                _query_map("q", self._boxes("q"), at),
                *(_key_map(s, i, self._boxes(i), values=i == "v") for i in "kv"),
                *(
                    _out_map(replace(self._out_boxes(), rows=own), at)
                    for _ in (() if split(s) else (1,))
                ),
            ),
            first=(*at.host(), *pages.host(s)),
            parameters=(
                ("mma_qk", "cute.TiledMma"),
                ("mma_pv", "cute.TiledMma"),
                *parameters(s),
                *at.parameters(),
                *pages.parameters(s),
            ),
            arguments=(
                "mma_qk",
                "mma_pv",
                *(name for name, _ in (*parameters(s), *at.parameters(), *pages.parameters(s))),
            ),
            lengths=extents(s),
            batches=batches(s),
            ratio=at.ratio,
            template=FRAME if split(s) else "kernel.j2",
            declare=tuple(Define(name=a, text=b) for a, b in declare),
            launch=(*limits(s), *(Define(name=a, text=b) for a, b in launch)),
            tiles=tile_scheduler(s, at),
            inputs=(*inputs(s.features), *captured(s), *counter(s)),
            modifiers=s.modifiers,
            mbarriers=mbarriers,
            head_dim=s.head_dim,
            head_dim_v=s.head_dim_v,
        )


def unit_name(kind: str, role: str) -> str:
    """Each instance of a role has its own groups."""
    return f"{kind}_{role}"


def join_name(role: str) -> str:
    """The named barrier by which a role's warps meet."""
    return f"{role}_join"


def _tensor(dtype: str, rows: int, columns: int, stages: int = 0) -> str:
    boxes = Boxes(rows=rows, columns=columns)
    shape = f"({rows}, {padded(columns)}, {stages})" if stages else f"({rows}, {padded(columns)})"
    atom = f"warpgroup.SmemLayoutAtomKind.K_SW{boxes.swizzle}"
    return f"smem_tile(smem, {dtype}, {shape}, {atom})"


def _query_map(tensor: str, boxes: Boxes, at: Queries) -> TensorMap:
    made = _tensor_map(tensor, boxes)
    return replace(made, rows=at.rows, packed=True) if at.packed else made


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


def _tiled_mma(dtype: str, warpgroups: int, columns: int, b_major: str, a_source: str) -> str:
    major, source = f"OperandMajorMode.{b_major}", f"warpgroup.OperandSource.{a_source}"
    return f"tiled_mma({dtype}, {warpgroups}, {columns}, {major}, {source})"
