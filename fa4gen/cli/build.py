"""The verbs that compile: `build`, `bench`, `show`."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import OK, REFUSED, Arguments, Given, schedule_arguments, settings

if TYPE_CHECKING:
    from fa4gen.build import Member

LEVELS = ("plan", "program", "source", "ptx")
SCHEDULES = Path("schedules")


def build_arguments(parser: Arguments) -> None:
    schedule_arguments(parser, least="*")
    parser.add_argument(
        "--all", action="store_true", help=f"every schedule of the folder {SCHEDULES}"
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder of what is built (build/MEMBER)"
    )
    parser.add_argument("--kit", type=Path, metavar="DIR", help="also what a GPU machine needs")
    parser.add_argument(
        "--check", action="store_true", help="only compare the committed files under generated/"
    )
    parser.add_argument("--strict", action="store_true", help="a kernel that spills is an error")


def build_verb(given: Given) -> int:
    from fa4gen.build import members, refuse_missing

    paths = given.schedules + (sorted(map(str, SCHEDULES.glob("*.yaml"))) if given.all else [])
    if not paths:
        given.parser.error("which schedules? (or --all, where there is a folder `schedules`)")
    refuse_missing(paths)
    chosen, code, done, made = settings(given), OK, [], []
    for path in paths:
        for one in members(path, chosen, given.variant):
            take = _compare if given.check else _compile
            facts, result = take(given, path, one, bool(chosen or given.variant))
            done.append(facts)
            made.append(one)
            code = max(code, result)
    if given.kit and not given.check:
        _write_kit(given, made)
    if given.json:
        print(json.dumps(done, indent=2))
    return code


def _compare(given: Given, path: str, one: "Member", asked: bool) -> tuple[object, int]:
    """The committed source of a member with what would be written."""
    from fa4gen.build import generated_file, stale

    file = None if asked else generated_file(path, one.checked.schedule, one.name)
    difference = stale(file, one.source.text) if file else ""
    if difference:
        print(f"{file} is not current (FA0711)\n{difference}", file=sys.stderr)
    elif not given.json:
        print(f"{one.name}: {f'{file} is current' if file else 'has no committed file'}")
    return {"name": one.name, "current": not difference}, REFUSED if difference else OK


def _compile(given: Given, path: str, one: "Member", asked: bool) -> tuple[object, int]:
    """A member's files and its report; what was asked for by settings is never committed."""
    from fa4gen.build import build, generated_file, spills, write_generated
    from fa4gen.options import Options

    file = None if asked else generated_file(path, one.checked.schedule, one.name)
    if file:
        write_generated(file, one.source.text)
    if not given.json:
        print(f"{one.name}: checked; compiling for {one.checked.schedule.target} …", flush=True)
    folder = given.output / one.name if given.output else Path("build") / one.name
    made = build(one, folder, Options.from_environment())
    slow = spills(made, one.checked.schedule, "error" if given.strict else "warning")
    if slow:
        print(slow.render(), file=sys.stderr)
    if not given.json:
        print(made.summary())
        print(f"written to {folder}{f', source also to {file}' if file else ''}")
    return made.as_dict(), REFUSED if slow and given.strict else OK


def _write_kit(given: Given, made: list["Member"]) -> None:
    from fa4gen.bench import verb
    from fa4gen.options import Options

    options = Options.from_environment()
    where = verb.write(given.kit, [verb.kit_kernel(one, options) for one in made], None, options)
    if not given.json:
        print(_carry(where))


def _carry(kit: Path) -> str:
    return (
        f"{kit}: carry it to a GPU machine; `python3 run.py --out DIR` there,"
        " then `fa4gen bench --keep DIR` here"
    )


def bench_arguments(parser: Arguments) -> None:
    schedule_arguments(parser, least="*")
    parser.add_argument("--kit", type=Path, metavar="DIR", help="write what a GPU machine needs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep results that came back")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="shared objects of peers")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS")


def bench_verb(given: Given) -> int:
    from fa4gen.bench import verb
    from fa4gen.bench.session import refuse_without_gpu
    from fa4gen.options import Options

    if not given.keep and not given.schedules:
        given.parser.error("which schedules? (or --keep DIR)")
    if given.keep:
        file, table = verb.keep(given.keep)
    else:
        options = Options.from_environment()
        if not given.kit:
            refuse_without_gpu()
        made = verb.kernels(given.schedules, settings(given), given.variant, options)
        if given.kit:
            where = verb.write(given.kit, made, given.peers, options)
            print(json.dumps({"kit": str(where)}) if given.json else _carry(where))
            return OK
        file, table = verb.measure(made, given.peers, options, given.budget)
    print(json.dumps({"kept": str(file)}) if given.json else f"{table}\nkept in {file}")
    return OK


def show_arguments(parser: Arguments) -> None:
    schedule_arguments(parser)
    parser.add_argument("--at", choices=LEVELS, default="program", help="which level to print")


def show_verb(given: Given) -> int:
    from fa4gen.show import show

    chosen, done = settings(given), []
    for path in given.schedules:
        text = show(path, given.at, chosen, given.variant)
        done.append({"schedule": path, "level": given.at, "text": text})
        if not given.json:
            print(text, end="")
    if given.json:
        print(json.dumps(done, indent=2))
    return OK
