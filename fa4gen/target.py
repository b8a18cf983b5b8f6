"""Facts of the GPUs that kernels are built for; each number with its source.

Sources: PTX = PTX ISA 9 (setmaxnreg, tcgen05, wgmma, tensor maps); CC = CUDA C++ Programming Guide,
technical specifications by compute capability.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fa4gen.diag import error


@dataclass(frozen=True, slots=True, kw_only=True)
class MatrixShape:
    """Shapes of one matrix instruction with 16-bit operands: M x N x K, sums in 32 bits."""

    instruction: str
    m: int
    n_step: int
    n_max: int
    k: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One GPU as a compiler sees it; shared memory and registers are those of a CTA on its own."""

    name: str
    matrix: MatrixShape
    tmem_columns: int  # 32 bits x 128 lanes each; 0: the part has no tensor memory
    tmem_min_columns: int = 32  # PTX, tcgen05.alloc: a power of two, 32 … 512
    smem_bytes: int = 232448  # CC: 227 KiB a block may opt in to, 9.0 and 10.x
    smem_alignment: int = 1024  # PTX, swizzling: the 128-byte pattern repeats every 1024 bytes
    registers: int = 65536  # CC: 32-bit registers of an SM
    registers_step: int = 8  # PTX, setmaxnreg: multiples of 8 …
    registers_min: int = 24  # … from 24 …
    registers_max: int = 256  # … to 256
    warpgroup_warps: int = 4  # PTX: four contiguous warps, the first a multiple of four
    warps: int = 16  # with more, a thread starts below 128 registers, too few for any softmax
    named_barriers: int = 16  # PTX, barrier: 0 … 15 of a CTA; 0 is used by all threads together
    box_rows: int = 256  # PTX, tensor maps: elements of a box in one dimension
    # PTX, clusterlaunchcontrol: sm_100 and up; but kernels that use it were reported to hang at
    # their first launch on sm_103 (flashinfer-ai/flashinfer#4533)
    launch_control: bool = False
    box_bytes: int = 128  # PTX, swizzling: inner bytes of a box with the 128-byte swizzle


_UMMA = MatrixShape(instruction="tcgen05.mma", m=128, n_step=16, n_max=256, k=16)  # PTX, kind::f16
_WGMMA = MatrixShape(instruction="wgmma", m=64, n_step=8, n_max=256, k=16)  # PTX, wgmma

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        t.name: t
        for t in (
            Target(name="sm_90a", matrix=_WGMMA, tmem_columns=0),
            Target(name="sm_100a", matrix=_UMMA, tmem_columns=512, launch_control=True),
            Target(name="sm_103a", matrix=_UMMA, tmem_columns=512),
        )
    }
)


def why_not(name: str) -> str:
    """Why a part is no target, in one sentence."""
    number = name.removeprefix("sm_").rstrip("af")
    if number in ("120", "121"):
        return f"{name} has neither tensor memory nor wgmma, which these pipelines are made of"
    if number.isdigit() and int(number) < 90:
        return f"{name} has neither TMA nor wgmma, which these pipelines are made of"
    if f"{name.rstrip('af')}a" in TARGETS:
        return f"{name} lacks the architecture's own instructions: write {name.rstrip('af')}a"
    return f"there are facts for {', '.join(TARGETS)} alone"


def find_target(name: str) -> Target:
    """The target of that name. Raises Fa4genError FA0215 for a part without what schedules need."""
    if name not in TARGETS:
        raise error(
            "FA0215",
            f"`{name}` is no target: {why_not(name)}",
            fix="build for sm_90a, sm_100a or sm_103a",
        )
    return TARGETS[name]
