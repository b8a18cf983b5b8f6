"""C sources of this package, compiled at first use by the machine's compiler and kept by content.

The cache is one folder a user; an entry's name is the hash of all that went into it, and files
appear by rename, so that processes may build the same thing at once.
"""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fa4gen.diag import Fa4genError, error
from fa4gen.options import Options

COMPILERS = ("cc", "gcc", "clang")


def cache_folder() -> Path:
    """The emulator's part of the package's cache."""
    return Options.from_environment().cache_dir / "emulator"


def compiler() -> str:
    """The C compiler's path; raises `Fa4genError` where there is none."""
    for name in COMPILERS:
        found = shutil.which(name)
        if found:
            return found
    raise error(
        "FA0901",
        "the emulator needs a C compiler, and none of cc, gcc, clang is on the PATH",
        why="its virtual machine and its launch capture are C sources, compiled at first use",
        fix="install one (Debian: `apt-get install gcc libc6-dev`)",
    )


def shared_library(
    source: Path, name: str, flags: Sequence[str] = ("-O2",), *, folder: Path | None = None
) -> Path:
    """The path of `source` compiled to the shared library `name`, from the cache if it is there."""
    text = source.read_bytes()
    parts = (text, name.encode(), " ".join(flags).encode(), platform.machine().encode())
    key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
    made = (folder or cache_folder()) / key / name
    if not made.exists():
        _prepare(made.parent)
        with tempfile.TemporaryDirectory(dir=made.parent) as scratch:
            built = Path(scratch) / name
            link([source], built, flags)
            built.replace(made)
    return made


def link(inputs: Sequence[Path], output: Path, flags: Sequence[str] = ()) -> None:
    """Compiles and links `inputs` into the shared library `output`."""
    command = [compiler(), *flags, "-shared", "-fPIC", "-fvisibility=hidden", "-o", str(output)]
    command += map(str, inputs)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise error(
            "FA0902",
            f"the C compiler failed on {inputs[0].name} (exit {done.returncode})",
            why=f"{command[0]} said: {done.stderr.strip()[:2000]}",
            fix="put another compiler first on the PATH, under the name cc",
        )


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as cause:
        raise _unwritable(folder, cause) from cause


def _unwritable(folder: Path, cause: OSError) -> Fa4genError:
    return error(
        "FA0903",
        f"the cache folder {folder} cannot be written: {cause.strerror}",
        fix="point FA4GEN_CACHE_DIR at a folder of your own",
    )
