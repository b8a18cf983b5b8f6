"""The verb `explore`: the variants that a schedule's `search` combines, checked, ranked, timed."""

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from .analyze import TOKENS
from .arguments import OK, REFUSED, Arguments, Given, json_argument, settings

if TYPE_CHECKING:
    from fa4gen.explore.points import Point
    from fa4gen.explore.search import Search


def explore_arguments(parser: Arguments) -> None:
    parser.add_argument("schedule", type=Path, metavar="SCHEDULE", help="a schedule file (YAML)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as for `check`"
    )
    parser.add_argument(
        "--try",
        action="append",
        default=[],
        dest="tries",
        metavar="KEY=VALUE,…",
        help="an axis, beside those of the schedule's `search` or instead of one",
    )
    parser.add_argument("--seqlen", type=int, default=4096, metavar="N", help="of the call")
    parser.add_argument("--heads", type=int, default=16, metavar="N")
    parser.add_argument("--batch", type=int, metavar="N", help=f"left out: {TOKENS} tokens in all")
    parser.add_argument("--best", type=int, default=16, metavar="N", help="how many to compile")
    parser.add_argument("--model", action="store_true", help="rank by the model, compile nothing")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--out", type=Path, metavar="DIR", help="(build/explore/NAME); it resumes")
    parser.add_argument("--kit", type=Path, metavar="DIR", help="write what a GPU machine needs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="results that came back")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="shared objects of peers")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS")
    json_argument(parser)


def explore_verb(given: Given) -> int:
    from fa4gen.build import refuse_missing
    from fa4gen.explore.points import ranked
    from fa4gen.explore.search import examine

    refuse_missing([str(given.schedule)])
    search = _search(given)
    points = examine(search)
    if given.keep:
        points = _keep(given, search, points)
    if not given.model and not given.keep:
        points = _compile_and_measure(given, search, points)
    return _report(given, search, points) if ranked(points) else _none(given, points)


def _search(given: Given) -> "Search":
    from fa4gen.explore.points import Folder
    from fa4gen.explore.search import Search

    chosen = settings(given)
    words = [given.schedule.stem, *(f"{k}{v}" for k, v in chosen.items()), str(given.seqlen)]
    out = given.out or Path("build") / "explore" / "_".join(words)
    if min(given.seqlen, given.heads, given.best, given.jobs, given.batch or 1) < 1:
        given.parser.error("--seqlen, --heads, --batch, --best and --jobs are at least 1")
    tries = dict(t.partition("=")[::2] for t in given.tries)
    if any("=" not in t for t in given.tries):
        given.parser.error("--try takes KEY=VALUE,VALUE")
    return Search(
        base=given.schedule,
        settings=chosen,
        tries=tries,
        shape=(given.batch or max(1, TOKENS // given.seqlen), given.heads, given.seqlen),
        folder=Folder(path=out),
        jobs=given.jobs,
    )


def _compile_and_measure(given: Given, search: "Search", points: list["Point"]) -> list["Point"]:
    from fa4gen.bench.session import has_gpu
    from fa4gen.explore import measure
    from fa4gen.explore.search import compile_best
    from fa4gen.options import Options

    options = Options.from_environment()
    points = compile_best(search, points, given.best, options)
    kernels = measure.kit_kernels(search, points, given.best, options)
    if given.kit and kernels:
        where = measure.write_kit(given.kit, search, kernels, given.peers, options)
        if not given.json:
            print(f"{where}: {len(kernels)} kernels; `python3 run.py --out DIR` on a GPU machine,")
            print("then the same command with `--keep DIR` instead of `--kit` here")
    elif kernels and has_gpu():
        with tempfile.TemporaryDirectory() as aside:
            kit = Path(aside) / "kit"
            measure.write_kit(kit, search, kernels, given.peers, options)
            record = measure.run(kit, search.folder.path / "run", given.budget)
        points = measure.measured(search, points, record)
    return points


def _keep(given: Given, search: "Search", points: list["Point"]) -> list["Point"]:
    from fa4gen.bench.results import read
    from fa4gen.explore.measure import measured

    return measured(search, points, read(given.keep))


def _report(given: Given, search: "Search", points: list["Point"]) -> int:
    from dataclasses import asdict

    from fa4gen.explore.points import ranked, refusals, replaced
    from fa4gen.explore.report import plot, table, write_winner

    folder = search.folder.path
    text, drawn = table(points), plot(points)
    replaced(folder / "table.txt", text)
    if drawn:
        replaced(folder / "plot.svg", drawn)
    winner = write_winner(search, points)
    if given.json:
        found = [asdict(p) for p in ranked(points)]
        print(json.dumps({"refused": refusals(points), "best": str(winner), "points": found}))
        return OK
    print(text, end="")
    print(f"the first of these: {winner}; table{' and plot' * bool(drawn)} beside it")
    return OK


def _none(given: Given, points: list["Point"]) -> int:
    """Nothing is sound: says why, and is refused."""
    from fa4gen.explore.points import refusals
    from fa4gen.explore.report import table

    print(json.dumps({"refused": refusals(points)}) if given.json else table(points), end="")
    return REFUSED
