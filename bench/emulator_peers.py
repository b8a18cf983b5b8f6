"""Runs kernels that nobody here wrote in the emulator, and compares them with float64.

    python bench/emulator_peers.py FOLDER... [--seeds 0,1,2] [--match TEXT] [--json FILE]

A FOLDER holds what a peer's compiler exported, told apart by name; each shared object lies beside a
folder of its PTX:
    fa4_ARCH_dD_dvDV_MASK[_gqaN].so, and a folder of that name        FlashAttention-4's forward
    fa4bwd_ARCH_dD_MASK/{0,1,2}_*.so and *.ptx                        its backward: pre, main, post
    gemm*/k.so, fmha*/k.so and *.ptx                                  NVIDIA's examples (CuTe DSL)
Peers' kernels are not part of this project: they are compiled for the run. A kernel runs in a
process of its own, under a time limit. Exit code 0: all right and without a fault; 1: not.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import torch

from fa4gen.emulator.api import Emulator
from fa4gen.emulator.attention import (
    AttentionProblem,
    Inputs,
    Verdict,
    exact_forward,
    judge_backward,
    judge_forward,
    make_inputs,
)
from fa4gen.emulator.report import Report

FORWARD = re.compile(r"fa4_(sm_\w+?)_d(\d+)_dv(\d+)_(full|causal)(?:_gqa(\d+))?\.so$")
BACKWARD = re.compile(r"fa4bwd_(sm_\w+?)_d(\d+)_(full|causal)$")
PAIRS = ((128, 128), (300, 500), (129, 127), (1, 1), (513, 257), (256, 1024))
BACKWARD_PAIRS = ((128, 128), (256, 256), (300, 500), (500, 300), (129, 127))
LIMIT_S = 1800

Outcome = tuple[Report, list[Verdict]]


def problems(name: str) -> list[AttentionProblem]:
    """The shapes that a kernel of this file name runs."""
    forward, backward = FORWARD.search(name), BACKWARD.search(name)
    if forward:
        d, dv, ratio = int(forward[2]), int(forward[3]), int(forward[5] or 1)
        heads, causal, pairs = (max(2, ratio), forward[4] == "causal", PAIRS)
    elif backward:
        d = dv = int(backward[2])
        ratio, heads, causal, pairs = 1, 1, backward[3] == "causal", BACKWARD_PAIRS
    else:
        d = dv = 128
        ratio, heads, causal, pairs = 1, 1, "causal" in name, ((256, 256), (200, 300))
    made = [
        AttentionProblem(
            heads=heads,
            heads_kv=heads // ratio,
            seqlen_q=sq,
            seqlen_k=sk,
            head_dim=d,
            head_dim_v=dv,
            causal=causal,
            dtype="float16" if "fmha" in name else "bfloat16",
        )
        for sq, sk in pairs
    ]
    return [*made, replace(made[1], batch=2)] if forward and ratio == 1 else made


def tail(call: str, target: str, p: AttentionProblem, sms: int = 2) -> list[object]:
    """What follows q, k, v, out and lse: `own` (this project's forward) or `peer`.

    Persistent kernels are told of few multiprocessors, so that a CTA comes round to more tiles.
    """
    if call == "own":
        return [p.scale, sms]
    if target == "sm_90a":
        return [p.scale, *[None] * 9, (None, None), None, None]
    return [p.scale, *[None] * 10, (None, None), *[None] * 7, p.seqlen_q]


def forward(emulator: Emulator, path: Path, problem: AttentionProblem, x: Inputs) -> Outcome:
    """FlashAttention-4's forward: the call of its exported function."""
    ptx = sorted(path.with_suffix("").glob("*.ptx"))
    fwd = emulator.load(path, ptx=ptx)["fwd"]
    p = problem
    out = torch.full((p.batch, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).to(x.q.dtype)
    lse = torch.full((p.batch, p.heads, p.seqlen_q), float("nan"))
    report = fwd(x.q, x.k, x.v, out, lse, *tail("peer", emulator.target, p))
    return report, judge_forward(p, x, out, lse)


def backward(emulator: Emulator, folder: Path, problem: AttentionProblem, x: Inputs) -> Outcome:
    """FlashAttention-4's backward: preprocess, main kernel, and the conversion of dQ (but at head
    dim 256, whose kernels write dQ themselves)."""
    ptx = sorted(folder.glob("*.ptx"))
    pre, main, *post = (emulator.load(p, ptx=ptx)["fn"] for p in sorted(folder.glob("[012]_*.so")))
    p = problem
    tile = 128 if emulator.target == "sm_100a" else 64 if p.causal else 80  # its query tiles
    out, lse = exact_forward(p, x)
    rounded = -(-p.seqlen_q // tile) * tile
    dpsum, lse_log2 = (torch.full((p.batch, p.heads, rounded), float("nan")) for _ in range(2))
    dq, dk, dv = (torch.full_like(t, float("nan")) for t in (x.q, x.k, x.v))
    dq_accum = torch.full((p.batch, p.heads, rounded * p.head_dim), float("nan")) if post else None
    reports = [pre(out, x.d_out, dpsum, lse, lse_log2, dq_accum, *[None] * 5, 1.0, None, None)]
    tensors = (
        x.q,
        x.k,
        x.v,
        x.d_out,
        lse_log2,
        dpsum,
        dq if dq_accum is None else dq_accum,
        dk,
        dv,
    )
    rest = [*[None] * 9, (None, None), *[None] * (2 if post else 3)]
    reports += [main(*tensors, p.scale, *rest)]
    reports += [convert(dq_accum, dq, p.scale, *[None] * 4) for convert in post]
    return Report.merged(reports), judge_backward(p, x, (dq, dk, dv))


def gemm(emulator: Emulator, folder: Path, problem: AttentionProblem, x: Inputs) -> Outcome:
    """NVIDIA's persistent dense GEMM, batched: C = A B, on the problem's lengths."""
    a = x.q.transpose(1, 2).reshape(-1, problem.seqlen_q, 128).contiguous()
    b = x.k.transpose(1, 2).reshape(-1, problem.seqlen_k, 128)[:, : problem.seqlen_k & ~7]
    b = b.transpose(1, 2).contiguous()
    c = torch.full((a.shape[0], a.shape[1], b.shape[2]), float("nan")).bfloat16()
    report = emulator.load(folder / "k.so", ptx=sorted(folder.glob("*.ptx")))["fn"](a, b, c)
    exact = a.double() @ b.double()
    error = (c.double() - exact).abs().nan_to_num(nan=float("inf"))
    half_ulp = exact.abs().max().item() * 2**-8
    verdict = Verdict(
        name="c",
        max_error=error.max().item(),
        rms_error=error.square().mean().sqrt().item(),
        plain_max_error=half_ulp,
        plain_rms_error=half_ulp,
        right=error.max().item() <= half_ulp,
    )
    return report, [verdict]


def fmha(emulator: Emulator, folder: Path, problem: AttentionProblem, x: Inputs) -> Outcome:
    """NVIDIA's FMHA example, float16; its causal mask is aligned top-left, so equal lengths."""
    p = problem
    q, k, v = x.q.unsqueeze(3), x.k.unsqueeze(3), x.v.unsqueeze(3)  # (b, s, h_k, h_r, d)
    out = torch.full_like(q, float("nan"))
    shape = (p.batch, p.seqlen_q, p.seqlen_q, p.seqlen_k, p.heads, p.heads_kv, 128, 128)
    right = (0,) if p.causal else (None,)
    report = emulator.load(folder / "k.so", ptx=sorted(folder.glob("*.ptx")))["fn"](
        *(q, k, v, out, shape, None, None, None, None),
        *(p.scale * 1.4426950408889634, p.scale, 1.0, None, None, *right, None, None, False),
    )
    return report, judge_forward(p, x, out.squeeze(3), None)


def kinds(path: Path) -> str:
    """Which of the four calls a path takes."""
    if FORWARD.search(path.name):
        return "forward"
    if BACKWARD.search(path.name):
        return "backward"
    return "gemm" if path.name.startswith("gemm") else "fmha"


def kernels(folders: list[Path]) -> Iterator[Path]:
    """Everything in the folders that is recognised."""
    for folder in folders:
        for path in sorted(folder.iterdir()):
            known = FORWARD.search(path.name) or BACKWARD.search(path.name)
            if known or (path / "k.so").is_file():
                yield path


def work(path: Path, seeds: list[int], races: bool) -> Iterator[dict[str, object]]:
    """Runs one kernel's shapes and seeds."""
    call = {"forward": forward, "backward": backward, "gemm": gemm, "fmha": fmha}[kinds(path)]
    target = "sm_90a" if "sm_90" in path.name else "sm_100a"
    for problem in problems(path.name):
        if kinds(path) == "fmha" and problem.causal and problem.seqlen_q != problem.seqlen_k:
            continue
        for seed in seeds:
            emulator = Emulator(target=target, seed=seed, races=races)
            row: dict[str, object] = {"kernel": path.name, "seed": seed, "races": races}
            row["problem"] = asdict(problem)
            started = time.perf_counter()
            try:
                report, verdicts = call(emulator, path, problem, make_inputs(problem, seed))
            except Exception as failure:
                yield {**row, "ok": False, "failure": f"{type(failure).__name__}: {failure}"[:1500]}
                continue
            row |= {
                "seconds": round(time.perf_counter() - started, 3),
                "warp_instructions": report.warp_instructions,
                "faults": len(seen(report)),
                "first_faults": [f[:600] for f in seen(report)[:3]],
                "verdicts": [asdict(v) for v in verdicts],
            }
            yield {**row, "ok": not report.faulty and all(v.right for v in verdicts)}


def seen(report: Report) -> list[str]:
    """All that a report holds against a kernel."""
    found = [str(f) for f in (*report.faults, *report.races)]
    return [*found, str(report.deadlock)] if report.deadlock else found


def describe(row: dict[str, object]) -> str:
    """One line for people."""
    p = row["problem"]
    head = (
        f"{row['kernel']} b{p['batch']} h{p['heads']}/{p['heads_kv']} "
        f"q{p['seqlen_q']} k{p['seqlen_k']} seed {row['seed']}: {'ok' if row['ok'] else 'FAILED'}"
    )
    if "failure" in row:
        return f"{head} {row['failure']}"
    errors = ", ".join(
        f"{v['name']} {v['max_error']:.1e} (plain {v['plain_max_error']:.1e})"
        for v in row["verdicts"]
    )
    text = f"{head} {errors}; {row['warp_instructions']} in {row['seconds']} s"
    return "\n   ".join([text, *row["first_faults"]])


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--match", default="")
    parser.add_argument("--no-races", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    seeds = [int(s) for s in args.seeds.split(",")]
    if args.worker:
        for row in work(args.folders[0], seeds, not args.no_races):
            print(json.dumps(row), flush=True)
        return 0
    rows: list[dict[str, object]] = []
    for path in kernels(args.folders):
        if args.match not in path.name:
            continue
        command = [sys.executable, __file__, str(path), "--worker", "--seeds", args.seeds]
        command += ["--no-races"] if args.no_races else []
        ran = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        watchdog = threading.Timer(LIMIT_S, ran.kill)
        watchdog.start()
        for line in ran.stdout or ():
            rows.append(json.loads(line))
            print(describe(rows[-1]), flush=True)
        watchdog.cancel()
        if ran.wait():
            rows.append({"kernel": path.name, "ok": False, "exit": ran.returncode})
            print(f"{path.name}: FAILED, its process ended with {ran.returncode}", flush=True)
    if args.json:
        result = {"environment": environment(), "kernels": summary(rows)}
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    good = sum(bool(r["ok"]) for r in rows)
    print(f"{good} of {len(rows)} runs right and without a fault")
    return 0 if rows and good == len(rows) else 1


def summary(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """One row a kernel: how many runs, how far from float64 at worst, and what failed."""
    found = []
    for name in dict.fromkeys(str(r["kernel"]) for r in rows):
        own = [r for r in rows if r["kernel"] == name]
        ran = [r for r in own if "verdicts" in r]
        problems = [r["problem"] for r in ran]
        worst: dict[str, dict[str, float]] = {}
        for v in (v for r in ran for v in r["verdicts"]):
            kept = worst.setdefault(v["name"], {"max_error": 0.0, "of_plain": 0.0})
            kept["max_error"] = max(kept["max_error"], v["max_error"])
            if v["plain_max_error"]:
                ratio = round(v["max_error"] / v["plain_max_error"], 3)
                kept["of_plain"] = max(kept["of_plain"], ratio)
        found.append(
            {
                "kernel": name,
                "runs": len(own),
                "right_and_without_a_fault": sum(bool(r["ok"]) for r in own),
                "seeds": sorted({r["seed"] for r in ran}),
                "seqlens": sorted({(p["seqlen_q"], p["seqlen_k"]) for p in problems}),
                "worst": worst,
                "warp_instructions": sum(r["warp_instructions"] for r in ran),
                "seconds": round(sum(r["seconds"] for r in ran), 1),
                "failures": [describe(r) if "problem" in r else str(r) for r in own if not r["ok"]],
            }
        )
    return found


def environment() -> dict[str, object]:
    """What the numbers depend on."""
    root = Path(__file__).parents[1]
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "machine": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    sys.exit(main())
