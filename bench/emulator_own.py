"""Runs this project's schedules in the emulator, and compares them with float64.

    python bench/emulator_own.py [SCHEDULE[:key=value|:variant]...] [--seeds 0,1,2] [--json FILE]

Without names: every shipped schedule, full and causal, in bf16. Each is built (or taken from the
cache) and run over lengths 1, 127, 128, 129, 300, 513 of queries and keys, with grouped heads, and
with fewer multiprocessors than tiles, so that persistent CTAs come round. Exit code 0: all values
right, no race, no hang, no other fault; 1: not.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from emulator_peers import describe, environment, seen, summary, tail

from fa4gen import driver
from fa4gen.emit.render import render
from fa4gen.emulator.api import Emulator
from fa4gen.emulator.attention import AttentionProblem, judge_forward, make_inputs
from fa4gen.options import Options
from fa4gen.runtime.compile import Compiled, Request, compile_cached

ROOT = Path(__file__).parents[1]
PAIRS = (
    *((1, 1), (127, 127), (128, 128), (129, 129), (300, 300), (513, 513)),
    *((1, 513), (129, 513), (513, 129), (300, 127), (127, 300), (513, 1), (128, 1)),
)


def shipped() -> list[str]:
    """Every schedule of the project, full and causal."""
    files = sorted((ROOT / "schedules").glob("*.yaml"))
    return [f"{f.stem}{mask}" for f in files for mask in ("", ":causal=true")]


def build(request: str) -> tuple[driver.Checked, Compiled]:
    """The checked schedule, and what was compiled from it."""
    name, *rest = request.split(":")
    settings = dict(part.split("=", 1) for part in rest if "=" in part)
    variant = next((part for part in rest if "=" not in part), None)
    checked = driver.check(ROOT / "schedules" / f"{name}.yaml", settings=settings, variant=variant)
    source = render(checked.program)
    made = compile_cached(
        Request(name=checked.schedule.name, target=checked.schedule.target, text=source.text),
        Options.from_environment(),
    )
    return checked, made


def runs(
    request: str, seeds: list[int], pairs: list[tuple[int, int]]
) -> Iterator[dict[str, object]]:
    """One row for each seed and pair of lengths."""
    checked, made = build(request)
    schedule = checked.schedule
    for seed in seeds:
        emulator = Emulator(target=schedule.target, seed=seed)
        fwd = emulator.load(made.shared_object, ptx=[made.ptx])["fwd"]
        for sq, sk in pairs:
            p = AttentionProblem(
                batch=2 if sq < 200 else 1,
                heads=2,
                heads_kv=1,
                seqlen_q=sq,
                seqlen_k=sk,
                head_dim=schedule.head_dim,
                head_dim_v=schedule.head_dim_v,
                causal=schedule.causal,
                dtype={"bf16": "bfloat16", "fp16": "float16"}[schedule.dtype],
            )
            x = make_inputs(p, seed)
            out = torch.full_like(x.q, float("nan"))
            lse = torch.full((p.batch, p.heads, sq), float("nan"))
            started = time.perf_counter()
            report = fwd(x.q, x.k, x.v, out, lse, *tail("own", schedule.target, p))
            verdicts = judge_forward(p, x, out, lse)
            yield {
                "kernel": request,
                "seed": seed,
                "problem": asdict(p),
                "seconds": round(time.perf_counter() - started, 3),
                "warp_instructions": report.warp_instructions,
                "first_faults": seen(report)[:3],
                "verdicts": [asdict(v) for v in verdicts],
                "ok": not report.faulty and all(v.right for v in verdicts),
            }


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
