"""What stands round the roles of Hopper's backward: values of a role and of a tile, shared memory,
atoms, tensor maps."""

from dataclasses import dataclass, replace

from fa4gen.ir.features import inputs
from fa4gen.ir.geometry import Boxes, padded
from fa4gen.ir.head import Head, TensorMap
from fa4gen.ir.program import Call, Define, Repeat, Stmt
from fa4gen.ir.schedule import Buffer, Operation, Role, Space

from .blocks import limits
from .modifiers import captured
from .query_blocks import masked, of_head, visited
from .scores import sloped, tile_values
from .sm90_backward_tiles import Sm90BackwardTiles
from .tiles import key_tile_scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm90BackwardFrame(Sm90BackwardTiles):
    """Declarations of one plan."""

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
                if sloped(self.schedule):
                    shape = f"acc_{o.updates[0]}.layout.shape"
                    out.append(("slope", f"cute.make_rmem_tensor({shape}, Float32)"))
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

    def tile(self, role: Role) -> tuple[Define, ...]:
        """Values of one work tile, computed where they are used."""
        keys, rows = self._keys(), self._queries()
        found = visited(self.schedule, keys, rows)
        return (*found, *(masked(self.schedule, keys, rows) if role.per else ()))

    def end(self, _role: Role) -> tuple[Stmt, ...]:
        """At the end of the kernel: nothing is under way."""
        return ()

    def repeat(self, role: Role) -> Repeat | None:
        """The query heads that share the keys, one after the other: dK and dV sum over them."""
        if not self.schedule.steps_of(role.name).block:
            return None
        per = bool(role.per)
        values = of_head(self.schedule, loads=not per, masks=per)
        values += tile_values(self.schedule, ("head", "head")) if per else ()
        return Repeat(name="member", trips="ratio", values=values)

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
            inputs=(*inputs(s.features), *captured(s)),
            first=limits(s),
            modifiers=s.modifiers,
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


def _tensor_map(tensor: str, boxes: Boxes) -> TensorMap:
    return TensorMap(
        name=f"tma_{tensor}",
        tensor=tensor,
        rows=boxes.rows,
        cols=boxes.width,
        swizzle=boxes.swizzle,
    )
