"""Damages a forward kernel's PTX in one place at a time, and shows what the emulator says of each.

    python bench/emulator_damage.py OBJECT PTX [--call own|peer] [--causal] [--json FILE]

Each mutant (see fa4gen/emulator/damage.py) runs on small problems and several seeds, until one
reports a fault or gives wrong values; a run that takes longer than --limit seconds is ended and
counts as a hang of the emulator. Exit code 1 if a mutant hung or crashed the emulator. Those that
pass in silence are listed last, by name: each needs a reason.
"""

import argparse
import json
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
from emulator_peers import environment, tail

from fa4gen.emulator.api import Emulator
from fa4gen.emulator.attention import AttentionProblem, judge_forward, make_inputs
from fa4gen.emulator.damage import damages

# queries, keys, spread: one block; a ring lapped twice, with rescaling; lengths that fill no tile;
# more tiles than CTAs
CASES = ((256, 128, 1.0), (256, 896, 8.0), (200, 300, 1.0), (300, 640, 8.0))


def verdict(args: argparse.Namespace, ptx: Path) -> dict[str, object]:
    """Runs a PTX text until something is seen."""
    ran = 0
    for seed in range(args.seeds):
        for sq, sk, spread in CASES:
            problem = AttentionProblem(
                seqlen_q=sq,
                seqlen_k=sk,
                head_dim=args.head_dim,
                head_dim_v=args.head_dim,
                causal=args.causal,
                spread=spread,
            )
            found = run(args, ptx, problem, seed)
            ran += 1
            if found:
                return {**found, "runs": ran, "seed": seed, "seqlens": [sq, sk]}
    return {"verdict": "silent", "runs": ran}


def run(
    args: argparse.Namespace, ptx: Path, p: AttentionProblem, seed: int
) -> dict[str, object] | None:
    """One run: what was seen, or None."""
    emulator = Emulator(target=args.target, seed=seed, races=True)
    x = make_inputs(p, seed)
    out = torch.full((p.batch, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).bfloat16()
    lse = torch.full((p.batch, p.heads, p.seqlen_q), float("nan"))
    report = emulator.load(args.object, ptx=[ptx])["fwd"](
        x.q, x.k, x.v, out, lse, *tail(args.call, args.target, p, args.sms)
    )
    for first in (*report.faults, *report.races):
        return {"verdict": first.kind, "says": str(first)[:400]}
    if report.deadlock:
        return {"verdict": "deadlock", "says": str(report.deadlock)[:400]}
    for first in report.warnings:
        return {"verdict": "warning", "says": str(first)[:400]}
    wrong = [v for v in judge_forward(p, x, out, lse) if not v.right]
    return {"verdict": "wrong value", "says": str(wrong[0])} if wrong else None


def serve(args: argparse.Namespace) -> int:
    """The worker: names of PTX files in, verdicts out."""
    for line in sys.stdin:
        try:
            answer = verdict(args, Path(line.strip()))
        except Exception as failure:
            answer = {"verdict": "refused", "says": f"{type(failure).__name__}: {failure}"[:400]}
        print(json.dumps(answer), flush=True)
    return 0


class Worker:
    """A process that runs mutants; it is replaced when one hangs or kills it."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self.process: subprocess.Popen[str] | None = None

    def ask(self, ptx: Path) -> dict[str, object]:
        """The verdict on a file, within the limit."""
        if self.process is None:
            self.process = subprocess.Popen(
                [sys.executable, *sys.argv, "--worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = self.process
        print(ptx, file=process.stdin, flush=True)
        ready, _, _ = select.select([process.stdout], [], [], self.limit_s)
        line = process.stdout.readline() if ready and process.stdout else ""
        if line:
            return dict(json.loads(line))
        process.kill()
        self.process = None
        return {"verdict": "CRASH" if ready else "EMULATOR HANGS", "exit": process.wait()}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("object", type=Path)
    parser.add_argument("ptx", type=Path)
    parser.add_argument("--target", default="sm_100a")
    parser.add_argument("--call", choices=("peer", "own"), default="own")
    parser.add_argument("--sms", type=int, default=1, help="what a persistent kernel is told")
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--match", default="")
    parser.add_argument("--every", type=int, default=1, help="only each N-th mutant")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return serve(args)
    worker, rows = Worker(args.limit), []
    chosen = [d for d in damages(args.ptx.read_text()) if args.match in d.name][:: args.every]
    baseline = worker.ask(args.ptx)
    print(f"undamaged: {baseline}", flush=True)
    if baseline["verdict"] != "silent":
        return 1  # a kernel that is caught as it is proves nothing about its mutants
    with tempfile.TemporaryDirectory() as folder:
        for n, damage in enumerate(chosen):
            mutant = Path(folder) / "mutant.ptx"
            mutant.write_text(damage.text)
            started = time.perf_counter()
            row = {"name": damage.name, "original": damage.original, **worker.ask(mutant)}
            row["seconds"] = round(time.perf_counter() - started, 2)
            rows.append(row)
            says = str(row.get("says", "")).split("\n")[0][:150]
            print(
                f"[{n + 1}/{len(chosen)}] {row['name']:20} {row['verdict']:14} {says}", flush=True
            )
    counts = Counter(str(r["verdict"]) for r in rows)
    print(f"{len(rows)} mutants: {', '.join(f'{n} {k}' for k, n in counts.most_common())}")
    for row in rows:
        if row["verdict"] in ("silent", "CRASH", "EMULATOR HANGS", "refused"):
            print(f"{row['verdict']}: {row['name']}: {row['original']}")
    if args.json:
        result = {"environment": environment(), "ptx": args.ptx.name, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if counts["CRASH"] or counts["EMULATOR HANGS"] else 0


if __name__ == "__main__":
    sys.exit(main())
