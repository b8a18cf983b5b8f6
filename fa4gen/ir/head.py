"""What a generated kernel declares before its roles begin, and how it is launched; text by
lowering."""

from dataclasses import dataclass

from fa4gen.ir.expression import UNCHANGED, Modifiers
from fa4gen.ir.inputs import Input
from fa4gen.ir.program import Define


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMap:
    """A TMA descriptor of one global tensor: `rows` x `cols` elements a box, a row a swizzle
    span."""

    name: str  # 'tma_q'
    tensor: str  # 'q'
    rows: int
    cols: int
    swizzle: str  # '128', '64', '32'
    packed: bool = False  # a box holds whole queries of `pack` heads: `pack * queries` rows
    ends: str = ""  # 'ending' (to write), 'ended' (to read): sequences end before the tensor does

    @property
    def text(self) -> str:
        """The call that makes it, in the host function."""
        swizzle = f"cuda.TensorMapSwizzle.s{self.swizzle}b"
        kind = self.ends or "tensor"
        if self.packed:
            kind = f"packed_{self.ends}" if self.ends else "packed"
            return f"{kind}_map({self.tensor}, pack, queries, {self.cols}, {swizzle})"
        return f"{kind}_map({self.tensor}, {self.rows}, {self.cols}, {swizzle})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TileScheduler:
    """How a CTA finds its work: `kind` names the loop that is printed, `rows` of Q are a CTA tile.

    `launch`: values that the host function computes for it; `parameters` and `arguments`: what the
    kernel gets of them; `grid`: an expression of the host function.
    """

    kind: str  # 'single' | 'lpt' | 'static_persistent' | 'lpt_persistent' | 'keys_lpt'
    rows: int
    launch: tuple[Define, ...]
    parameters: tuple[tuple[str, str], ...]
    arguments: tuple[str, ...]
    grid: str
    names: tuple[str, ...] = ("m_block", "head", "batch")  # what a tile is made of
    unit: str = "query rows"  # what its rows are


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """Constants, parameters, shared memory, set-up and launch of one kernel."""

    dtype: str  # name in cutlass: 'BFloat16'
    constants: tuple[Define, ...]
    functions: tuple[str, ...]  # device functions whose text the file carries
    maps: tuple[TensorMap, ...]
    parameters: tuple[tuple[str, str], ...]  # beyond the maps: name, annotation
    arguments: tuple[str, ...]  # what `launch` passes for them
    declare: tuple[Define, ...]  # shared memory, fragments' layouts, descriptors
    launch: tuple[Define, ...]  # in the host function, before the launch
    tiles: TileScheduler
    inputs: tuple[Input, ...]
    mbarriers: tuple[tuple[str, str], ...]  # index expression and count of each mbarrier.init
    modifiers: Modifiers = UNCHANGED  # users' functions, which the file defines
    tmem_columns: int = 0
    alloc_warp: int = 0
    head_dim: int = 128
    head_dim_v: int = 128
    first: tuple[Define, ...] = ()  # in the host function, before the tensor maps
    # of q and k: the kernel's parameter, and what `launch` passes for it
    lengths: tuple[tuple[str, str], ...] = (("seqlen_q", "q.shape[1]"), ("seqlen_k", "k.shape[1]"))
    batches: tuple[str, str] = ("b", "b")  # of q and k, as `launch` is compiled for them
    ratio: str = "q.shape[2] // k.shape[2]"  # the tile scheduler's heads for each of K and V
    title: str = "attention forward"
    template: str = "kernel.j2"  # the frame of the file: host function, kernels beside this one
