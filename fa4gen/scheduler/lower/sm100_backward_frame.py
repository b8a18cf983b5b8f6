"""What stands round the roles of Blackwell's backward: values of a role and of a tile, shared
memory, descriptors, tensor maps."""

from dataclasses import dataclass

from fa4gen.ir.features import inputs
from fa4gen.ir.geometry import SUM_COLUMNS, Boxes
from fa4gen.ir.head import Head, TensorMap
from fa4gen.ir.program import Call, Define, Repeat, Stmt
from fa4gen.ir.schedule import Operation, Role

from .blocks import QUERY_LIST, limit, limits
from .modifiers import captured
from .query_blocks import masked, of_head, visited, visited_by_heads
from .scores import tile_values
from .sm100 import ALL_COLUMNS
from .sm100_backward_tiles import Sm100BackwardTiles
from .tiles import key_tile_scheduler
from .umma import SmemOperand

NEVER = 0x3FFFFFFF
WARP_ROWS = 32  # rows of an accumulator that a warp adds to global memory by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Sm100BackwardFrame(Sm100BackwardTiles):
    """Declarations of one plan."""

    def joins(self) -> dict[str, str]:
        """Roles whose warps must meet before one of them stores what all have written."""
        return {
            f"{o.role}_join": o.role
            for o in self.schedule.operations
            if o.kind == "tma_store" and self.schedule.role(o.role).warps > 1
        }

    def uniform(self, role: Role) -> bool:
        """Block 0 is like every other block, but for the tensor core, which runs ahead."""
        return "umma" not in self._kinds(role)

    def begin(self, role: Role) -> tuple[Stmt, ...]:
        """At the start of each tile: nothing that the tile's values do not say."""
        del role
        return ()

    def end(self, role: Role) -> tuple[Stmt, ...]:
        """At the end of the kernel: what is added to global memory has left shared memory."""
        if "reduce_tile" not in self._kinds(role):
            return ()
        return (Call(operation="", function="finish_sums", span=role.span),)

    def setup(self, role: Role) -> tuple[Define, ...]:
        """What a role computes once, inside its branch (a value kept across roles is spilled)."""
        out: list[tuple[str, str]] = []
        if role.warps >= 4:
            out += [("lanes", "(warp % 4) * (32 << 16)"), ("warp_in_role", "warp % 4")]
        if role.per:
            out.append(("row", "cute.arch.thread_idx()[0] % 128"))
            out.append(("own", f"(warp >> 2) - {self.plan.first_warp[role.name] // 4}"))
        for op in (o for o in self._of(role) if o.kind == "umma"):
            out += self._descriptors(op)
        return tuple(Define(name=a, text=b) for a, b in dict(out).items())

    def _descriptors(self, op: Operation) -> list[tuple[str, str]]:
        """Matrix descriptors of a product's operands, and its instruction descriptor."""
        operands = [self._operand(op, side) for side in ("a", "b")]
        out = [(x.descriptor, x.definition) for x in operands if isinstance(x, SmemOperand)]
        down = {
            s: isinstance(x, SmemOperand) and x.down for s, x in zip("ab", operands, strict=True)
        }
        result = (op.writes or op.updates)[0]
        majors = "".join(f", {side}_major=1" for side in "ab" if down[side])
        types = f"c_dtype=Float32, a_dtype={self.dtype}, b_dtype={self.dtype}"
        shape = f"n_dim={self._all_columns(result)}, m_dim={self._buffer(result).tile[0]}"
        return [*out, (f"idesc_{op.name}", f"p.Tcgen05InstrDesc.build({types}, {shape}{majors})")]

    def tile(self, role: Role) -> tuple[Define, ...]:
        """Values of one work tile, computed where they are used."""
        keys, rows = self._keys(), self._queries()
        if not self.uniform(role):  # the tensor core sees the blocks of all heads as one list
            return visited_by_heads(self.schedule, keys, rows)
        found = visited(self.schedule, keys, rows)
        if "probabilities" not in self._kinds(role):
            return found
        return (*found, *masked(self.schedule, keys, rows), *self._seen_by())

    def _seen_by(self) -> tuple[Define, ...]:
        """From (and to) which query this thread's key is seen; a key that does not exist, from one
        on that no block reaches."""
        if self.schedule.over == QUERY_LIST:
            return ()
        key = f"n_tile * {self._keys()} + row"
        place, seen_from = f"{key} + seqlen_q - seqlen_k", "Int32(0)"
        if "window" in self.schedule.features:
            seen_from = f"{place} - window_right"
        elif self.schedule.causal:
            seen_from = place
        out = [("seen_from", f"cutlass.select_({key} < seqlen_k, {seen_from}, Int32({NEVER}))")]
        if "window" in self.schedule.features:
            out.append(("seen_to", f"{place} + window_left"))
        return tuple(Define(name=a, text=b) for a, b in out)

    def repeat(self, role: Role) -> Repeat | None:
        """The query heads that share the keys, one after the other: dK and dV sum over them."""
        if not self.uniform(role):
            return None
        loads = bool({"tma_load", "reduce_tile"} & self._kinds(role))
        masks = "probabilities" in self._kinds(role)
        values = of_head(self.schedule, loads=loads, masks=masks)
        if masks:
            values += tile_values(self.schedule, ("head",))
        if masks and self.schedule.over == QUERY_LIST:
            exists = f"n_tile * {self._keys()} + row < {limit(self.schedule)}"
            text = f"cutlass.select_({exists}, Int32(0), Int32({NEVER}))"
            values = (*values, Define(name="seen_from", text=text))
        return Repeat(name="member", trips="ratio", values=values)

    def head(self, base: tuple[Define, ...], mbarriers: tuple[tuple[str, str], ...]) -> Head:
        """Shared memory, tensor maps, launch."""
        s = self.schedule
        product = next(o for o in s.operations if o.kind == "umma")
        return Head(
            dtype=self.dtype,
            constants=base,
            functions=("preprocess", "postprocess"),
            maps=self._maps(),
            parameters=(),
            arguments=(),
            declare=tuple(Define(name=a, text=b) for a, b in self._declare(len(mbarriers))),
            launch=(),
            tiles=key_tile_scheduler(s, self._keys()),
            inputs=(*inputs(s.features), *captured(s)),
            first=limits(s),
            modifiers=s.modifiers,
            mbarriers=mbarriers,
            tmem_columns=ALL_COLUMNS,
            alloc_warp=self.plan.first_warp[product.role],
            head_dim=s.head_dim,
            head_dim_v=s.head_dim_v,
            template="backward.j2",
            title="attention backward",
        )

    def _declare(self, mbarriers: int) -> list[tuple[str, str]]:
        """Shared memory: barriers and rows first, then the swizzled tiles."""
        space = "space=cutlass.AddressSpace.smem"
        out = [
            ("mbar_array", f"cutlass.Array(Int64, {mbarriers}, {space})"),
            ("tmem_address", f"cutlass.Array(Int32, 1, {space})"),
        ]
        for placed in self.plan.smem:
            wide = self._buffer(placed.buffer).dtype != "io"
            kind, size = ("Float32", 4) if wide else (self.dtype, 2)
            made = f"cutlass.Array({kind}, {placed.total_bytes // size}, {space}"
            out.append((f"{placed.buffer}_array", f"{made}, alignment={placed.alignment})"))
        out.append(("mbar", "mbar_array.data_ptr()"))
        out += [(f"raw_{p.buffer}", f"{p.buffer}_array.data_ptr()") for p in self.plan.smem]
        return out

    def _maps(self) -> tuple[TensorMap, ...]:
        made = []
        for o in self.schedule.operations:
            match o.kind:
                case "tma_load":
                    made.append(_tensor_map(o.writes[0], self._boxes(o.writes[0])))
                case "tma_store":
                    made.append(_tensor_map(self._gradient(o), self._boxes(o.reads[0])))
                case "reduce_tile":
                    sums = Boxes(rows=WARP_ROWS, columns=SUM_COLUMNS, bits=32)
                    made.append(_tensor_map("dq_sum", sums))
        return tuple(made)


def _tensor_map(tensor: str, boxes: Boxes) -> TensorMap:
    return TensorMap(
        name=f"tma_{tensor}",
        tensor=tensor,
        rows=boxes.rows,
        cols=boxes.width,
        swizzle=boxes.swizzle,
    )
