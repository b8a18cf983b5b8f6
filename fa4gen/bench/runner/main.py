"""The command line: supervises workers, writes results as they come, and prints the table."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from .problem import serves
from .supervise import Worker, supervise
from .table import collect, summary
from .work import work


def work_list(
    manifest: dict[str, Any], only: list[str], match: str, peers: bool = False
) -> list[dict[str, Any]]:
    """Units of work, in order: checks of each kernel of ours, timings of a case, host times."""
    units = []
    ours = [k for k in manifest["kernels"] if peers or not k.get("peer")]
    for kind in only:
        for case in (c for c in manifest["cases"] if c["kind"] == kind):
            fit = [k["name"] for k in ours if serves(k, case)]
            if not fit:
                continue
            for names in [[n] for n in fit] if kind == "check" else [fit]:
                label = f"{kind} {names[0] if kind == 'check' else 'all'} {case['name']}"
                if match in label:
                    units.append({"id": label, "kind": kind, "kernels": names, "case": case})
    return units


def arguments(words: list[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="run.py", description="Checks and times the kernels of this kit on this machine's GPU."
    )
    p.add_argument("--out", type=Path, required=True, help="folder for the results")
    p.add_argument("--budget", type=float, default=540.0, help="seconds in all")
    p.add_argument("--only", default="check,time,host", help="kinds of cases, in this order")
    p.add_argument("--match", default="", help="only work whose name contains this text")
    p.add_argument("--peers", action="store_true", help="check the peers' kernels as well")
    p.add_argument("--seed", default=None, help="repeat the random inputs of an earlier run")
    p.add_argument("--check-limit", type=float, default=30.0, help="seconds for a check")
    p.add_argument("--time-limit", type=float, default=60.0, help="seconds for a timing")
    p.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return p.parse_args(words)


def main(kit: Path, words: list[str] | None = None) -> int:
    """Runs the kit in the folder `kit`; `words` is the command line. Returns the exit code."""
    args = arguments(words)
    manifest = json.loads((kit / "manifest.json").read_text())
    if args.worker:
        channel = os.dup(1)
        os.dup2(2, 1)  # what libraries print must not mix with the messages
        units = json.loads(args.worker.read_text())
        work(kit, manifest, units, args.seed, lambda m: os.write(channel, line_of(m)))
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    seed = args.seed or os.urandom(8).hex()
    units = work_list(manifest, args.only.split(","), args.match, args.peers)
    print(f"{len(units)} pieces of work, seed {seed}", flush=True)
    messages: list[dict[str, Any]] = [{"run": {"seed": seed, "kit": manifest["about"]}}]
    left = run(kit, args, seed, units, messages)
    record = collect([*messages, {"left": [u["id"] for u in left]}])
    (args.out / "results.json").write_text(json.dumps(record, indent=1))
    text = f"{json.dumps(record['machine'])}\nseed {seed}\n{summary(record)}\n"
    (args.out / "table.txt").write_text(text)
    print(f"\n{text}", end="")
    return 1 if any(r["faults"] for r in record["results"]) else 3 if left else 0


def line_of(message: dict[str, Any]) -> bytes:
    """A message as one line of bytes."""
    return json.dumps(message).encode() + b"\n"


def run(
    kit: Path,
    args: argparse.Namespace,
    seed: str,
    units: list[dict[str, Any]],
    messages: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Runs the units; what they send goes to `messages` and results.jsonl; returns what is left."""
    deadline = time.monotonic() + args.budget
    todo = args.out / "worker.json"
    with (
        (args.out / "worker.log").open("ab") as log,
        (args.out / "results.jsonl").open("wb") as out,
    ):

        def start(rest: list[dict[str, Any]]) -> Worker:
            todo.write_text(json.dumps(rest))
            own = ["--out", str(args.out), "--seed", seed, "--worker", str(todo)]
            return Worker([sys.executable, str(kit / "run.py"), *own], log)

        def report(message: dict[str, Any]) -> None:
            messages.append(message)
            out.write(line_of(message))
            out.flush()
            if "done" in message:
                print("!" if message["faults"] else ".", end="", flush=True)

        out.write(line_of(messages[0]))
        limits = {"check": args.check_limit, "time": args.time_limit, "host": args.time_limit}
        left = supervise(start, units, limits, deadline, report)
    todo.unlink(missing_ok=True)
    return left
