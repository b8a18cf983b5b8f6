"""What one SM does in a clock, by target, and whole devices; each number with its source.

Sources: FA4 = arXiv 2603.05451, background section and Table 1; CC = CUDA C++ Programming Guide,
throughput of native arithmetic instructions; WP = NVIDIA's architecture white papers (H100, A100).
What no source states is marked `assumed`: it ranks variants, and proves nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fa4gen.diag import error

SUBPARTITIONS = 4  # WP: schedulers of an SM; a warpgroup has one warp on each
LANES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Work of one SM in one clock, and latencies in clocks."""

    tensor_flop: int  # 16-bit products, multiply and add counted. FA4: from the published peak
    exp2: int  # MUFU results. FA4, CC
    fma: int = 128  # 32-bit floating point operations (a fused one counts once). CC
    alu: int = 64  # integer, compare, convert: results. CC (compare, minimum, maximum)
    shared: int = 32  # lanes of load, store and shuffle. CC
    smem_bytes: int = 128  # FA4
    tmem_bytes: int = 0  # each way; 32 lanes of 4 bytes for each warp of a warpgroup. assumed
    l2_bytes: float = 38.8  # 5120 B a clock (WP, A100; no newer figure) over 132 SMs. assumed
    tma_latency: int = 600  # from issue to arrival, out of the L2 cache. assumed
    matrix_latency: int = 60  # beyond the work itself, until the result can be read. assumed
    signal_latency: int = 40  # from an arrival to the first instruction of who waited. assumed
    shuffle_latency: int = 24  # of a result that crosses lanes. assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A whole GPU. `clock_hz`: while it multiplies matrices, below the boost clock (power)."""

    name: str
    target: str
    sms: int
    clock_hz: float


RATES: Mapping[str, Rates] = MappingProxyType(
    {
        "sm_90a": Rates(tensor_flop=4096, exp2=16),
        "sm_100a": Rates(tensor_flop=8192, exp2=16, tmem_bytes=512),
        "sm_103a": Rates(tensor_flop=8192, exp2=32, tmem_bytes=512),
    }
)

# Clocks: H200, fitted so that head dim 128, full, 16 k takes what it was measured to take (6.7 ms,
# bench/results, 2026-12-01T0322); B200, FA4 (1850 MHz gives the published peak); B300: assumed.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        d.target: d
        for d in (
            Device(name="H200", target="sm_90a", sms=132, clock_hz=1.40e9),
            Device(name="B200", target="sm_100a", sms=148, clock_hz=1.85e9),
            Device(name="B300", target="sm_103a", sms=148, clock_hz=1.85e9),
        )
    }
)


def rates_of(target: str) -> Rates:
    """The rates of a target. Raises Fa4genError FA0215 for one without."""
    if target not in RATES:
        raise error(
            "FA0215", f"no rates are known for `{target}`", fix=f"one of {', '.join(RATES)}"
        )
    return RATES[target]
