"""Results as numbers that compare, and as a table for people."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from typing import Any


def rows(
    times: dict[str, list[float]], base: str | None, case: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Name → median ms, TFLOP/s, speed against `base`: median, quartiles, range of the rounds."""
    sq, sk = case["seqlen_q"], case["seqlen_k"]
    pairs = sq * sk - (min(sq, sk) ** 2 / 2 if case["causal"] else 0)  # a window leaves more out
    flop = 2 * case["batch"] * case["heads"] * pairs * (case["head_dim"] + case["head_dim_v"])
    table: dict[str, dict[str, Any]] = {}
    for name, ms in times.items():
        ratios = [b / t for b, t in zip(times[base], ms, strict=True)] if base else []
        table[name] = {
            "ms": statistics.median(ms),
            "tflops": flop / statistics.median(ms) / 1e9,
            "ratio": statistics.median(ratios) if ratios else None,
            "quartiles": statistics.quantiles(ratios, n=4)[::2] if len(ratios) > 1 else None,
            "range": [min(ratios), max(ratios)] if ratios else None,
        }
    return table


def collect(messages: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """One record of a run from its messages (the lines of results.jsonl, were it cut short)."""
    record: dict[str, Any] = {"seed": None, "kit": {}, "machine": {}, "results": [], "not_run": []}
    for m in messages:
        if "run" in m:
            record |= m["run"]
        elif "ready" in m:
            record["machine"] = m["ready"]
        elif "done" in m:
            record["results"].append(m)
        elif "left" in m:
            record["not_run"] = m["left"]
    return record


def summary(record: dict[str, Any]) -> str:
    """The table for people: faults, how many checks passed, timings, lowest ratios last."""
    results = record["results"]
    lines = [f"FAIL {r['done']}: {'; '.join(r['faults'])}" for r in results if r["faults"]]
    lines += _checks([r for r in results if r["done"].startswith("check ")])
    lowest: dict[str, tuple[float, str, str]] = {}
    for r in results:
        if "rows" in r:
            lines.append(f"{r['done']}  (speed against {r['base']}, [quartiles])")
            for name, row in r["rows"].items():
                low, high = row["quartiles"] or (math.nan, math.nan)
                ratio = row["ratio"] or math.nan
                lines.append(
                    f"    {name:34s}{row['ms']:9.3f} ms {row['tflops']:7.1f} TFLOP/s"
                    f"  {ratio:6.3f}  [{low:.3f} .. {high:.3f}]"
                )
                if name not in lowest or ratio < lowest[name][0]:
                    lowest[name] = (ratio, r["done"], r["base"])
        if "host_us" in r:
            lines.append(f"{r['done']}  (host time a call)")
            lines += [f"    {name:34s}{us:9.2f} us" for name, us in r["host_us"].items()]
    for name, (ratio, where, base) in lowest.items():
        lines.append(f"lowest of {name}: {ratio:.3f} of {base} in {where}")
    if record["not_run"]:
        lines.append(f"not run, the budget ended: {len(record['not_run'])}")
    return "\n".join(lines)


def _checks(checks: list[dict[str, Any]]) -> list[str]:
    """A line for each kernel: how many checks passed, and its largest errors."""
    lines = []
    for name, count in Counter(r["done"].split()[1] for r in checks).items():
        of = [r for r in checks if r["done"].split()[1] == name]
        worst = {n: max((r[n] for r in of if n in r), default=0.0) for n in ("max", "lse")}
        ratio = max((r["rms"] / (r["torch_rms"] or 1) for r in of if "rms" in r), default=0.0)
        passed = sum(not r["faults"] for r in of)
        lines.append(
            f"{name}: {passed} of {count} checks passed; largest rms error {ratio:.3f} of"
            f" PyTorch's, largest error {worst['max']:.3g}, largest LSE error {worst['lse']:.3g}"
        )
    return lines
