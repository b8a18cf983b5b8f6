"""Loading and launching: devices, NVIDIA's runtime library of the DSL, functions of shared objects.

A shared object is called through tvm-ffi, on torch's current stream of the tensors' device.
"""

import ctypes
import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from fa4gen.diag import error
from fa4gen.options import Options
from fa4gen.target import TARGETS, why_not

from .extras import NOTHING, Extras
from .problem import LIMIT

FUNCTION = "fwd"
LIBRARY = "libcute_dsl_runtime.so"
GRID_LIMIT = 65535  # CC: blocks of a grid in its second and third dimension
_ONCE = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a kernel's launch depends on."""

    target: str
    num_sms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A loaded kernel on one device, and its name for people."""

    name: str
    function: Callable[..., Any]
    device: int
    num_sms: int


@functools.cache
def device_of(index: int) -> Device:
    """Facts of a CUDA device by its number. Raises FA0804 for a GPU without kernels."""
    import torch

    properties = torch.cuda.get_device_properties(index)
    number = f"sm_{properties.major}{properties.minor}"
    if f"{number}a" not in TARGETS:
        raise error(
            "FA0804",
            f"cuda:{index} is a {properties.name} ({number}), which has no kernels",
            why=why_not(number),
            fix=f"use a GPU of {', '.join(TARGETS)}, or PyTorch's own attention",
        )
    return Device(target=f"{number}a", num_sms=properties.multi_processor_count)


def device_of_tensor(t: Any) -> Device:
    """Facts of the device of a tensor. Raises FA0804 for one that is not on a CUDA device."""
    if t.device.type != "cuda":
        raise error(
            "FA0804",
            f"`q` is on {t.device}, expected a CUDA device",
            why=f"kernels exist for {', '.join(TARGETS)}",
            fix="`.cuda()`; without a GPU use torch.nn.functional.scaled_dot_product_attention",
        )
    return device_of(t.get_device())


def load_function(path: Path, options: Options) -> Callable[..., Any]:
    """The function of a shared object; loads the runtime library first.

    Raises FA0810 (tvm_ffi or the library is not there), FA0811 (a file that does not load).
    """
    try:
        import tvm_ffi
    except ImportError as missing:
        raise error(
            "FA0810", f"tvm_ffi does not start: {missing}", fix="pip install apache-tvm-ffi"
        ) from missing
    with _ONCE:
        load_library(options.runtime_library)
    try:
        function: Callable[..., Any] = tvm_ffi.load_module(str(path))[FUNCTION]
    except (OSError, RuntimeError, AttributeError, KeyError) as problem:
        raise error(
            "FA0811",
            f"`{path}` does not load: {str(problem).splitlines()[0]}",
            fix="build it again; packs are for Linux on the processor that they were made on",
        ) from problem
    return function


@functools.cache
def load_library(named: Path | None) -> str:
    """Loads NVIDIA's runtime library of the CuTe DSL; returns its path. Raises FA0810."""
    where = named or _installed_library()
    try:
        ctypes.CDLL(str(where), mode=ctypes.RTLD_GLOBAL)
    except OSError as problem:
        raise error(
            "FA0810",
            f"`{LIBRARY}` does not load: {problem}",
            fix="FA4GEN_RUNTIME_LIBRARY must name the library itself",
        ) from problem
    return str(where)


def _installed_library() -> Path:
    """The library of the wheel for torch's CUDA."""
    import torch

    major = (torch.version.cuda or "13").split(".")[0]
    name = f"nvidia-cutlass-dsl-libs-cu{major}"
    try:
        where = metadata.distribution(name).locate_file(
            f"nvidia_cutlass_dsl/cu{major}/lib/{LIBRARY}"
        )
        if Path(str(where)).exists():
            return Path(str(where))
    except metadata.PackageNotFoundError:
        pass
    raise error(
        "FA0810",
        f"`{LIBRARY}` for CUDA {major} is not installed",
        why="kernels call this library of NVIDIA's, which its licence keeps out of packs",
        fix=f"pip install --no-deps {name}, or set FA4GEN_RUNTIME_LIBRARY to the file",
    )


def on_device(kernel: Kernel) -> AbstractContextManager[Any]:
    """Makes the kernel's device the current one, where it is another."""
    import torch

    elsewhere = kernel.device >= 0 and torch.cuda.current_device() != kernel.device
    return torch.cuda.device(kernel.device) if elsewhere else nullcontext()


def launch(
    kernel: Kernel,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    scale: float,
    extras: Extras = NOTHING,
) -> None:
    """Launches on tensors that were checked; cuts what is too large for one grid into several."""
    b, sq, h, _ = q.shape
    ratio = h // k.shape[2]
    heads = max(1, min(GRID_LIMIT, (LIMIT - 1) // sq) // ratio) * ratio
    batch = min(GRID_LIMIT, max(1, (LIMIT - 1) // (min(h, heads) * sq)))
    with on_device(kernel):
        for b0 in range(0, b, batch):
            rows = slice(b0, b0 + batch)
            for h0 in range(0, h, heads):
                own, shared = slice(h0, h0 + heads), slice(h0 // ratio, (h0 + heads) // ratio)
                kernel.function(
                    q[rows, :, own],
                    k[rows, :, shared],
                    v[rows, :, shared],
                    out[rows, :, own],
                    lse[rows, own],
                    scale,
                    kernel.num_sms,
                    *extras.values(rows, own),
                )
