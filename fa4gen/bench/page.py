"""The page of measured speeds, from the runs that are kept under `bench/results`."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fa4gen.diag import error

TIMED = re.compile(
    r"time all (?P<dtype>\w+) d(?P<dims>[\d,]+) (?P<mask>\w+) b\d+ h(?P<heads>\d+):\d+ "
    r"(?P<length>\d+)x(?P=length)"
)
AGAIN = " (again)"  # the control: the peer against itself
HEAD = """\
# Forward speed on an H200, measured

Made by `fa4gen docs` from `bench/results/{file}`:
one alternating run on {device} (driver {driver}, torch {torch}, cuDNN {cudnn}),
{date}, kernels of commit {commit}. 16 heads, 32 k tokens; of {checked} checks of values
against float64 in the same run, {faults} failed. Speed is a multiple of that of FlashAttention-4's
Hopper kernel (flash-attn-4), median of the rounds; `control` is that kernel against itself.

| head dim | mask | length | type | TFLOP/s | of FA4 | control | cuDNN of FA4 |
| --- | --- | --- | --- | --- | --- | --- | --- |"""
TAIL = """
Other runs lie beside it (`bench/results/`): earlier kernels, other tile schedulers and head dims.

Blackwell kernels have been emulated, never timed: nothing of this project has run on a Blackwell
GPU."""


def performance(results: Path) -> str:
    """The page of the latest run beside FlashAttention-4. FA0709 if there is none."""
    file, record = latest(results)
    machine = record["machine"]
    checks = [r for r in record["results"] if r["done"].startswith("check ")]
    head = HEAD.format(
        file=file.name,
        device=machine["device"],
        driver=machine["driver"],
        torch=machine["torch"],
        cudnn=machine["cudnn"],
        date=machine["date"][:16],
        commit=record["kit"]["commit"].rstrip("+"),
        checked=len(checks),
        faults=sum(bool(r["faults"]) for r in checks),
    )
    return "\n".join([head, *_rows(record), TAIL]) + "\n"


def latest(results: Path) -> tuple[Path, dict[str, Any]]:
    """The latest record of a run that timed ours beside a peer that it also timed twice."""
    found = []
    for file in results.glob("*.json"):
        record = json.loads(file.read_text(encoding="utf-8"))
        if "machine" in record and "kit" in record and any(_rows(record)):
            found.append((str(record["machine"]["date"]), file, record))
    if not found:
        raise error("FA0709", f"`{results}` holds no run beside a peer", fix="`fa4gen bench`")
    _, file, record = max(found, key=lambda f: f[0])
    return file, record


def _rows(record: Mapping[str, Any]) -> Iterator[str]:
    for r in record["results"]:
        timed, rows = TIMED.fullmatch(r["done"]), r.get("rows") or {}
        base = str(r.get("base"))
        ours = next((rows[n] for n in rows if n.startswith("fwd_")), None)
        if timed is None or ours is None or f"{base}{AGAIN}" not in rows:
            continue
        cells = [timed["dims"], timed["mask"], timed["length"], timed["dtype"]]
        cells += [f"{ours['tflops']:.0f}", f"{ours['ratio']:.3f}"]
        cells.append(f"{rows[base + AGAIN]['ratio']:.3f}")
        cells.append(f"{rows['cudnn']['ratio']:.3f}" if "cudnn" in rows else "")
        yield f"| {' | '.join(cells)} |"
