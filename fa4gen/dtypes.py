"""Element types: one table of names, sizes and spellings in the tools that meet them."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Dtype:
    """`name` as schedules write it; the spellings of torch, the CuTe DSL and PTX."""

    name: str
    bits: int
    torch: str
    cutlass: str
    ptx: str


DTYPES: Mapping[str, Dtype] = MappingProxyType(
    {
        d.name: d
        for d in (
            Dtype(name="bf16", bits=16, torch="bfloat16", cutlass="BFloat16", ptx="bf16"),
            Dtype(name="fp16", bits=16, torch="float16", cutlass="Float16", ptx="f16"),
            Dtype(name="f32", bits=32, torch="float32", cutlass="Float32", ptx="f32"),
        )
    }
)

IO = "io"  # in a schedule: the type of Q, K, V and O, whichever it is built for
IO_DTYPES = ("bf16", "fp16")


def resolve(dtype: str, io: str) -> Dtype:
    """Facts of a buffer's type, where Q, K, V and O are of type `io` (KeyError: unknown name)."""
    return DTYPES[io if dtype == IO else dtype]
