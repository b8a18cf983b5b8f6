"""A kit: what a GPU machine needs to check and time kernels that were compiled here.

That machine has an NVIDIA GPU, Linux on x86-64, Python 3.12 and torch; it needs neither the CuTe
DSL nor this package nor a network. The kit holds shared objects, a copy of the runner, a manifest,
the apache-tvm-ffi wheel, and the DSL's runtime library.

That library is NVIDIA's, under NVIDIA's terms: it is taken from the wheel that is installed here,
or that pip downloads, at the time a kit is made; it is no part of this project and must not be
committed or passed on but by those terms.
"""

import json
import lzma
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fa4gen.diag import error
from fa4gen.options import Options

from .cache import Cache, toolchain

FORMAT = 1
PYTHON = "3.12"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_24_x86_64", "manylinux_2_17_x86_64")
LIBRARY = "nvidia_cutlass_dsl/cu13/lib/libcute_dsl_runtime.so"
LIMIT_BYTES = 40_000_000  # more is a nuisance to carry; the runtime library is 14 MB of it
ARGUMENTS = ("q", "k", "v", "o", "lse", "softmax_scale", "num_sms")  # of our kernels' `fwd`
LAUNCHER = '''\
#!/usr/bin/env python3
"""Starts the runner of this kit: `python3 KIT/run.py --out DIR`; `--help` says more."""

import sys
from pathlib import Path

KIT = Path(__file__).resolve().parent
sys.path.insert(0, str(KIT))

from runner.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(KIT))
'''
NOTICE = """\
libcute_dsl_runtime.so.xz is a part of nvidia-cutlass-dsl {dsl}, compressed. It belongs to NVIDIA
and is subject to the licence of that package: use this kit for yourself, and do not publish it.
The wheel apache_tvm_ffi is under the Apache License 2.0.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KitKernel:
    """A shared object for a kit, and the problems that it takes.

    `arguments`: names of values in the order of the call (q, k, v, o, lse, softmax_scale,
    scale_log2, num_sms, max_seqlen_q), None, and tuples of these. `gqa_ratio` None: any ratio.
    `dtype` as torch spells it. A `peer` is timed beside ours, and checked only if asked. With
    `python`, "module:function", the call goes through what that function makes of the path of the
    shared object; `arguments` may then name `causal`, and what is returned is named in `returns`.
    """

    name: str
    shared_object: Path
    target: str
    dtype: str
    head_dim: int
    head_dim_v: int
    causal: bool
    features: Sequence[str] = ()
    arguments: Sequence[object] = ARGUMENTS
    function: str = "fwd"
    gqa_ratio: int | None = None
    min_seqlen_k: int = 0
    peer: bool = False
    python: str = ""
    returns: tuple[str, ...] = ()

    def entry(self) -> dict[str, object]:
        """Its entry in the manifest; a bound that does not bind is left out."""
        found: dict[str, object] = {
            "name": self.name,
            "file": f"kernels/{self.shared_object_name}",
            "function": self.function,
            "target": self.target,
            "dtype": self.dtype,
            "head_dim": self.head_dim,
            "head_dim_v": self.head_dim_v,
            "causal": self.causal,
            "arguments": list(self.arguments),
        }
        found |= {"features": list(self.features)} if self.features else {}
        found |= {"gqa_ratio": self.gqa_ratio} if self.gqa_ratio else {}
        found |= {"min_seqlen_k": self.min_seqlen_k} if self.min_seqlen_k else {}
        if self.python:
            found |= {"python": self.python, "returns": list(self.returns)}
        return found | ({"peer": True} if self.peer else {})

    @property
    def shared_object_name(self) -> str:
        """File name within the kit; `kernel.so` alone would name them all alike."""
        return f"{self.name.replace(' ', '_')}.so"


def write_kit(
    folder: Path,
    *,
    kernels: Sequence[KitKernel],
    cases: Sequence[Mapping[str, object]],
    runner: Path,
    about: Mapping[str, object],
    options: Options,
) -> Path:
    """Writes a kit into `folder` (new, empty, or an older kit) and returns that.

    `cases`: problems for the manifest; `runner`: folder of the runner package, which is copied;
    `about`: what the results should say of this kit (date, commit). Raises `Fa4genError` FA0708:
    names that are not unique, a folder that holds something else, no wheel to be had, too large.
    """
    names = [k.name for k in kernels]
    if double := sorted({n for n in names if names.count(n) > 1}):
        raise error("FA0708", f"two kernels of a kit are called `{double[0]}`")
    if folder.exists() and any(folder.iterdir()) and not (folder / "manifest.json").exists():
        raise error(
            "FA0708",
            f"`{folder}` is neither empty nor a kit",
            fix="name a folder that is not there",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        (work / "kernels").mkdir()
        for k in kernels:
            shutil.copyfile(k.shared_object, work / "kernels" / k.shared_object_name)
        shutil.copytree(runner, work / "runner", ignore=shutil.ignore_patterns("__pycache__"))
        (work / "run.py").write_text(LAUNCHER)
        (work / "NOTICE.txt").write_text(NOTICE.format(dsl=metadata.version("nvidia-cutlass-dsl")))
        whole = {"format": FORMAT, "toolchain": toolchain(), **about}
        manifest = {"about": whole, "kernels": [k.entry() for k in kernels], "cases": list(cases)}
        (work / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
        for part in runtime_parts(options):
            shutil.copyfile(part, work / part.name)
        size = sum(f.stat().st_size for f in work.rglob("*") if f.is_file())
        if size > LIMIT_BYTES:
            raise error(
                "FA0708",
                f"the kit has {size / 1e6:.1f} MB, more than {LIMIT_BYTES / 1e6:.0f}",
                fix="put fewer kernels into one kit",
            )
        work.chmod(0o755)
        shutil.rmtree(folder, ignore_errors=True)
        work.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return folder


def runtime_parts(options: Options) -> tuple[Path, ...]:
    """The wheel and the compressed library, from the cache or as pip downloads them (FA0708)."""
    try:
        dsl = metadata.version("nvidia-cutlass-dsl")
        ffi = metadata.version("apache-tvm-ffi")
    except metadata.PackageNotFoundError as missing:
        raise error(
            "FA0705", f"`{missing.name}` is not installed", fix=f"pip install {missing.name}"
        ) from None
    cache = Cache(folder=options.cache_dir / "kit")
    key = f"dsl-{dsl}-ffi-{ffi}-cp{PYTHON}-x86_64"
    entry = cache.get(key, {"dsl": dsl, "ffi": ffi}, lambda f: _fetch_parts(f, dsl, ffi))
    return tuple(entry.folder / name for name in entry.files)


def _fetch_parts(folder: Path, dsl: str, ffi: str) -> None:
    print("fetching the DSL's runtime library for the kit (once)", file=sys.stderr, flush=True)
    _download(f"apache-tvm-ffi=={ffi}", folder)
    library = folder / (Path(LIBRARY).name + ".xz")
    packed = lzma.compress(_library(dsl), preset=1)  # 44 MB to 16 in 7 s; preset 6: to 14 in 30 s
    library.write_bytes(packed)


def _library(dsl: str) -> bytes:
    """The DSL's runtime library for CUDA 13, from the installed wheel or a downloaded one."""
    name = "nvidia-cutlass-dsl-libs-cu13"
    try:
        installed = Path(str(metadata.distribution(name).locate_file(LIBRARY)))
        if metadata.version(name) == dsl and installed.exists():
            return installed.read_bytes()
    except metadata.PackageNotFoundError:
        pass
    with tempfile.TemporaryDirectory() as aside:
        _download(f"{name}=={dsl}", Path(aside))
        wheel = next(Path(aside).glob("*.whl"))
        with zipfile.ZipFile(wheel) as z:
            return z.read(LIBRARY)


def _download(requirement: str, folder: Path) -> None:
    """One wheel for the other machine's Python, without what it depends on."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version", PYTHON, "--implementation", "cp", "-d", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    done = subprocess.run([*command, requirement], capture_output=True, text=True)
    if done.returncode:
        said = done.stderr.strip().splitlines()[-1:] or ["pip said nothing"]
        raise error(
            "FA0708",
            f"pip cannot download `{requirement}` for Python {PYTHON}: {said[0]}",
            fix="make the kit where there is a network; what is downloaded is kept in the cache",
        )
