"""Runs this project's schedules in the emulator, and compares them with float64.

    python bench/emulator_own.py [SCHEDULE[:key=value|:variant]...] [--seeds 0,1,2] [--json FILE]

Without names: every shipped schedule, forward and backward, full and causal, in bf16. Each is built
(or taken from the cache) and run over lengths 1, 127, 128, 129, 300, 513 of queries and keys, with
grouped heads, and with fewer multiprocessors than tiles, so that persistent CTAs come round. A
schedule over lists of blocks is given lists of half of them. Exit code 0: all values right, no
race, no hang, no other fault; 1: not.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from emulator_peers import describe, environment, seen, summary

from fa4gen import driver
from fa4gen.dsl import load
from fa4gen.emit.render import render
from fa4gen.emulate import emulate
from fa4gen.options import Options
from fa4gen.runtime.compile import Compiled, Request, compile_cached

ROOT = Path(__file__).parents[1]
PAIRS = (
    *((1, 1), (127, 127), (128, 128), (129, 129), (300, 300), (513, 513)),
    *((1, 513), (129, 513), (513, 129), (300, 127), (127, 300), (513, 1), (128, 1)),
)


def shipped() -> list[str]:
    """Every schedule of the project, with every mask it serves."""
    found = []
    for file in sorted((ROOT / "schedules").glob("*.yaml")):
        masks = load(file).serves["causal"]
        found += [f"{file.stem}:causal={str(mask).lower()}" for mask in masks]
    return found


def asked(request: str) -> tuple[Path, dict[str, str], str | None]:
    """The schedule's file, settings and variant of a request."""
    name, *rest = request.split(":")
    settings = dict(part.split("=", 1) for part in rest if "=" in part)
    return (
        ROOT / "schedules" / f"{name}.yaml",
        settings,
        next((part for part in rest if "=" not in part), None),
    )


def build(request: str) -> tuple[driver.Checked, Compiled]:
    """The checked schedule, and what was compiled from it."""
    file, settings, variant = asked(request)
    checked = driver.check(file, settings=settings, variant=variant)
    made = compile_cached(
        Request(
            name=checked.schedule.name,
            target=checked.schedule.target,
            text=render(checked.program).text,
        ),
        Options.from_environment(),
    )
    return checked, made


def runs(
    request: str, seeds: list[int], pairs: list[tuple[int, int]]
) -> Iterator[dict[str, object]]:
    """One row for each seed and pair of lengths."""
    file, settings, variant = asked(request)
    for seed in seeds:
        for sq, sk in pairs:
            got = emulate(
                file,
                settings=settings,
                variant=variant,
                batch=2 if sq < 200 else 1,
                heads=2,
                heads_kv=1,
                seqlen_q=sq,
                seqlen_k=sk,
                seed=seed,
            )
            row = got.as_dict()
            yield {"kernel": request, **row, "first_faults": seen(got.report)[:3]}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schedules", nargs="*")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--pairs", default=",".join(f"{q}x{k}" for q, k in PAIRS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seeds = [int(s) for s in args.seeds.split(",")]
    pairs = [(int(q), int(k)) for q, k in (pair.split("x") for pair in args.pairs.split(","))]
    rows: list[dict[str, object]] = []
    for request in args.schedules or shipped():
        done = []
        for row in runs(request, seeds, pairs):
            done.append(row)
            if not row["ok"]:
                print(describe(row), flush=True)
        worst = max(v["max_error"] / max(v["plain_max_error"], 1e-9) for v in firsts(done))
        print(
            f"{request}: {sum(bool(r['ok']) for r in done)} of {len(done)} right, no fault; "
            f"largest error at most {worst:.2f} of plain PyTorch's; "
            f"{sum(r['warp_instructions'] for r in done)} warp instructions in "
            f"{sum(r['seconds'] for r in done):.1f} s",
            flush=True,
        )
        rows += done
        if args.json:
            result = {"environment": environment(), "kernels": summary(rows)}
            args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if rows and all(r["ok"] for r in rows) else 1


def firsts(rows: list[dict[str, object]]) -> list[dict[str, float]]:
    """The verdicts on the outputs whose error plain PyTorch has too."""
    return [v for r in rows for v in r["verdicts"][:1] if v["plain_max_error"]] or [
        {"max_error": 0.0, "plain_max_error": 1.0}
    ]


if __name__ == "__main__":
    sys.exit(main())
