"""The library of operation kinds: which unit does it, what it may touch, and its place in the
algorithm.

`rank` is the specification: within one block (or tile), accesses to a slot must happen in the order
of ranks whenever one of two is a write. It is a property of the algorithm, not of any schedule, and
the only thing that says what a hazard is (Theory: accesses carry (buffer, version, rank)).
"""

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Unit(StrEnum):
    """Who does the work once a role has issued it; `WARP` is the role itself."""

    WARP = "warp"
    TMA_LOAD = "tma_load"  # loads complete in no order
    TENSOR = "tensor"  # tcgen05: one in-order pipe a CTA
    WGMMA = "wgmma"  # a warpgroup's groups, waited for by count
    TMA_STORE = "tma_store"  # bulk groups, waited for by count


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Facts of one operation kind.

    `reads`/`writes`/`updates` bound the number of buffers (least, most); `options` name the YAML
    keys beside them; `level` is 'tile' where it may stand only outside the block loop, 'block' only
    inside, '' anywhere. `targets` empty: every target.
    """

    name: str
    unit: Unit
    rank: int
    level: str = ""
    reads: tuple[int, int] = (0, 0)
    writes: tuple[int, int] = (0, 0)
    updates: tuple[int, int] = (0, 0)
    product: bool = False  # has operands a and b
    options: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    internal: bool = False  # written by the compiler, not by authors
    doc: str = ""


BLACKWELL = ("sm_100a", "sm_103a")
HOPPER = ("sm_90a",)
ACCUMULATE_RANK = 8  # a product with a computed operand, unlike one of two loaded tiles

KINDS = MappingProxyType(
    {
        k.name: k
        for k in (
            Kind(
                name="tma_load",
                unit=Unit.TMA_LOAD,
                rank=0,
                writes=(1, 1),
                doc="one tile from global to shared memory; rows past the end become zero",
            ),
            Kind(
                name="bulk_load",
                unit=Unit.TMA_LOAD,
                rank=0,
                writes=(1, 1),
                doc="one float32 for each row of a block, from global to shared memory",
            ),
            Kind(
                name="umma",
                unit=Unit.TENSOR,
                rank=1,
                level="block",
                product=True,
                writes=(0, 1),
                updates=(0, 1),
                options=("spans",),
                targets=BLACKWELL,
                doc="tcgen05.mma: writes (fresh) or updates (accumulates) a tensor memory tile",
            ),
            Kind(
                name="wgmma",
                unit=Unit.WGMMA,
                rank=1,
                level="block",
                product=True,
                writes=(0, 1),
                updates=(0, 1),
                options=("sums_over", "spans"),
                targets=HOPPER,
                doc="wgmma of one warpgroup: writes or updates an accumulator in registers",
            ),
            Kind(
                name="row_max",
                unit=Unit.WARP,
                rank=2,
                level="block",
                reads=(1, 1),
                options=("score", "mask"),
                targets=BLACKWELL,
                doc="reads a row of S from tensor memory, changes and masks it; its maximum",
            ),
            Kind(
                name="online_softmax",
                unit=Unit.WARP,
                rank=2,
                level="block",
                updates=(1, 1),
                options=("score", "mask"),
                targets=HOPPER,
                doc="changes and masks S, updates maximum and sum, replaces S by its exponentials",
            ),
            Kind(
                name="probabilities",
                unit=Unit.WARP,
                rank=2,
                level="block",
                reads=(1, 2),
                writes=(0, 1),
                updates=(0, 1),
                options=("score", "mask"),
                doc="changes and masks S, and replaces it by exp2(S - LSE), the probabilities of "
                "the forward; or reads it, and writes them rounded",
            ),
            Kind(
                name="score_gradients",
                unit=Unit.WARP,
                rank=3,
                level="block",
                reads=(2, 2),
                writes=(0, 2),
                updates=(0, 1),
                doc="replaces dP by dS = P (dP - delta), times the derivative of what "
                "`probabilities` does to scores; reads P and delta; or writes dS rounded, with P "
                "in registers",
            ),
            Kind(
                name="rescale_factor",
                unit=Unit.WARP,
                rank=3,
                level="block",
                writes=(0, 1),
                options=("threshold",),
                targets=BLACKWELL,
                doc="decides whether the maximum moves; the factor of O goes to `writes`",
            ),
            Kind(
                name="read_scale",
                unit=Unit.WARP,
                rank=4,
                level="block",
                reads=(1, 1),
                options=("first",),
                targets=BLACKWELL,
                doc="reads the factor of O that another role wrote",
            ),
            Kind(
                name="scale_rows",
                unit=Unit.WARP,
                rank=5,
                level="block",
                updates=(1, 1),
                options=("first", "skip_when_unchanged"),
                doc="multiplies the rows of O by their factor; `first: none`: O is still empty",
            ),
            Kind(
                name="exp2_convert",
                unit=Unit.WARP,
                rank=6,
                level="block",
                writes=(1, 1),
                options=("mix",),
                targets=BLACKWELL,
                doc="exponentials of a row, rounded and stored as P, part by part",
            ),
            Kind(
                name="convert",
                unit=Unit.WARP,
                rank=6,
                level="block",
                reads=(1, 1),
                writes=(1, 1),
                targets=HOPPER,
                doc="rounds an accumulator into an A operand in registers",
            ),
            Kind(
                name="share_tile",
                unit=Unit.WARP,
                rank=7,
                level="block",
                reads=(1, 1),
                writes=(1, 1),
                targets=HOPPER,
                doc="writes a tile from registers into shared memory, where products find it",
            ),
            Kind(
                name="row_sum",
                unit=Unit.WARP,
                rank=6,
                level="block",
                targets=BLACKWELL,
                doc="adds this block's exponentials to the running sum",
            ),
            Kind(
                name="write_stats",
                unit=Unit.WARP,
                rank=9,
                level="tile",
                writes=(1, 1),
                targets=BLACKWELL,
                doc="the row sums and maxima, for the role that normalises",
            ),
            Kind(
                name="stage_sum",
                unit=Unit.WARP,
                rank=10,
                level="block",
                reads=(1, 1),
                writes=(1, 1),
                targets=HOPPER,
                doc="writes an accumulator into shared memory as float32, to be added from there",
            ),
            Kind(
                name="take_sum",
                unit=Unit.WARP,
                rank=10,
                level="block",
                reads=(1, 1),
                targets=BLACKWELL,
                doc="loads an accumulator from tensor memory into registers",
            ),
            Kind(
                name="reduce_tile",
                unit=Unit.WARP,
                rank=11,
                level="block",
                writes=(1, 1),
                targets=BLACKWELL,
                doc="adds it to global memory by way of shared memory, warp by warp",
            ),
            Kind(
                name="tma_reduce",
                unit=Unit.TMA_STORE,
                rank=11,
                level="block",
                reads=(1, 1),
                options=("turns",),
                doc="adds a float32 tile from shared memory to global memory",
            ),
            Kind(
                name="store_gradient",
                unit=Unit.WARP,
                rank=10,
                level="tile",
                reads=(1, 1),
                writes=(1, 1),
                options=("scaled",),
                doc="rounds an accumulator into shared memory; `scaled`: times the softmax's scale",
            ),
            Kind(
                name="normalise_store",
                unit=Unit.WARP,
                rank=10,
                level="tile",
                reads=(1, 2),
                writes=(1, 2),
                options=("sinks",),
                doc="O divided by its row sums into shared memory; the LSE into global memory",
            ),
            Kind(
                name="publish_tile",
                unit=Unit.WARP,
                rank=0,
                level="tile",
                writes=(1, 1),
                internal=True,
                doc="passes on the number of the tile that was claimed",
            ),
            Kind(
                name="read_tile",
                unit=Unit.WARP,
                rank=1,
                level="tile",
                reads=(1, 1),
                internal=True,
                doc="takes the number of the next tile",
            ),
            Kind(
                name="cancel_launch",
                unit=Unit.TMA_LOAD,
                rank=0,
                level="tile",
                writes=(1, 1),
                targets=BLACKWELL,
                internal=True,
                doc="asks the hardware for the tile of a CTA that has not begun, instead of which "
                "this one works on it",
            ),
            Kind(
                name="read_launch",
                unit=Unit.WARP,
                rank=1,
                level="tile",
                reads=(1, 1),
                targets=BLACKWELL,
                internal=True,
                doc="takes the hardware's answer: a place in the grid, or none",
            ),
            Kind(
                name="tma_store",
                unit=Unit.TMA_STORE,
                rank=11,
                level="tile",
                reads=(1, 1),
                doc="one tile from shared to global memory; rows past the end are dropped",
            ),
        )
    }
)


def rank_of(kind: str, *, computed: bool = False, afresh: bool = False) -> int:
    """Place of an operation in the algorithm's order; `computed`: it is a product with an operand
    that nobody loads, which comes after what makes that; `afresh`: and that writes its result (dQ,
    which may lie where the operands of others were)."""
    fact = KINDS[kind]
    return ACCUMULATE_RANK + afresh if fact.product and computed else fact.rank
