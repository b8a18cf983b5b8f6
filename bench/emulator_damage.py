"""Damages a schedule's kernel in one place of its PTX at a time, and shows what the emulator says.

    python bench/emulator_damage.py fwd_hd128[:causal=true] [--match TEXT] [--json FILE]

Each mutant (see fa4gen/emulator/damage.py) runs on small problems and several seeds, until one
reports a fault or gives wrong values; a run that takes longer than --limit seconds is ended and
counts as a hang of the emulator. One that passes in silence must be redundant: `REASONS` says why,
kind by kind. Exit code 1 if the undamaged kernel is caught, a mutant hung or crashed the emulator,
or one is silent without a reason.
"""

import argparse
import json
import re
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from emulator_own import build
from emulator_peers import environment, tail

from fa4gen.emit.render import render
from fa4gen.emulate import run_backward
from fa4gen.emulator.api import Emulator, Function
from fa4gen.emulator.attention import (
    AttentionProblem,
    Inputs,
    Verdict,
    judge_forward,
    make_inputs,
)
from fa4gen.emulator.damage import damages
from fa4gen.emulator.report import Report
from fa4gen.ir.schedule import Schedule

# queries, keys, spread: one block; a ring lapped twice, with rescaling; lengths that fill no tile;
# more tiles than CTAs; a ring lapped so often that stray arrivals add up to a phase
CASES = (
    *((256, 128, 1.0), (256, 896, 8.0), (200, 300, 1.0), (300, 640, 8.0)),
    (128, 2304, 1.0),
)
# of the backward, two heads: one block each; several; a tile and a bit, seen by many queries
BACKWARD_CASES = ((128, 128, 1.0), (300, 200, 1.0), (520, 130, 8.0))


@dataclass(frozen=True, slots=True)
class Reason:
    """Why mutants of this `damage` to a statement whose text matches `where` are harmless."""

    damage: str
    where: str
    why: str


REASONS = (
    Reason(
        "no-wait",
        r"tcgen05\.wait::ld",
        "every register of the load is used before the thread's next arrive, and registers are "
        "valid only when their load is done: assumed of the hardware, as the peer's kernels do",
    ),
    Reason(
        "no-wait",
        r"try_wait.*mbarrier_arrive\(mbar \+ STATS_FULL",
        "stats_empty in the loop follows from s_full: scores of block j come after qk(j), after "
        "pv(j-1), after p_ready(j-1), at which the reader of the statistics of j-1 arrived",
    ),
    Reason(
        "no-wait",
        r"try_wait.*bulk_tensor\S*\(raw_q.*Q_FULL \+ 1",
        "q_empty[1] follows from q_empty[0]: one thread commits both in turn after the last qk[1], "
        "and a commit covers all MMAs that the thread issued before it",
    ),
    Reason(
        "early",
        r"mbarrier\.arrive.*STATS_FULL",
        "the statistics of a tile's first block are not read: there is no output to rescale",
    ),
    Reason(
        "early",
        r"mbarrier\.arrive.*P_READY",
        "it changed places with another arrive of the same thread: nothing lies between",
    ),
    Reason(
        "early",
        r"mbarrier\.arrive.*STATS_EMPTY",
        "it passed a proxy fence that is for the output's tile, which another barrier hands over; "
        "the statistics are read and written by ordinary loads and stores alone",
    ),
    Reason(
        "(count.*|no-(wait|arrive))",
        r"tma_q.*\+ Q_FULL\)|mbar \+ Q_EMPTY, 2|mbar \+ Q_EMPTY\)",
        "a CTA of this grid has one tile: Q is loaded once, and nobody waits for its place",
    ),
    Reason(
        "no-wait",
        r"try_wait\S*\s+P\d, \[\S+\], 1, 10000000",
        "the first lap of a place that is free passes at once",
    ),
    Reason(
        "(early|no-wait)",
        r"mbarrier\.arrive.*LSE_EMPTY|try_wait.*raw_lse",
        "lse_empty follows from q_empty: Q's place is free after dK, which comes after dS, which "
        "comes after the probabilities, which read the LSE",
    ),
    Reason(
        "no-wait",
        r"wait_group\.read.*wait_group\(1, read=True\)",
        "the next statement waits for all stores of the role",
    ),
    Reason(
        "no-commit",
        r"bulk\.commit_group|commit.*Q_EMPTY \+ q_at",
        "the commit behind the role's next store closes both groups; nobody waits for the place of "
        "a tile's last Q",
    ),
    Reason(
        "(count.*|no-(wait|arrive))",
        r"tma_k.*\+ K_FULL\)|mbar \+ K_EMPTY",
        "a CTA of a backward has one tile: K is loaded once, and nobody waits for its place",
    ),
    Reason(
        "no-arrive",
        r"mbar \+ V_EMPTY \+ v_slot",
        "the release of a CTA's last V: no load comes after it",
    ),
    Reason(
        "no-fence",
        r"wgmma\.fence",
        "the product writes its accumulator afresh and takes both operands from shared memory: it "
        "reads no register that another instruction wrote",
    ),
    Reason(
        "no-barrier",
        r"barrier_cta_sync\(TENSOR",
        "the warpgroups' turns at the tensor core: for speed; what they share, mbarriers guard",
    ),
    Reason(
        "(no|early)-?.*",
        r"tcgen05\.fence",
        "all tensor memory accesses of the thread were waited for; the barrier orders the rest",
    ),
    Reason(
        "no-free",
        r"relinquish_alloc_permit",
        "it lets other CTAs allocate, and one CTA fills the multiprocessor",
    ),
)


