"""Launch capture: host code that the CuTe DSL compiled runs here, and launches arrive as data.

No driver and no GPU take part: `shim.c`, compiled at first use, stands in for the DSL's runtime
library. Global pointers in the launch parameters are addresses of this process.
"""

import ctypes
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from fa4gen.diag import Fa4genError, error
from fa4gen.emulator.native import link, shared_library

SOURCE = Path(__file__).with_name("shim.c")
RUNTIME = "libcute_dsl_runtime.so"  # the DSL looks its runtime up by this name
Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One kernel launch: `params[i]` holds the bytes of the entry's i-th .param."""

    kernel: str
    grid: Dim3
    block: Dim3
    cluster: Dim3
    dynamic_smem_bytes: int
    cooperative: bool
    programmatic: bool
    params: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What host code may ask about the device that it believes in."""

    multiprocessors: int
    smem_optin_bytes: int
    capability: int


ParamSizes = Callable[[str], Sequence[int]]  # kernel name -> bytes of each .param, in order
OnLaunch = Callable[[Launch], None]


class _Launch(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("dynamic_smem_bytes", ctypes.c_uint64),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("cooperative", ctypes.c_uint32),
        ("programmatic", ctypes.c_uint32),
    )


_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_Launch))
_FAILED = 719  # cudaErrorLaunchFailure: makes the host code stop; the true error is raised after it


@dataclass(slots=True)
class StandIn:
    """One mapping of the stand-in library; it listens for one call at a time."""

    library: ctypes.CDLL
    lock: threading.RLock

    @contextmanager
    def capturing(self, device: Device, sizes: ParamSizes, on_launch: OnLaunch) -> Iterator[None]:
        """Within, each launch calls `on_launch`, synchronously.

        What it raises is raised at the end, in place of the error that the host code makes of it.
        """
        failures: list[BaseException] = []

        def receive(pointer: "ctypes._Pointer[_Launch]") -> int:
            try:
                on_launch(_launch(pointer.contents, sizes))
            except BaseException as failure:  # must not cross C: raised below
                failures.append(failure)
            return _FAILED if failures else 0

        callback = _CALLBACK(receive)
        with self.lock:
            self.library.fa4gen_device(
                device.multiprocessors, device.smem_optin_bytes, device.capability
            )
            self.library.fa4gen_on_launch(callback)
            try:
                yield
            except Exception:
                if not failures:
                    raise
            finally:
                self.library.fa4gen_on_launch(_CALLBACK())
        if failures:
            raise failures[0]


def runtime_library(*, folder: Path | None = None) -> Path:
    """The stand-in for `CUTE_DSL_LIBS`, which must name it before cutlass is imported."""
    return shared_library(SOURCE, RUNTIME, ("-O1",), folder=folder)


def jit_environment(target: str, dump: Path, *, folder: Path | None = None) -> dict[str, str]:
    """The variables with which a process that imports cutlass compiles for `target` (as "sm_100a"),
    keeps the PTX in `dump`, and launches into the stand-in."""
    return {
        "CUTE_DSL_ARCH": target,
        "CUTE_DSL_LIBS": str(runtime_library(folder=folder)),
        "CUTE_DSL_KEEP": "ptx",
        "CUTE_DSL_DUMP_DIR": str(dump),
        "CUTE_DSL_NO_CACHE": "1",
    }


def attach(library: Path) -> StandIn:
    """The stand-in at `library`, as functions that the DSL compiled in this process reach it."""
    return _stand_in(ctypes.CDLL(str(library)))


def load_exported(shared_object: Path) -> tuple[StandIn, Callable[[str], Callable[..., object]]]:
    """An exported tvm-ffi shared object on a stand-in of its own, and its functions by name.

    A private copy is loaded, bound to a private stand-in: the same object may run on a GPU in this
    process too, and no other object's look-up of CUDA's names ends here.
    """
    import tvm_ffi  # its library must be mapped before the object asks for TVMFFI* symbols

    if not shared_object.is_file():
        raise error(
            "FA0905",
            f"no shared object at {shared_object}",
            fix="export one with `compiled.export_to_c(...)` and link it with `cc -shared`",
        )
    with tempfile.TemporaryDirectory(prefix="fa4gen-emulator-") as scratch:
        copy, capture = Path(scratch) / "module.so", Path(scratch) / "capture.so"
        shutil.copyfile(shared_object, copy)
        link([SOURCE, copy], capture, ("-O1", "-Wl,--no-as-needed"))
        try:
            # DEEPBIND: the object finds this stand-in even if a real runtime is mapped globally
            library = ctypes.CDLL(str(capture), mode=os.RTLD_NOW | os.RTLD_DEEPBIND)
        except OSError as cause:
            raise _unloadable(shared_object, cause) from cause
        module = tvm_ffi.load_module(str(copy))

    def function(name: str) -> Callable[..., object]:
        try:
            found: Callable[..., object] = module[name]
        except AttributeError as cause:
            raise error(
                "FA0906",
                f"{shared_object.name} exports no function {name!r}",
                fix="use the `function_name` given to export_to_c",
            ) from cause
        return found

    return _stand_in(library), function


def _stand_in(library: ctypes.CDLL) -> StandIn:
    library.fa4gen_on_launch.argtypes = [_CALLBACK]
    library.fa4gen_on_launch.restype = None
    library.fa4gen_device.argtypes = [ctypes.c_int32] * 3
    library.fa4gen_device.restype = None
    return StandIn(library, threading.RLock())


def _launch(raw: _Launch, sizes: ParamSizes) -> Launch:
    name = raw.kernel.decode()
    params = (ctypes.string_at(raw.arguments[i], n) for i, n in enumerate(sizes(name)))
    return Launch(
        kernel=name,
        grid=_dim3(raw.grid),
        block=_dim3(raw.block),
        cluster=_dim3(raw.cluster),
        dynamic_smem_bytes=raw.dynamic_smem_bytes,
        cooperative=bool(raw.cooperative),
        programmatic=bool(raw.programmatic),
        params=tuple(params),
    )


def _dim3(raw: "ctypes.Array[ctypes.c_uint32]") -> Dim3:
    return (raw[0], raw[1], raw[2])


def _unloadable(shared_object: Path, cause: OSError) -> Fa4genError:
    return error(
        "FA0907",
        f"{shared_object.name} cannot be loaded: {cause}",
        why="host code that calls CUDA functions other than launches is not captured",
        fix="give a shared object exported by the CuTe DSL for this machine's processor",
    )
