"""Runs the breadth of the forward in the emulator: what users bring, case by case, on one target.

    python bench/emulator_breadth.py [--target sm_100a|sm_90a] [--only GROUP,…] [--seeds 0,1]
                                     [--jobs 2] [--json FILE]

Groups: head_dims, masks, lengths, heads (packed, of any ratio), pages, splits, schedulers (all of
the target's, with more tiles than CTAs). Each run is compared with float64 and looked through for
races, hangs and accesses outside of the tensors. Exit code 0: all right.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from emulator_peers import environment

from fa4gen.diag import Fa4genError
from fa4gen.dsl.language import TILE_SCHEDULERS
from fa4gen.emulate import emulate

ROOT = Path(__file__).parents[1]
FAMILIES = {"sm_100a": "fwd", "sm_90a": "fwd_sm90"}
HEAD_DIMS = (8, 40, 64, 72, 80, 96, 128, 160, (192, 128), 256)
MASKED_DIMS = (64, 128, 256)
PAIRS = ((1, 513), (129, 300), (300, 129), (513, 513))
WINDOWS = ((60, 20), (60, None), (None, 0), (0, 0), (-10, 40))
MASKS: dict[str, dict[str, str]] = {
    "softcap": {"softcap": "true"},
    "alibi": {"alibi": "true"},
    "sinks": {"sinks": "true"},
    "all": {"softcap": "true", "alibi": "true", "sinks": "true"},
}
LENGTHS = (
    {"lengths_q": (5, 0, 300, 1, 0), "lengths_k": (7, 30, 0, 1, 140)},
    {"lengths_q": (256, 192, 128), "lengths_k": (128, 1, 129)},
    {"lengths_q": (3, 0, 2, 70), "seqlen_k": 300, "used_k": (300, 20, 0, 150)},
    {"seqlen_q": 3, "seqlen_k": 300, "batch": 4, "used_k": (300, 0, 129, 2)},
    {"lengths_q": (9, 70), "lengths_k": (30, 200), "used_k": (12, 200)},
)
RATIOS = ((3, 1), (8, 1), (6, 2), (16, 2))
PAGES = (16, 32, 48, 64, 128, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel of a family and one call of it."""

    group: str
    settings: dict[str, str]
    call: dict[str, object] = field(default_factory=dict)


def on(**settings: object) -> dict[str, str]:
    """Settings as they are written."""
    return {k: str(v).lower() for k, v in settings.items()}


def cases(target: str) -> Iterator[Case]:  # noqa: C901 - a list
    """All of them; those of one kernel are neighbours."""
    for d, causal in product(HEAD_DIMS, (False, True)):
        dims = d if isinstance(d, tuple) else (d, d)
        settings = on(causal=causal, head_dim=dims[0], head_dim_v=dims[1])
        for sq, sk in PAIRS:
            call = {"heads": 2, "seqlen_q": sq, "seqlen_k": sk}
            yield Case(group="head_dims", settings=settings, call=call)
    for d, causal in product(MASKED_DIMS, (False, True)):
        plain = on(causal=causal, head_dim=d, head_dim_v=d)
        sizes = {"heads": 2, "seqlen_q": 200, "seqlen_k": 330}
        for window in WINDOWS:
            yield Case(group="masks", settings=plain, call={**sizes, "window": window})
        for name, mask in MASKS.items():
            more = {"window": WINDOWS[0]} if name == "all" else {}
            yield Case(group="masks", settings=plain | mask, call=sizes | more)
    for causal, sizes in product((False, True), LENGTHS):
        call = {"heads": 2, "seqlen_q": 0, "seqlen_k": 0} | sizes
        yield Case(
            group="lengths", settings=on(causal=causal, head_dim=64, head_dim_v=64), call=call
        )
    for causal, (heads, kv), sq in product((False, True), RATIOS, (1, 5, 200)):
        settings = on(causal=causal, pack_gqa=True, head_dim=64, head_dim_v=64)
        call = {"heads": heads, "heads_kv": kv, "seqlen_q": sq, "seqlen_k": 300}
        yield Case(group="heads", settings=settings, call=call)
    for size, d in product(PAGES, (64, 128)):
        settings = on(causal=True, head_dim=d, head_dim_v=d)
        call = {"heads": 2, "batch": 3, "seqlen_q": 5, "seqlen_k": 600, "page_size": size}
        yield Case(group="pages", settings=settings, call=call | {"used_k": (600, 0, 273)})
    for splits, packed in product((2, 3, 7), (False, True)):
        settings = on(causal=True, pack_gqa=packed, head_dim=64, head_dim_v=64)
        call = {"heads": 8, "batch": 2, "seqlen_q": 3, "seqlen_k": 700, "splits": splits}
        yield Case(group="splits", settings=settings, call=call)
    for scheduler, causal in product(TILE_SCHEDULERS, (False, True)):
        if "clc" in scheduler and target != "sm_100a":
            continue
        settings = on(causal=causal, head_dim=64, head_dim_v=64)
        settings["levels.tile.scheduler"] = scheduler
        call = {"batch": 2, "heads": 3, "seqlen_q": 600, "seqlen_k": 300, "num_sms": 2}
        yield Case(group="schedulers", settings=settings, call=call)


def run(target: str, case: Case, seeds: list[int]) -> dict[str, object]:
    """One case with each seed."""
    file = ROOT / "schedules" / f"{FAMILIES[target]}.yaml"
    failures, instructions, name, worst = [], 0, "", 0.0
    for seed in seeds:
        try:
            done = emulate(file, settings=case.settings, seed=seed, **case.call)  # type: ignore[arg-type]
        except Fa4genError as e:
            failures.append(str(e)[:500])
            continue
        name, instructions = done.name, instructions + done.report.warp_instructions
        worst = max(worst, *(v.max_error / max(v.plain_max_error, 1e-9) for v in done.verdicts[:1]))
        failures += [] if done.ok else [str(done)[:500]]
    call = {k: list(v) if isinstance(v, tuple) else v for k, v in case.call.items()}
    return {
        "group": case.group,
        "kernel": name,
        "settings": case.settings,
        "call": call,
        "runs": len(seeds),
        "right_and_without_a_fault": len(seeds) - len(failures),
        "of_plain": round(worst, 3),
        "warp_instructions": instructions,
        "failures": failures,
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", choices=list(FAMILIES), default="sm_100a")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    seeds = [int(s) for s in args.seeds.split(",")]
    chosen = [c for c in cases(args.target) if not args.only or c.group in args.only.split(",")]
    rows: list[dict[str, object]] = []
    with ProcessPoolExecutor(args.jobs) as pool:
        given = ([args.target] * len(chosen), chosen, [seeds] * len(chosen))
        for row in pool.map(run, *given, chunksize=5):
            rows.append(row)
            if row["failures"]:
                print(json.dumps(row, indent=1), flush=True)
    counts = {}
    for group in dict.fromkeys(c.group for c in chosen):
        mine = [r for r in rows if r["group"] == group]
        runs, right = (
            sum(int(str(r[k])) for r in mine) for k in ("runs", "right_and_without_a_fault")
        )
        counts[group] = {"cases": len(mine), "runs": runs, "right_and_without_a_fault": right}
        print(f"{args.target} {group}: {len(mine)} cases, {right} of {runs} runs right, no fault")
    if args.json:
        head = {"environment": environment(), "target": args.target, "groups": counts}
        lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
        text = json.dumps(head, indent=1).removesuffix("\n}")
        args.json.write_text(f'{text},\n "cases": [\n{lines}\n ]\n}}\n')
    return 0 if rows and not any(r["failures"] for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
