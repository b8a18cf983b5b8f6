"""The command line: one small function for each verb, and the table that lists them.

Exit codes: 0 done, 1 refused (an error in a schedule, a kernel that does not build), 2 wrong usage.
Nothing heavy is imported before the verb that needs it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fa4gen.api import verbs
from fa4gen.diag import Fa4genError

if TYPE_CHECKING:
    from fa4gen.build import Member
    from fa4gen.driver import Checked

Arguments = argparse.ArgumentParser
Given = argparse.Namespace

OK, REFUSED, USAGE = 0, 1, 2
USAGE_CODES = ("FA0111", "FA0112")  # a file that is not there, a setting that does not exist
SCHEDULES = Path("schedules")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: what it is for, its arguments, and what it does (returning an exit code)."""

    help: str
    arguments: Callable[[Arguments], None]
    run: Callable[[Given], int]


# arguments that verbs share --------------------------------------------------------------------


def _schedule_arguments(parser: Arguments, least: str = "+") -> None:
    parser.add_argument("schedules", nargs=least, metavar="SCHEDULE", help="schedule files (YAML)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a parameter (kv_stages=2), the problem (causal=true) or a path (roles.mma.warps=1)",
    )
    parser.add_argument("--variant", metavar="NAME", help="a variant that the schedule names")
    _json_argument(parser)


def _json_argument(parser: Arguments) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def settings(given: Given) -> dict[str, str]:
    """`--set` as a mapping; a setting without `=` ends the program (2)."""
    found: dict[str, str] = {}
    for text in given.set:
        key, equals, value = text.partition("=")
        if not equals:
            given.parser.error(f"--set takes KEY=VALUE, not `{text}`")
        found[key.strip()] = value.strip()
    return found


# check -----------------------------------------------------------------------------------------


def _check(given: Given) -> int:
    from fa4gen.driver import check

    chosen, results, code = settings(given), [], OK
    for file in given.schedules:
        try:
            checked = check(file, settings=chosen, variant=given.variant)
        except Fa4genError as e:
            code = max(code, code_of(e))
            errors = [d.as_dict() for d in e.diagnostics]
            results.append({"schedule": file, "sound": False, "errors": errors})
            if not given.json:
                print(e, file=sys.stderr)
            continue
        results.append({"schedule": file, "sound": True, **_facts(checked)})
        if not given.json:
            print(_summary(file, checked))
    if given.json:
        print(json.dumps(results, indent=2))
    return code


def _facts(checked: "Checked") -> dict[str, object]:
    schedule, plan = checked.schedule, checked.plan
    return {
        "target": schedule.target,
        "problem": {
            "dtype": schedule.dtype,
            "causal": schedule.causal,
            "head_dim": schedule.head_dim,
            "head_dim_v": schedule.head_dim_v,
        },
        "threads": plan.threads,
        "smem_bytes": plan.smem_bytes,
        "tmem_columns": plan.tmem_columns,
        "stages": dict(plan.stages),
        "proof": [list(fact) for fact in checked.program.evidence],
    }


def _summary(file: str, checked: "Checked") -> str:
    schedule, plan = checked.schedule, checked.plan
    mask = "causal" if schedule.causal else "full"
    rings = ", ".join(f"{n} {d}" for n, d in plan.stages.items() if d > 1)
    return "\n".join(
        [
            f"{file}: sound for {schedule.target}, {schedule.dtype}, {mask}, "
            f"head dim {schedule.head_dim}",
            f"  {plan.threads} threads, {plan.smem_bytes} bytes of shared memory, "
            f"{plan.tmem_columns} columns of tensor memory{'; stages: ' if rings else ''}{rings}",
            *(f"  {what}: {fact}" for what, fact in checked.program.evidence),
        ]
    )


# build, show -----------------------------------------------------------------------------------


def _build_arguments(parser: Arguments) -> None:
    _schedule_arguments(parser)
    parser.add_argument(
        "-o", "--output", type=Path, metavar="DIR", help="folder of what is built (build/MEMBER)"
    )
    parser.add_argument(
        "--check", action="store_true", help="only compare the committed files under generated/"
    )


