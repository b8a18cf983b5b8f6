"""From schedule files to candidates, and from a candidate to its shared object, built if need be.

What reading and emitting made is kept on disk by the text of every file that it came from, and by
this package's own text, so that a warm start neither reads YAML nor proves anything again.
"""

import functools
import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fa4gen.diag import error
from fa4gen.options import Options
from fa4gen.runtime.cache import Cache
from fa4gen.runtime.compile import Request, compile_cached, find_compiled
from fa4gen.runtime.dispatch import Candidate
from fa4gen.runtime.problem import Problem

LOG = logging.getLogger("fa4gen")
PACKAGE = Path(__file__).parents[1]
SHIPPED = PACKAGE / "schedules"
MADE = "made.json"


def schedule_files(paths: Iterable[Path]) -> list[Path]:
    """The YAML files among these files and folders. Raises FA0111 for one that is not there."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(path.glob("*.yaml"))
        elif path.is_file():
            found.append(path)
        else:
            raise error("FA0111", f"there is no schedule `{path}`", fix="name a file or a folder")
    return found


def candidate_of(file: Path, options: Options) -> Candidate:
    """What a schedule file says that it serves. Raises its errors."""

    def make() -> tuple[dict[str, Any], Iterable[str]]:
        from fa4gen.dsl import load_with_sources

        schedule, sources = load_with_sources(file)
        serves = {k: list(v) for k, v in schedule.serves.items()}
        about: dict[str, Any] = {"name": schedule.name, "target": schedule.target}
        about["kernel"] = schedule.kernel
        about["always"] = sorted(schedule.features)  # without being asked for
        return about | {"serves": serves}, sources

    made = _kept("serves", file, {}, make, options)
    serves: dict[str, list[Any]] = made["serves"]
    return Candidate(
        name=made["name"],
        target=made["target"],
        dtypes=tuple(serves.get("dtype", ())),
        head_dims=tuple(serves.get("head_dim", ())),
        head_dims_v=tuple(serves.get("head_dim_v", ())),
        causal=tuple(serves.get("causal", ())),
        features=tuple(serves.get("features", ())),
        origin=str(file),
        kernel=made["kernel"],
        always=tuple(made["always"]),
    )


def request_of(candidate: Candidate, problem: Problem, options: Options) -> Request:
    """What to compile for a problem. Raises the errors of the schedule."""

    def make() -> tuple[dict[str, Any], Iterable[str]]:
        from fa4gen.driver import check, member_name
        from fa4gen.dsl import load_with_sources
        from fa4gen.emit.render import render

        checked = check(candidate.origin, settings=problem.settings(), modifiers=problem.modifiers)
        _, sources = load_with_sources(candidate.origin, settings=problem.settings())
        text = render(checked.program).text
        return {"name": member_name(checked.schedule), "text": text}, sources

    settings = problem.settings() | {"modifiers": str(problem.modifiers)}
    made = _kept("emitted", Path(candidate.origin), settings, make, options)
    return Request(name=made["name"], target=candidate.target, text=made["text"])


def tile_of(candidate: Candidate, problem: Problem, options: Options) -> tuple[int, int]:
    """Queries of a CTA's tile and keys of a block. Raises the errors of the schedule."""

    def make() -> tuple[dict[str, Any], Iterable[str]]:
        from fa4gen.dsl import load_with_sources

        schedule, sources = load_with_sources(candidate.origin, settings=problem.settings())
        return {"tile": schedule.tile()}, sources

    made = _kept("tile", Path(candidate.origin), problem.settings(), make, options)
    rows, keys = made["tile"]
    return int(rows), int(keys)


def shared_object(candidate: Candidate, problem: Problem, options: Options) -> Path:
    """The shared object of a candidate, from its pack, the disk cache or the compiler.

    Raises the errors of compiling; FA0814 if it would have to and `FA4GEN_NO_JIT` is set.
    """
    if candidate.shared_object:
        return Path(candidate.shared_object)
    request = request_of(candidate, problem, options)
    if found := find_compiled(request, options):
        return found.shared_object
    if options.no_jit:
        raise error(
            "FA0814",
            f"`{request.name}` for {problem} is not built, and FA4GEN_NO_JIT forbids to",
            fix=f"`fa4gen pack --target {problem.target} --head-dims {problem.head_dim} "
            "-o DIR`, then `fa4gen.load(DIR)`; or unset FA4GEN_NO_JIT",
        )
    return _compile(request, options)


def _compile(request: Request, options: Options) -> Path:
    LOG.warning(
        "compiling %s for %s, some 10 s; later processes find it in %s",
        request.name,
        request.target,
        options.cache_dir,
    )
    begin = time.perf_counter()
    made = compile_cached(request, options).shared_object
    LOG.info("compiled %s in %.1f s", request.name, time.perf_counter() - begin)
    return made


def shared_objects(
    jobs: Sequence[tuple[Candidate, Problem]], options: Options, workers: int = 0
) -> list[Path]:
    """Several, each compiled in a process of its own, `workers` at a time (0: cores, 8 at most).

    Raises the first error, after those under way have ended.
    """
    count = workers or min(os.cpu_count() or 1, 8)  # a compiler process takes about 1 GB
    with ThreadPoolExecutor(max_workers=count) as pool:
        made = [pool.submit(shared_object, c, p, options) for c, p in jobs]
        try:
            for number, job in enumerate(made, 1):
                job.result()
                LOG.info("%d of %d kernels are there", number, len(made))
            return [job.result() for job in made]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# ------------------------------------------------------------------- what reading made, on disk
def _kept(
    kind: str,
    file: Path,
    settings: dict[str, str],
    make: Callable[[], tuple[dict[str, Any], Iterable[str]]],
    options: Options,
) -> dict[str, Any]:
    """What `make` made of the file, from disk if no text that it came from has changed.

    The key holds all schedules of the file's folder. What came from elsewhere is not kept, nor is
    anything where the cache cannot be written.
    """
    folder = file.absolute().parent
    texts = {p.name: _hash(p) for p in sorted(folder.glob("*.yaml"))} | {file.name: _hash(file)}
    what = [kind, str(file), file.name, texts, settings, package_hash()]
    key = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:40]
    cache = Cache(folder=options.cache_dir / "emitted", limit_bytes=options.cache_bytes // 10)
    if entry := cache.find(key):
        found: dict[str, Any] = json.loads((entry.folder / MADE).read_text())
        return found
    made, sources = make()
    files = [
        s for s in sources if not s.startswith("--set ")
    ]  # what `settings` said is a source too
    if all(Path(s).absolute().parent == folder for s in files):
        text = json.dumps(made)
        try:
            cache.get(key, {"kind": kind}, lambda f: _write(f / MADE, text))
        except Exception as problem:  # it serves as well without
            LOG.debug("not kept: %s", problem)
    return made


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _hash(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


@functools.cache
def package_hash() -> str:
    """A hash of what decides the emitted text and what is kept of it: modules and templates."""
    whole = hashlib.sha256()
    for part in (
        "api/jit.py",
        "diag.py",
        "driver.py",
        "dtypes.py",
        "target.py",
        "dsl",
        "ir",
        "scheduler",
        "emit",
    ):
        path = PACKAGE / part
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for f in (f for f in files if f.suffix in (".py", ".j2")):
            whole.update(f"{f.relative_to(PACKAGE)} {_hash(f)}\n".encode())
    return whole.hexdigest()
