"""The command line: a small function for each verb, and the table that lists them.

Exit codes: 0 done, 1 refused (an error in a schedule, a kernel that does not build), 2 wrong usage.
Nothing heavy is imported before the verb that needs it.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fa4gen.api import verbs
from fa4gen.diag import Fa4genError

from .about import list_arguments, list_verb, schema_verb
from .analyze import analyze_arguments, analyze_verb
from .arguments import (
    OK,
    REFUSED,
    USAGE,
    Arguments,
    Given,
    code_of,
    json_argument,
    schedule_arguments,
)
from .build import (
    bench_arguments,
    bench_verb,
    build_arguments,
    build_verb,
    show_arguments,
    show_verb,
)
from .check import check_verb
from .docs import docs_arguments, docs_verb
from .emulate import emulate_arguments, emulate_verb
from .explain import explain_arguments, explain_verb
from .explore import explore_arguments, explore_verb

__all__ = ["OK", "REFUSED", "USAGE", "main"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb: what it is for, its arguments, and what it does (returning an exit code)."""

    help: str
    arguments: Callable[[Arguments], None]
    run: Callable[[Given], int]


VERBS = {
    "check": Verb(
        help="check schedules, up to the proof", arguments=schedule_arguments, run=check_verb
    ),
    "build": Verb(
        help="source, PTX, cubin, shared object and report of each member",
        arguments=build_arguments,
        run=build_verb,
    ),
    "bench": Verb(
        help="check and time kernels beside the peers, here or by a kit",
        arguments=bench_arguments,
        run=bench_verb,
    ),
    "show": Verb(
        help="a schedule at one level of the compiler", arguments=show_arguments, run=show_verb
    ),
    "schema": Verb(
        help="the language as JSON Schema, for editors", arguments=json_argument, run=schema_verb
    ),
    "list": Verb(help="schedules, and what they serve", arguments=list_arguments, run=list_verb),
    "emulate": Verb(
        help="run the kernel in the emulator: values, races, hangs",
        arguments=emulate_arguments,
        run=emulate_verb,
    ),
    "analyze": Verb(
        help="the load of each unit, the loop's bound and calls, modelled",
        arguments=analyze_arguments,
        run=analyze_verb,
    ),
    "explore": Verb(
        help="the variants of a schedule's search: checked, ranked, compiled, timed",
        arguments=explore_arguments,
        run=explore_verb,
    ),
    "explain": Verb(
        help="what an error code means, or why a schedule is sound",
        arguments=explain_arguments,
        run=explain_verb,
    ),
    "pack": Verb(
        help="kernels built ahead of time, for machines without the DSL",
        arguments=verbs.pack_arguments,
        run=verbs.pack,
    ),
    "docs": Verb(
        help="write the pages of documentation that are made from the code",
        arguments=docs_arguments,
        run=docs_verb,
    ),
    "cache": Verb(
        help="compiled kernels on disk", arguments=verbs.cache_arguments, run=verbs.cache
    ),
}


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
