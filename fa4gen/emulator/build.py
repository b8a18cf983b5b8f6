"""The virtual machine as a shared library, compiled at first use and kept by content."""

import ctypes
import hashlib
import platform
import tempfile
from functools import cache
from pathlib import Path

from fa4gen.emulator.native import cache_folder, compiler, link

SOURCES = Path(__file__).parent / "vm"
# No contraction: PTX says which operations are fused. Wrapping and aliasing as machines have them.
FLAGS = (
    "-O3", "-march=native", "-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fwrapv",
    "-fno-strict-aliasing", "-frounding-math", "-pthread", "-Wl,--no-as-needed,-lm",
)  # fmt: skip


@cache
def machine_library() -> ctypes.CDLL:
    """The loaded library. Raises `Fa4genError` where there is no C compiler."""
    return ctypes.CDLL(str(_built()))


def _built() -> Path:
    sources = sorted(SOURCES.glob("*.[ch]"))
    key = hashlib.sha256()
    for source in sources:
        key.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    key.update(" ".join((*FLAGS, compiler(), platform.node(), platform.machine())).encode())
    made = cache_folder() / key.hexdigest()[:16] / "machine.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            built = Path(scratch) / "machine.so"
            link([s for s in sources if s.suffix == ".c"], built, FLAGS)
            built.replace(made)
    return made
