"""Generated source -> PTX, cubin and a shared object, through the CuTe DSL in a process of its own.

No GPU and no driver: the target goes to the DSL by CUTE_DSL_ARCH. Line information is always on:
the machine code is the same with it, and reports, errors and profilers can name lines of the
generated file, which name lines of the schedule. What comes out holds no path and no time of this
machine: equal text, equal bytes.
"""

import functools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fa4gen.diag import Diagnostic, Fa4genError, Note, Span, error
from fa4gen.options import Options, child_environment

from . import dsl_process
from .cache import Cache, key_of

LOG = logging.getLogger("fa4gen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compile: a generated file (it defines `launch` and `example_arguments`)."""

    name: str  # of the schedule; the file is called so
    target: str  # 'sm_90a', 'sm_100a', ...
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The folder of what one compilation made."""

    folder: Path

    @property
    def ptx(self) -> Path:
        """PTX text, without line information."""
        return self.folder / "kernel.ptx"

    @property
    def lines_ptx(self) -> Path:
        """The same PTX with `.loc` lines that name lines of the generated file."""
        return self.folder / "lines.ptx"

    @property
    def cubin(self) -> Path:
        """Machine code (ELF) with line tables."""
        return self.folder / "kernel.cubin"

    @property
    def shared_object(self) -> Path:
        """Loads with tvm_ffi alone; its function is `fwd`."""
        return self.folder / "kernel.so"

    @property
    def remarks(self) -> Path:
        """What ptxas said (registers, spills, performance warnings), one remark a line."""
        return self.folder / "remarks.txt"


FILES = ("kernel.ptx", "lines.ptx", "kernel.cubin", "kernel.so", "remarks.txt")


def find_compiled(request: Request, options: Options) -> Compiled | None:
    """What compiling made before, if it lies in the disk cache."""
    entry = _cache(options).find(_key(request))
    return Compiled(folder=entry.folder) if entry else None


def compile_cached(request: Request, options: Options) -> Compiled:
    """What compiling makes, from the disk cache if it is there. Errors: `compile_into`.

    A cache that cannot be written still serves what it has; what it has not is compiled for this
    process alone, with a warning. FA0707 if there is no room for that either.
    """
    about = {"name": request.name, "target": request.target}

    def get(cache: Cache) -> Compiled:
        entry = cache.get(
            _key(request), about, lambda folder: compile_into(request, folder, options)
        )
        return Compiled(folder=entry.folder)

    try:
        return get(_cache(options))
    except Fa4genError as problem:
        if any(d.code != "FA0707" for d in problem.diagnostics):
            raise
        LOG.warning("%s; kept for this process alone", problem.diagnostics[0].title)
        return get(Cache(folder=Path(_aside().name)))


def _cache(options: Options) -> Cache:
    return Cache(folder=options.cache_dir / "kernels", limit_bytes=options.cache_bytes)


def _key(request: Request) -> str:
    return key_of(name=request.name, text=request.text, target=request.target)


@functools.cache
def _aside() -> "tempfile.TemporaryDirectory[str]":
    """A folder that goes when this process ends."""
    return tempfile.TemporaryDirectory(prefix="fa4gen.kernels.")


def compile_into(request: Request, folder: Path, options: Options) -> None:
    """Compiles, and puts the files of a `Compiled` into `folder`, which exists and is empty.

    Raises `Fa4genError`: FA0701 the DSL refuses the text, FA0702 ptxas refuses the PTX, both with
    the line of the schedule; FA0703 no answer in time or a crash; FA0704 the linker; FA0705 the DSL
    is not installed.
    """
    work = Path(tempfile.mkdtemp(prefix=f"fa4gen.{request.name}."))
    keep = False
    try:
        _compile_in(request, work, folder, options)
    except Fa4genError:
        keep = options.debug
        if keep:
            print(f"fa4gen: kept {work}", file=sys.stderr)
        raise
    finally:
        if not keep:
            shutil.rmtree(work, ignore_errors=True)


def copy_to(compiled: Compiled, folder: Path) -> Compiled:
    """Copies the files into `folder`, made if need be; a reader sees each whole, old or new."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        partial = folder / f".{name}.{os.getpid()}"
        shutil.copyfile(compiled.folder / name, partial)
        partial.replace(folder / name)
    return Compiled(folder=folder)


def _compile_in(request: Request, work: Path, made: Path, options: Options) -> None:
    """Runs the compiler in `work`, and puts the files of a `Compiled` into `made`."""
    job = _start(request, work)
    try:
        _finish(request, job, options)
    finally:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait()
    _link(work / "kernel.o", made / "kernel.so")
    ptx = (work / "kernel.ptx").read_text()
    (made / "lines.ptx").write_text(ptx)
    (made / "kernel.ptx").write_text(without_lines(ptx))
    shutil.copyfile(work / "kernel.cubin", made / "kernel.cubin")
    said = ptxas_remarks(job.log.read_text(errors="replace"))
    (made / "remarks.txt").write_text("".join(f"{r}\n" for r in said))


def without_lines(ptx: str) -> str:
    """PTX without its `.loc` and `.file` lines, and the blank lines that come with them."""
    kept = [x for x in ptx.splitlines() if x.strip() and not re.match(r"\s*\.(loc|file)\s", x)]
    return "\n".join(kept) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    folder: Path
    process: subprocess.Popen[bytes]
    log: Path


def _start(request: Request, folder: Path) -> _Job:
    (folder / "dump").mkdir()
    source = folder / f"{request.name}.py"
    source.write_text(request.text)
    os.utime(source, (0, 0))  # line tables hold the file's time
    environment = child_environment(
        CUTE_DSL_ARCH=request.target,
        CUTE_DSL_KEEP="ptx,cubin",
        CUTE_DSL_DUMP_DIR="dump",
        CUTE_DSL_DISABLE_FILE_CACHING="1",  # our own cache has the keys
        CUTE_DSL_LINEINFO="1",
        CUTE_DSL_COMPILER_OPT="remarks{ptx}",
        NO_COLOR="1",
    )
    log = folder / "log"
    command = [sys.executable, "-P", dsl_process.__file__, f"{request.name}.py"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=environment, stdout=out, stderr=out, stdin=subprocess.DEVNULL
        )
    return _Job(folder=folder, process=process, log=log)


def _finish(request: Request, job: _Job, options: Options) -> None:
    """Waits for a compilation, and turns what went wrong into an error with its place."""
    try:
        status = job.process.wait(options.timeout_seconds)
    except subprocess.TimeoutExpired:
        raise error(
            "FA0703",
            f"compiling `{request.name}` for {request.target} took more than"
            f" {options.timeout_seconds:g} s",
            fix="set FA4GEN_TIMEOUT to more seconds",
        ) from None
    answer = job.folder / "outcome.json"
    if not answer.exists():
        said = job.log.read_text(errors="replace").strip()[-2000:]
        raise error(
            "FA0703",
            f"the compiler process of `{request.name}` died with status {status}",
            why=said or "it said nothing",
        )
    outcome = json.loads(answer.read_text())
    if outcome["stage"] == "import":
        raise error(
            "FA0705",
            f"the CuTe DSL does not start: {outcome['message']}",
            fix="pip install 'nvidia-cutlass-dsl>=4.8.1,<4.9' apache-tvm-ffi",
        )
    if outcome["stage"] != "done":
        raise _refusal(request, outcome, job.folder)


# ------------------------------------------------------------------------ places in the schedule
def line_map(text: str) -> dict[int, Span]:
    """Line of a generated file -> place in the schedule, from the comments that end statements."""
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if m := re.search(r"#\s*(\S+\.ya?ml):(\d+)(?::(\d+))?\s*$", line):
            found[number] = Span(m[1], int(m[2]), int(m[3] or 1))
    return found


def ptx_lines(ptx: str) -> dict[int, int]:
    """Line of a PTX text with `.loc` lines -> line of the generated file that it comes from."""
    found, current = {}, 0
    for number, line in enumerate(ptx.splitlines(), 1):
        if m := re.match(r"\s*\.loc\s+\d+\s+(\d+)", line):
            current = int(m[1])
        if current:
            found[number] = current
    return found


def _refusal(request: Request, outcome: dict[str, object], folder: Path) -> Fa4genError:
    """The DSL's or ptxas's words, at the line of the schedule that the guilty statement names."""
    lines = [int(str(n)) for n in _list(outcome["lines"])]
    dumped = next(iter((folder / "dump").glob("*.ptx")), None)
    ptxas = str(outcome["ptxas"])
    if ptxas and dumped:
        lines = _ptxas_lines(ptxas, dumped.read_text()) or lines
    spans = line_map(request.text)
    place = next((spans[n] for n in lines if n in spans), None)
    text = request.text.splitlines()
    notes = tuple(
        Note(text=f"{request.name}.py:{n}: {text[n - 1].strip()}")
        for n in dict.fromkeys(lines)
        if 0 < n <= len(text)
    )
    said = [x for x in _plain(ptxas or str(outcome["message"])).splitlines() if x.strip()]
    tool = "ptxas" if ptxas else "the CuTe DSL"
    return Fa4genError(
        [
            Diagnostic(
                code="FA0702" if ptxas else "FA0701",
                title=f"{tool} refuses `{request.name}` for {request.target}: {_first(said)}",
                span=place,
                notes=notes[:4],
                why="\n        ".join(said[1:8]),
                fix=_plain(str(outcome["suggestion"])),
            )
        ]
    )


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _first(said: list[str]) -> str:
    return said[0].strip() if said else "no reason given"


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _ptxas_lines(said: str, ptx: str) -> list[int]:
    where = ptx_lines(ptx)
    numbers = [int(n) for n in re.findall(r"line (\d+);", said)]
    return [where[n] for n in numbers if n in where]


def ptxas_remarks(said: str) -> list[str]:
    """The remarks of ptxas in what the DSL printed, each unwrapped to one line."""
    flat = " ".join(_plain(said).split())
    marks = r"ptxas info :|ptxas warning :|ptxas error :|ptxas \. |-->|suggestion:"
    found = []
    for m in re.finditer(rf"(ptxas (?:info|warning|\.)\s*:?) (.*?)(?=\s*(?:{marks})|$)", flat):
        remark = m[2].strip()
        if not remark.startswith(("0 bytes gmem", "Compiling entry", "Function properties")):
            found.append(re.sub(r" in function '[^']*'| for the function '[^']*'", "", remark))
    return [r for r in found if not r.startswith("Compile time")]


# ---------------------------------------------------------------------------------------- linking
def _link(object_file: Path, out: Path) -> None:
    """Makes the shared object; the DSL's runtime library is not linked in, loaders bring it."""
    linker = shutil.which("gcc") or shutil.which("cc") or shutil.which("clang")
    if linker is None:
        raise error("FA0704", "no C compiler to link the shared object with", fix="apt install gcc")
    done = subprocess.run(
        [linker, "-shared", "-o", str(out), str(object_file)], capture_output=True, text=True
    )
    if done.returncode:
        raise error("FA0704", f"`{linker} -shared` failed: {done.stderr.strip()[:1000]}")