def _build(given: Given) -> int:
    from fa4gen.build import members, refuse_missing

    refuse_missing(given.schedules)
    chosen, code, done = settings(given), OK, []
    for path in given.schedules:
        for one in members(path, chosen, given.variant):
            made, result = _build_one(given, path, one, bool(chosen or given.variant))
            done.append(made)
            code = max(code, result)
    if given.json:
        print(json.dumps(done, indent=2))
    return code


def _build_one(given: Given, path: str, one: "Member", asked: bool) -> tuple[object, int]:
    from fa4gen.build import build, generated_file, spills, stale, write_generated
    from fa4gen.options import Options

    file = None if asked else generated_file(path, one.checked.schedule, one.name)
    if given.check:
        difference = stale(file, one.source.text) if file else ""
        if difference:
            print(f"{file} is not current (FA0711)\n{difference}", file=sys.stderr)
        elif not given.json:
            print(f"{one.name}: {f'{file} is current' if file else 'has no committed file'}")
        return {"name": one.name, "current": not difference}, REFUSED if difference else OK
    if file:
        write_generated(file, one.source.text)
    if not given.json:
        print(f"{one.name}: checked; compiling for {one.checked.schedule.target} …", flush=True)
    folder = given.output / one.name if given.output else Path("build") / one.name
    made = build(one, folder, Options.from_environment())
    if slow := spills(made, one.checked.schedule):
        print(slow.render(), file=sys.stderr)
    if not given.json:
        print(made.summary())
        print(f"written to {folder}{f', source also to {file}' if file else ''}")
    return made.as_dict(), OK


def _bench_arguments(parser: Arguments) -> None:
    _schedule_arguments(parser, least="*")
    parser.add_argument("--kit", type=Path, metavar="DIR", help="write what a GPU machine needs")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep results that came back")
    parser.add_argument("--peers", type=Path, metavar="DIR", help="shared objects of peers")
    parser.add_argument("--budget", type=float, default=540.0, metavar="SECONDS")


def _bench(given: Given) -> int:
    from fa4gen.bench import verb
    from fa4gen.options import Options

    if given.keep:
        print(verb.keep(given.keep))
        return OK
    if not given.schedules:
        given.parser.error("which schedules? (or --keep DIR)")
    options = Options.from_environment()
    made = verb.kernels(given.schedules, settings(given), given.variant, options)
    if given.kit:
        where = verb.write(given.kit, made, given.peers, options)
        print(f"{where}: carry it to a GPU machine; `python3 run.py --out DIR` there, then --keep")
        return OK
    print(verb.measure(made, given.peers, options, given.budget))
    return OK


LEVELS = ("plan", "program", "source", "ptx")


def _show_arguments(parser: Arguments) -> None:
    _schedule_arguments(parser)
    parser.add_argument("--at", choices=LEVELS, default="program", help="which level to print")


def _show(given: Given) -> int:
    from fa4gen.show import show

    for path in given.schedules:
        print(show(path, given.at, settings(given), given.variant), end="")
    return OK


# schema, list, explain -------------------------------------------------------------------------


def _schema(_given: Given) -> int:
    from fa4gen.dsl import json_schema

    print(json.dumps(json_schema(), indent=2))
    return OK


def _list_arguments(parser: Arguments) -> None:
    parser.add_argument(
        "folder", nargs="?", default=SCHEDULES, type=Path, help="folder of schedules"
    )
    _json_argument(parser)


def _list(given: Given) -> int:
    from fa4gen.dsl import load, variants

    if not given.folder.is_dir():
        print(f"there is no folder {given.folder}", file=sys.stderr)
        return USAGE
    rows = []
    for path in sorted(given.folder.glob("*.yaml")):
        schedule, others = load(path), variants(path)
        served = {k: list(v) for k, v in schedule.serves.items()}
        about = {"schedule": str(path), "target": schedule.target, "serves": served}
        rows.append({**about, "variants": others})
        if not given.json:
            serves = ", ".join(f"{k} {'|'.join(map(str, v))}" for k, v in served.items())
            print(f"{path}  {schedule.target}  {serves.lower()}")
            print(f"    variants: {', '.join(others) or 'none'}")
    if given.json:
        print(json.dumps(rows, indent=2))
    return OK


def _explain_arguments(parser: Arguments) -> None:
    parser.add_argument("code", nargs="?", help="FA and four digits; left out: all of them")
    _json_argument(parser)


