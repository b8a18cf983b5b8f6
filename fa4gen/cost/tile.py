"""The load of each unit for one KV block: clocks of an SM, by the schedule's shapes alone.

A block is a list of matrix products and what passes between them. The published tables (FA4, arXiv
2603.05451: Table 1, and the backward's roofline) count the same way, for tiles of 128.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa4gen.ir.boxes import side_by_side
from fa4gen.ir.geometry import padded
from fa4gen.ir.ops import KINDS, Unit
from fa4gen.ir.schedule import Operation, Schedule, Space
from fa4gen.target import find_target

from .rates import Rates

BYTES = 2  # of an element of Q, K, V, P, O
WORD = 4  # of an element of S and O while they are summed
UNITS = ("tensor core", "MUFU", "FMA", "shared memory", "tensor memory", "L2 cache")
SHARED = ("L2 cache",)  # K and V are brought in once for all query tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One matrix product of a block: M x N x K, and which operands come from shared memory.

    `rows`: M of one instruction, which reads all of B; `halved`: a CTA of a pair reads half of B.
    """

    name: str
    m: int
    n: int
    k: int
    a_smem: bool
    b_smem: bool = True
    rows: int = 128
    halved: bool = False

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    @property
    def operand_bytes(self) -> int:
        """What the tensor core reads from shared memory."""
        b = -(-self.m // self.rows) * self.n * self.b_smem
        return BYTES * self.k * (self.m * self.a_smem + (b // 2 if self.halved else b))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Clocks of each unit for one block, of one instance (query tile) and of the whole CTA.

    `exponentials`: on MUFU alone, as the published table counts them; MUFU has what is left of
    these when the FMA units have taken their share.
    """

    one: Mapping[str, float]
    exponentials: float
    instances: int = 1

    @property
    def all(self) -> dict[str, float]:
        """Of the CTA."""
        return {u: c * (1 if u in SHARED else self.instances) for u, c in self.one.items()}


def products(schedule: Schedule) -> tuple[Product, ...]:
    """The products of one block of one instance, with K and N padded as they are issued."""
    return tuple(_product(schedule, o) for o in schedule.operations if KINDS[o.kind].product)


def _product(schedule: Schedule, op: Operation) -> Product:
    result = schedule.buffer_of((*op.writes, *op.updates)[0])
    a, b = schedule.buffer_of(op.a or ""), schedule.buffer_of(op.b or "")
    summed = a.tile[0] if "a" in op.transposed else a.tile[1]
    beside = "a" not in op.transposed and op.kind == "wgmma" and side_by_side(schedule, a)
    instances = schedule.index.count if op.options.get("sums_over") or beside else 1
    return Product(
        name=op.name,
        m=result.tile[0],
        n=padded(result.tile[1]),
        k=padded(summed) * instances,
        a_smem=a.space is Space.SMEM,
        b_smem=b.space is Space.SMEM,
        rows=find_target(schedule.target).matrix.m,
    )


def fma_share(schedule: Schedule) -> tuple[float, int]:
    """The share of exponentials on the FMA units, and the degree of their polynomial."""
    mix = schedule.params.get("exp2")
    if not isinstance(mix, Mapping):
        return 0.0, 0
    return float(mix.get("fma_share", 0)), int(mix.get("degree", 3))


def tile_load(schedule: Schedule, rates: Rates) -> Load:
    """Clocks of each unit for one block of a schedule, forward or backward."""
    rows, keys = schedule.buffer_of("s").tile
    share, degree = fma_share(schedule)
    found = products(schedule)
    one = {
        **matrix_load(found, rates),
        "MUFU": rows * keys * (1 - share) / rates.exp2,
        "FMA": _fma(schedule, rows, keys, share, degree) / rates.fma,
        "L2 cache": _loaded_bytes(schedule) / rates.l2_bytes,
    }
    one["shared memory"] += _passed_bytes(schedule) / rates.smem_bytes
    if rates.tmem_bytes:
        one["tensor memory"] = _tmem_bytes(rows, keys, found) / rates.tmem_bytes
    return Load(
        one={u: one[u] for u in UNITS if u in one},
        exponentials=rows * keys / rates.exp2,
        instances=schedule.index.count,
    )


def matrix_load(found: Sequence[Product], rates: Rates) -> dict[str, float]:
    """What a list of products asks of the tensor core and of shared memory."""
    return {
        "tensor core": sum(p.flop for p in found) / rates.tensor_flop,
        "shared memory": sum(p.operand_bytes for p in found) / rates.smem_bytes,
    }


def _fma(schedule: Schedule, rows: int, keys: int, share: float, degree: int) -> float:
    """Each score is scaled (one) and summed (one); a polynomial costs its degree and the split into
    whole and fraction (three). O is rescaled where nothing says that it seldom is. In the backward
    a score costs the same two, and its gradient two more."""
    kinds = [o.kind for o in schedule.operations]
    each = 2 + share * (degree + 3) + 2 * kinds.count("score_gradients")
    rescales = [o for o in schedule.operations if o.kind == "scale_rows"]
    seldom = all(o.options.get("skip_when_unchanged") for o in rescales)
    always = 0 if seldom else rows * schedule.head_dim_v
    return rows * keys * each + always


def _loaded_bytes(schedule: Schedule) -> int:
    """What a block brings in: its tiles, each once."""
    found = 0
    for step in (s for steps in schedule.steps for s in steps.block):
        op = schedule.operation(step.operation)
        if KINDS[op.kind].unit is Unit.TMA_LOAD:
            found += sum(_tile_bytes(schedule, item) for item in op.writes)
    return found


def _passed_bytes(schedule: Schedule) -> int:
    """What an instance passes through shared memory: a tile that it shares (written; its products
    count the reading), a sum that is added to memory (written and read)."""
    times = {"share_tile": 1, "stage_sum": 2}
    found = [o for o in schedule.operations if o.kind in times]
    return sum(times[o.kind] * _tile_bytes(schedule, o.writes[0]) for o in found)


def _tile_bytes(schedule: Schedule, item: str) -> int:
    """A tile of an item; where a ring holds several, of the item's own width."""
    buffer = schedule.buffer_of(item)
    widths = {"k": schedule.head_dim, "v": schedule.head_dim_v}
    columns = widths.get(item, buffer.tile[1]) if buffer.ring else buffer.tile[1]
    return buffer.tile[0] * columns * (WORD if buffer.dtype == "f32" else BYTES)


def _tmem_bytes(rows: int, keys: int, found: Sequence[Product]) -> int:
    """The larger way: S written and read, P written and read, O read and written by its product."""
    o = sum(p.m * p.n * WORD for p in found if not p.a_smem)
    return rows * keys * (WORD + BYTES) + o


def backward_products(m: int, n: int, d: int, *, pair: bool = False) -> tuple[Product, ...]:
    """The backward's five products for M queries, N keys, head dim d, as FA4 has them on Blackwell:
    S^T and dP^T from shared memory, dV and dK with P^T and dS^T from tensor memory, dQ with dS from
    shared memory. In a `pair` each CTA reads half of every B."""
    return (
        Product(name="s", m=n, n=m, k=d, a_smem=True, halved=pair),  # K, Q
        Product(name="dp", m=n, n=m, k=d, a_smem=True, halved=pair),  # V, dO
        Product(name="dv", m=n, n=d, k=m, a_smem=False, halved=pair),  # P, dO
        Product(name="dk", m=n, n=d, k=m, a_smem=False, halved=pair),  # dS, Q
        Product(name="dq", m=m, n=d, k=n, a_smem=True, halved=pair),  # dS, K
    )


def backward_load(m: int, n: int, d: int, rates: Rates, *, pair: bool = False) -> Load:
    """FA4's roofline of the backward, clocks of one SM: the products, P again from its scores, dS
    written for dQ, and dQ in 32 bits written and read by the copy that adds it up."""
    found = matrix_load(backward_products(m, n, d, pair=pair), rates)
    passed = BYTES * m * n + 2 * WORD * m * d
    found["shared memory"] += passed / rates.smem_bytes
    exponentials = m * n / rates.exp2
    return Load(one={**found, "MUFU": exponentials}, exponentials=exponentials)
