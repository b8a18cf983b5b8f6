"""`fa4gen explore`: combine, check, rank, compile the best; each step is kept as it is done."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from fa4gen.analyze.analysis import Analysis, analyze_member
from fa4gen.analyze.counts import compiled_counts
from fa4gen.build import member
from fa4gen.cost.rates import DEVICES
from fa4gen.diag import Fa4genError, error
from fa4gen.dsl.search import axes, choices
from fa4gen.options import Options

from .points import Folder, Point, compiler_digest, key_of, ranked

J = TypeVar("J")
LIMIT = 4096  # points of one search; each costs a third of a second to check
Shape = tuple[int, int, int]  # batch, heads, length


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What is searched: the base, its problem, the shape that counts, and where results lie."""

    base: Path
    settings: Mapping[str, str]
    tries: Mapping[str, str]
    shape: Shape
    folder: Folder
    jobs: int = 1

    @property
    def stem(self) -> str:
        """What points are called: the base's name, and the problem."""
        words = [f"{k}{v}" for k, v in self.settings.items()]
        return "_".join([self.base.stem, *(w.replace(".", "_") for w in words)])


def examine(search: Search) -> list[Point]:
    """Writes and checks every point, and models those that are sound.

    Raises Fa4genError: FA0113 for a schedule without axes, those of reading it.
    """
    found = choices(axes(search.base, search.tries))
    if found in ([], [()]):
        raise error(
            "FA0113",
            f"`{search.base}` has no section `search`, and nothing else is to be tried",
            fix="--try tile_n=96,128, or a section `search` (fa4gen explain FA0113)",
        )
    if len(found) > LIMIT:
        raise error(
            "FA0113",
            f"the axes of `{search.base}` combine to {len(found)} points, more than {LIMIT}",
            fix="shorten one: --try tile_n=96,128",
        )
    made = search.folder.write(found, search.base, search.stem)
    digest = compiler_digest()
    known: dict[str, Point] = {}
    todo: list[tuple[Search, str, str, str]] = []
    for name, label in made:
        file = search.folder.schedule(name)
        key = _key(file, search, digest)
        point = search.folder.known(name, key)
        if point:
            known[name] = point
        else:
            todo.append((search, name, label, key))
    with _processes(search.jobs, len(todo)) as pool:
        for point in _progress("checked", pool, _examine_one, todo):
            known[point.name] = search.folder.keep(point)
    return [known[name] for name, _ in made]


def compile_best(
    search: Search, points: Sequence[Point], best: int, options: Options
) -> list[Point]:
    """Compiles the `best` points by their prediction, and models them again with their counts.

    A compiler process each, `jobs` side by side; what is compiled is in the cache.
    """
    chosen = [p for p in ranked(points) if p.measured_seconds is None][:best]
    chosen += [p for p in points if p.measured_seconds is not None]
    todo = [(search, p, options) for p in chosen if p.modelled_seconds is None]
    done = {p.name: p for p in points}
    with ThreadPoolExecutor(max(1, search.jobs)) as pool:
        for point in _progress("compiled", pool, _compile_one, todo):
            done[point.name] = search.folder.keep(point)
    return [done[p.name] for p in points]


def _key(file: Path, search: Search, digest: str) -> str:
    """The key of a point; one that cannot even be read is examined each time."""
    try:
        return key_of(file, search.settings, search.shape, digest)
    except Fa4genError:
        return ""


def _examine_one(job: tuple[Search, str, str, str]) -> Point:
    search, name, label, key = job
    point = Point(name=name, label=label, key=key)
    try:
        one = member(search.folder.schedule(name), search.settings, None)
        found = analyze_member(one, None, None, [search.shape])
    except Fa4genError as e:
        return _refused(point, e)
    return replace(point, shape_seconds=_seconds(found), bound=found.loop.bound)


def _compile_one(job: tuple[Search, Point, Options]) -> Point:
    search, point, options = job
    try:
        one = member(search.folder.schedule(point.name), search.settings, None)
        counts, code = compiled_counts(one, options)
        found = analyze_member(one, counts, code, [search.shape])
    except Fa4genError as e:
        return _refused(point, e)
    return replace(
        point, modelled_seconds=_seconds(found), bound=found.loop.bound, spills=code.spills
    )


def _seconds(found: Analysis) -> float:
    """Of the one call; of a kernel whose calls are not modelled, of one block."""
    if found.calls:
        return found.calls[0][1].seconds
    return found.loop.pace / DEVICES[found.one.checked.schedule.target].clock_hz


def _refused(point: Point, e: Fa4genError) -> Point:
    first = e.diagnostics[0]
    return replace(point, refused=first.code, why=first.title)


def _processes(jobs: int, count: int) -> Executor:
    """Checking holds the interpreter: processes where there is enough of it."""
    if jobs > 1 and count > jobs:
        return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"))
    return ThreadPoolExecutor(1)


def _progress(
    what: str, pool: Executor, work: Callable[[J], Point], jobs: Sequence[J]
) -> Iterator[Point]:
    """Results as they come; counts them on a terminal. Interrupted, it starts no further one."""
    running = [pool.submit(work, j) for j in jobs]
    shown = sys.stderr.isatty()
    try:
        for n, future in enumerate(as_completed(running), 1):
            yield future.result()
            if shown:
                end = "\n" if n == len(running) else ""
                print(f"\r{what}: {n} of {len(running)}", end=end, file=sys.stderr, flush=True)
    finally:
        for future in running:
            future.cancel()
