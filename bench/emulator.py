"""Times the emulator: seconds and warp instructions a second, with and without race detection.

    python bench/emulator.py OBJECT PTX --target sm_100a --call peer [--json FILE]

One CTA (two query tiles, 256 queries) over 1024 keys, one head, full; the values are judged in the
same run. --call says how the object's `fwd` is called: `peer` (FlashAttention-4's exported forward)
or `own` (this project's). Each figure is the median of --runs runs on one core;
loading the object and reading the PTX are timed apart.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from emulator_peers import environment, tail

from fa4gen.emulator.api import Emulator
from fa4gen.emulator.attention import AttentionProblem, judge_forward, make_inputs


def main() -> int:
    """The command; exit code 1 if a value was wrong or a fault was reported."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("object", type=Path)
    parser.add_argument("ptx", type=Path)
    parser.add_argument("--target", default="sm_100a")
    parser.add_argument("--call", choices=("peer", "own"), default="peer")
    parser.add_argument("--seqlen-q", type=int, default=256)
    parser.add_argument("--seqlen-k", type=int, default=1024)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    problem = AttentionProblem(
        seqlen_q=args.seqlen_q,
        seqlen_k=args.seqlen_k,
        head_dim=args.head_dim,
        head_dim_v=args.head_dim,
    )
    rows = [measure(args, problem, races=races) for races in (False, True)]
    for row in rows:
        print(
            f"races {'on' if row['races'] else 'off'}: {row['seconds']:.2f} s "
            f"(of {row['all_seconds']}; {row['processor_seconds']} s of the processor), "
            f"{row['warp_instructions']} warp instructions, "
            f"{row['warp_instructions_per_second'] / 1e6:.2f} M/s, "
            f"{'right, no fault' if row['ok'] else 'WRONG OR FAULTY'}; "
            f"loading {row['load_seconds']:.2f} s"
        )
    if args.json:
        result = {"environment": environment(), "object": args.object.name, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0 if all(row["ok"] for row in rows) else 1


def measure(args: argparse.Namespace, p: AttentionProblem, *, races: bool) -> dict[str, object]:
    """The median of the runs, and whether all of them were right."""
    started = time.perf_counter()
    fwd = Emulator(target=args.target, races=races).load(args.object, ptx=[args.ptx])["fwd"]
    loading = time.perf_counter() - started
    x = make_inputs(p, 0)
    seconds, busy, good = [], [], True
    for _ in range(args.runs):
        out = torch.full((p.batch, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).bfloat16()
        lse = torch.full((p.batch, p.heads, p.seqlen_q), float("nan"))
        started, began = time.perf_counter(), time.process_time()
        report = fwd(x.q, x.k, x.v, out, lse, *tail(args.call, args.target, p))
        seconds.append(round(time.perf_counter() - started, 3))
        busy.append(round(time.process_time() - began, 3))
        good &= not report.faulty and all(v.right for v in judge_forward(p, x, out, lse))
    median = statistics.median(seconds)
    return {
        "races": races,
        "ok": good,
        "seqlen_q": p.seqlen_q,
        "seqlen_k": p.seqlen_k,
        "head_dim": p.head_dim,
        "seconds": median,
        "all_seconds": seconds,
        "processor_seconds": statistics.median(busy),
        "load_seconds": round(loading, 3),
        "warp_instructions": report.warp_instructions,
        "warp_instructions_per_second": round(report.warp_instructions / median),
    }


if __name__ == "__main__":
    sys.exit(main())
