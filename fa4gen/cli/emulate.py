"""The verb `emulate`: the kernel on this processor, judged."""

import json
import sys

from .arguments import OK, REFUSED, Arguments, Given, schedule_arguments, settings


def emulate_arguments(parser: Arguments) -> None:
    schedule_arguments(parser)
    sizes = {"batch": 1, "heads": 2, "heads-kv": 1, "seqlen-q": 300, "seqlen-k": 500}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, metavar="N")
    parser.add_argument("--causal", action="store_true", help="short for --set causal=true")
    parser.add_argument(
        "--window",
        type=window,
        metavar="LEFT,RIGHT",
        help="keys before and behind its own place that a query sees; `open` for all",
    )
    parser.add_argument("--softcap", type=float, metavar="CAP", help="a bound of the scores")
    parser.add_argument(
        "--splits", type=int, default=1, metavar="N", help="CTAs that share the keys of a tile"
    )
    for name, doc in (
        ("lengths-q", "packed sequences of queries"),
        ("lengths-k", "packed sequences of keys"),
        ("used-k", "keys of each sequence that are there"),
    ):
        parser.add_argument(
            f"--{name}", type=lengths, metavar="N,N,…", help=f"{doc}, one number each"
        )
    parser.add_argument(
        "--page-size", type=int, default=0, metavar="N", help="rows of a page of keys; 0: no pages"
    )
    parser.add_argument("--seed", type=int, default=0, help="of inputs and of the interleaving")
    parser.add_argument("--no-races", action="store_true", help="do not look for races: faster")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help="CTAs side by side")
    parser.add_argument(
        "--num-sms", type=int, default=2, metavar="N", help="what a persistent kernel is told"
    )


def window(text: str) -> tuple[int | None, int | None]:
    """A window as it is written: two whole numbers, or `open`. Raises ValueError."""
    left, right = (None if part.strip() == "open" else int(part) for part in text.split(","))
    return left, right


def lengths(text: str) -> tuple[int, ...]:
    """Lengths as they are written: whole numbers, with commas. Raises ValueError."""
    return tuple(int(part) for part in text.split(","))


def emulate_verb(given: Given) -> int:
    from fa4gen.emulate import bar, emulate

    names = [
        "variant",
        "batch",
        "heads",
        "heads_kv",
        "seqlen_q",
        "seqlen_k",
        "window",
        "softcap",
        "splits",
        "lengths_q",
        "lengths_k",
        "used_k",
        "page_size",
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