def reason(kind: str, statement: str) -> str:
    """The first reason that fits; empty if none does."""
    fits = (
        r.why for r in REASONS if re.fullmatch(r.damage, kind) and re.search(r.where, statement)
    )
    return next(fits, "")


def places(lines_ptx: str, source: str) -> list[str]:
    """For each line of the PTX without `.loc` lines: the statement of the generated file."""
    text, current, found = source.splitlines(), 0, [""]
    for line in lines_ptx.splitlines():
        loc = re.match(r"\s*\.loc\s+\d+\s+(\d+)", line)
        if loc:
            current = int(loc[1])
        elif line.strip() and not re.match(r"\s*\.file\s", line):
            found.append(text[current - 1].strip() if current else "")
    return found


def verdict(seeds: int, shared_object: Path, s: Schedule, ptx: Path) -> dict[str, object]:
    """Runs a PTX text until something is seen."""
    loaded = Emulator(target=s.target).load(shared_object, ptx=[ptx])["fwd"]
    backward = s.kernel == "attention_backward"
    ran = 0
    for seed in range(seeds):
        for sq, sk, spread in BACKWARD_CASES if backward else CASES:
            problem = AttentionProblem(
                heads=1 + backward,
                seqlen_q=sq,
                seqlen_k=sk,
                head_dim=s.head_dim,
                head_dim_v=s.head_dim_v,
                causal=s.causal,
                spread=spread,
            )
            fwd = replace(loaded, emulator=Emulator(target=s.target, seed=seed))
            found = run(fwd, problem, seed, backward=backward)
            ran += 1
            if found:
                return {**found, "runs": ran, "seed": seed, "seqlens": [sq, sk]}
    return {"verdict": "silent", "runs": ran}


def run_forward(fwd: Function, p: AttentionProblem, x: Inputs) -> tuple[Report, list[Verdict]]:
    """One multiprocessor: a CTA takes every tile in turn."""
    out = torch.full((p.batch, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).bfloat16()
    lse = torch.full((p.batch, p.heads, p.seqlen_q), float("nan"))
    report = fwd(x.q, x.k, x.v, out, lse, *tail("own", fwd.emulator.target, p, sms=1))
    return report, judge_forward(p, x, out, lse)


def run(
    fwd: Function, p: AttentionProblem, seed: int, *, backward: bool
) -> dict[str, object] | None:
    """One run: what was seen, or None."""
    x = make_inputs(p, seed)
    report, verdicts = run_backward(fwd, p, x, 1) if backward else run_forward(fwd, p, x)
    for first in (*report.faults, *report.races):
        return {"verdict": first.kind, "says": str(first)[:400]}
    if report.deadlock:
        return {"verdict": "deadlock", "says": str(report.deadlock)[:400]}
    for first in report.warnings:
        return {"verdict": "warning", "says": str(first)[:400]}
    wrong = [v for v in verdicts if not v.right]
    return {"verdict": "wrong value", "says": str(wrong[0])} if wrong else None


def serve(args: argparse.Namespace) -> int:
    """The worker: names of PTX files in, verdicts out."""
    checked, made = build(args.schedule)
    for line in sys.stdin:
        ptx = Path(line.strip())
        try:
            answer = verdict(args.seeds, made.shared_object, checked.schedule, ptx)
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
    parser.add_argument("schedule")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=120.0)
    parser.add_argument("--match", default="")
    parser.add_argument("--every", type=int, default=1, help="only each N-th mutant")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return serve(args)
    checked, made = build(args.schedule)
    ptx, source = made.ptx.read_text(), render(checked.program).text
    where, worker = places(made.lines_ptx.read_text(), source), Worker(args.limit)
    baseline = worker.ask(made.ptx)
    print(f"undamaged: {baseline}", flush=True)
    if baseline["verdict"] != "silent":
        return 1  # a kernel that is caught as it is proves nothing about its mutants
    rows = []
    chosen = [d for d in damages(ptx) if args.match in d.name][:: args.every]
    with tempfile.TemporaryDirectory() as folder:
        for n, damage in enumerate(chosen):
            mutant = Path(folder) / "mutant.ptx"
            mutant.write_text(damage.text)
            started = time.perf_counter()
            row = {"name": damage.name, "original": damage.original, "source": where[damage.line]}
            row |= worker.ask(mutant)
            row["seconds"] = round(time.perf_counter() - started, 2)
            if row["verdict"] == "silent":
                kind = damage.name.partition("@")[0]
                row["reason"] = reason(kind, f"{damage.original} {where[damage.line]}")
            rows.append(row)
            says = str(row.get("says", row.get("reason", ""))).split("\n")[0][:150]
            print(
                f"[{n + 1}/{len(chosen)}] {row['name']:20} {row['verdict']:14} {says}", flush=True
            )
    counts = Counter(str(r["verdict"]) for r in rows)
    print(f"{len(rows)} mutants: {', '.join(f'{n} {k}' for k, n in counts.most_common())}")
    bad = [r for r in rows if r["verdict"] in BAD or (r["verdict"] == "silent" and not r["reason"])]
    for row in bad:
        print(f"unexplained: {row['name']} {row['verdict']}: {row['original']} [{row['source']}]")
    if args.json:
        result = {"environment": environment(), "schedule": args.schedule, "rows": rows}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if bad or not rows else 0


BAD = ("CRASH", "EMULATOR HANGS", "refused")

if __name__ == "__main__":
    sys.exit(main())
