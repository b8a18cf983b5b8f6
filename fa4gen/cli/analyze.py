"""The verb `analyze`: what a block asks of each unit, what bounds the loop, how long calls take."""

import json
from pathlib import Path

from .arguments import OK, Arguments, Given, schedule_arguments, settings

TOKENS = 32768  # of a batch, as published comparisons have it


def analyze_arguments(parser: Arguments) -> None:
    schedule_arguments(parser)
    parser.add_argument("--target", metavar="PART", help="sm_90a, sm_100a or sm_103a")
    parser.add_argument(
        "--seqlen", default="1024,4096,16384", metavar="N,…", help="lengths of calls"
    )
    parser.add_argument("--heads", type=int, default=16, metavar="N")
    parser.add_argument(
        "--batch", type=int, metavar="N", help=f"left out: {TOKENS} tokens in all, at least 1"
    )
    parser.add_argument(
        "--compile", action="store_true", help="count instructions in the machine code"
    )
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="another kernel's cubin or shared object: static counts side by side (compiles)",
    )


def lengths(given: Given) -> list[int]:
    """The lengths asked for; anything else than positive numbers ends the program (2)."""
    words = given.seqlen.split(",")
    if not all(w.strip().isdigit() and int(w) > 0 for w in words):
        given.parser.error(f"--seqlen takes lengths (1024,4096), not `{given.seqlen}`")
    return [int(w) for w in words]


def analyze_verb(given: Given) -> int:
    from fa4gen.analyze.analysis import analyze
    from fa4gen.analyze.text import markdown, render, side_by_side
    from fa4gen.options import Options
    from fa4gen.runtime.report import static_counts

    chosen = settings(given) | ({"target": given.target} if given.target else {})
    shapes = [(given.batch or max(1, TOKENS // n), given.heads, n) for n in lengths(given)]
    options = Options.from_environment() if given.compile or given.beside else None
    others = [(f.stem, static_counts(f)) for f in given.beside]
    done, kernels = [], []
    for path in given.schedules:
        a = analyze(path, chosen, given.variant, shapes, options)
        done.append(a.as_dict())
        kernels += [(a.one.name, a.code)] if a.code else []
        if not given.json:
            print(render(a), flush=True)
    table = side_by_side([*kernels, *others]) if others else []
    if given.json:
        print(json.dumps({"schedules": done, "side_by_side": table}, indent=2))
    elif table:
        print("softmax loops (most MUFU.EX2; of equals the shortest), instructions of a warp")
        print(markdown(table), end="")
    return OK