def _explain(given: Given) -> int:
    from fa4gen.codes import CODES, page

    if given.code is None:
        rows = [{"code": c.code, "stage": c.stage, "title": c.title} for c in CODES.values()]
        text = "\n".join(f"{c.code}  {c.stage:<12} {c.title}" for c in CODES.values())
        print(json.dumps(rows, indent=2) if given.json else text)
        return OK
    code = CODES.get(given.code.upper())
    if code is None:
        print(f"no code {given.code}; `fa4gen explain` lists them", file=sys.stderr)
        return USAGE
    text = page(code)
    print(
        json.dumps({"code": code.code, "title": code.title, "page": text}) if given.json else text
    )
    return OK


# emulate ---------------------------------------------------------------------------------------


def _emulate_arguments(parser: Arguments) -> None:
    _schedule_arguments(parser)
    sizes = {"batch": 1, "heads": 2, "heads-kv": 1, "seqlen-q": 300, "seqlen-k": 500}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--causal", action="store_true", help="short for --set causal=true")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and of the interleaving")
    parser.add_argument("--no-races", action="store_true", help="do not look for races: faster")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="CTAs side by side")
    parser.add_argument(
        "--num-sms", type=int, default=2, metavar="N", help="what a persistent kernel is told"
    )


def _emulate(given: Given) -> int:
    from fa4gen.emulate import bar, emulate

    names = [
        "variant",
        "batch",
        "heads",
        "heads_kv",
        "seqlen_q",
        "seqlen_k",
        "seed",
        "processes",
        "num_sms",
    ]
    asked = {name: getattr(given, name) for name in names}
    chosen = settings(given) | ({"causal": "true"} if given.causal else {})
    shown = bar if sys.stderr.isatty() and not given.json else None
    done = []
    for path in given.schedules:
        done.append(
            emulate(path, settings=chosen, races=not given.no_races, progress=shown, **asked)
        )
        if not given.json:
            print(done[-1], flush=True)
    if given.json:
        print(json.dumps([one.as_dict() for one in done], indent=2))
    return OK if all(one.ok for one in done) else REFUSED


# the table -------------------------------------------------------------------------------------

VERBS = {
    "check": Verb(
        help="check schedules, up to the proof", arguments=_schedule_arguments, run=_check
    ),
    "build": Verb(
        help="source, PTX, cubin, shared object and report of each member",
        arguments=_build_arguments,
        run=_build,
    ),
    "bench": Verb(
        help="check and time kernels beside the peers, here or by a kit",
        arguments=_bench_arguments,
        run=_bench,
    ),
    "show": Verb(
        help="a schedule at one level of the compiler", arguments=_show_arguments, run=_show
    ),
    "schema": Verb(
        help="the language as JSON Schema, for editors", arguments=_json_argument, run=_schema
    ),
    "list": Verb(help="schedules, and what they serve", arguments=_list_arguments, run=_list),
    "emulate": Verb(
        help="run the kernel in the emulator: values, races, hangs",
        arguments=_emulate_arguments,
        run=_emulate,
    ),
    "explain": Verb(help="what an error code means", arguments=_explain_arguments, run=_explain),
    "pack": Verb(
        help="kernels built ahead of time, for machines without the DSL",
        arguments=verbs.pack_arguments,
        run=verbs.pack,
    ),
    "cache": Verb(
        help="compiled kernels on disk", arguments=verbs.cache_arguments, run=verbs.cache
    ),
}


def code_of(errors: Fa4genError) -> int:
    """The exit code of an error: wrong usage, or a refusal."""
    codes = {d.code for d in errors.diagnostics}
    return USAGE if codes and codes <= set(USAGE_CODES) else REFUSED


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one verb; the exit code is its result."""
    parser = argparse.ArgumentParser(
        prog="fa4gen", description="From pipeline schedules to FlashAttention kernels."
    )
    known = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in VERBS.items():
        one = known.add_parser(name, help=verb.help, description=verb.help)
        verb.arguments(one)
        one.set_defaults(parser=one)
    given = parser.parse_args(arguments)
    try:
        return VERBS[given.verb].run(given)
    except Fa4genError as e:
        shown = json.dumps({"errors": [d.as_dict() for d in e.diagnostics]}, indent=2)
        print(shown if getattr(given, "json", False) else e, file=sys.stderr)
        return code_of(e)
