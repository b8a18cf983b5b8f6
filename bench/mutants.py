"""Damages shipped schedules one by one: each must be refused, or be right in the emulator.

    python bench/mutants.py [SCHEDULE...] [--seeds 0,1] [--json FILE]

A mutant that is accepted and then gives wrong values, races or hangs is a survivor: a hole in the
checks. Refusals take milliseconds; what is accepted is built and run over some lengths, full and
causal, with grouped heads and fewer multiprocessors than tiles. Exit code 0: no survivor; 1: some.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the damages are shared with the tests

from emulator_peers import environment  # noqa: E402

from fa4gen.diag import Fa4genError  # noqa: E402
from fa4gen.driver import check  # noqa: E402
from fa4gen.dsl import load  # noqa: E402
from fa4gen.emulate import emulate  # noqa: E402
from tests.pipelines.schedule_damage import Mutant, mutants  # noqa: E402

# of each family, a member unlike the schedules with names of their own
SHIPPED: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "fwd_hd128": {},
        "fwd_hd128_sm90": {},
        "fwd_hd64": {},
        "fwd_hd64_sm90": {},
        "fwd": {"head_dim": "96", "head_dim_v": "192"},
        "fwd_sm90": {"head_dim": "192", "head_dim_v": "128"},
        "fwd_lists": {"head_dim": "64", "head_dim_v": "64"},
        "fwd_lists_sm90": {"head_dim": "64", "head_dim_v": "64"},
        "bwd_lists": {"head_dim": "64", "head_dim_v": "64"},
        "bwd_lists_sm90": {"head_dim": "64", "head_dim_v": "64"},
        "bwd_lists_to256_sm90": {"head_dim": "192", "head_dim_v": "128"},
        "bwd_hd128": {},
        "bwd_hd128_sm90": {},
        "bwd_hd64": {},
        "bwd_hd64_sm90": {},
        "bwd": {"head_dim": "80", "head_dim_v": "40"},
        "bwd_sm90": {"head_dim": "40", "head_dim_v": "64"},
        "bwd_to128_sm90": {"head_dim": "72", "head_dim_v": "104"},
        "bwd_to256_sm90": {"head_dim": "192", "head_dim_v": "128"},
        "bwd_turns_to64_sm90": {"head_dim": "40", "head_dim_v": "64"},
        "bwd_turns_to128_sm90": {"head_dim": "72", "head_dim_v": "104"},
        "bwd_turns_to256_sm90": {"head_dim": "192", "head_dim_v": "128"},
    }
)
LENGTHS = ((1, 1), (129, 300), (300, 129), (257, 513))
SHAPE = {"batch": 1, "heads": 2, "heads_kv": 1, "num_sms": 1}


def judge(schedule: str, mutant: Mutant, path: Path, seeds: list[int]) -> dict[str, object]:
    """Refused with its codes, or accepted and what the emulator says."""
    path.write_text(mutant.text)
    row: dict[str, object] = {"schedule": schedule, "mutant": mutant.name}
    codes, wrong, runs = set(), [], 0
    for mask in load(ROOT / "schedules" / f"{schedule}.yaml").serves["causal"]:
        causal = str(mask).lower()
        try:
            check(path, settings={**SHIPPED[schedule], "causal": causal})
        except Fa4genError as e:
            codes |= {d.code for d in e.diagnostics}
            continue
        except Exception as e:  # a refusal is a diagnostic
            runs, wrong = runs + 1, [*wrong, f"causal={causal}: {type(e).__name__}: {e}"]
            continue
        for seed in seeds:
            for q, k in LENGTHS:
                runs += 1
                try:
                    done = emulate(
                        path,
                        settings={**SHIPPED[schedule], "causal": causal},
                        seqlen_q=q,
                        seqlen_k=k,
                        seed=seed,
                        **SHAPE,
                    )
                except Fa4genError as e:
                    wrong.append(f"causal={causal} {q}x{k}: {e.diagnostics[0].title}")
                    continue
                if not done.ok:
                    wrong.append(f"causal={causal} {q}x{k} seed {seed}: {done}")
    if runs == 0:
        return {**row, "verdict": "refused", "codes": sorted(codes)}
    return {**row, "verdict": "survivor" if wrong else "right", "runs": runs, "wrong": wrong[:3]}


def summary(rows: list[dict[str, object]]) -> dict[str, object]:
    """By schedule: how many are refused, by which first code; what is accepted, and how it ran."""
    out: dict[str, object] = {"environment": environment()}
    for schedule in dict.fromkeys(str(r["schedule"]) for r in rows):
        own = [r for r in rows if r["schedule"] == schedule]
        refused = [r["codes"] for r in own if r["verdict"] == "refused"]
        out[schedule] = {
            "mutants": len(own),
            "refused": len(refused),
            "codes": dict(Counter(c for codes in refused for c in codes[:1])),  # type: ignore[index]
            "right": [r["mutant"] for r in own if r["verdict"] == "right"],
            "survivors": [r["mutant"] for r in own if r["verdict"] == "survivor"],
            "emulated_runs": sum(int(str(r.get("runs", 0))) for r in own),
        }
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("schedules", nargs="*", default=list(SHIPPED))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    seeds = [int(s) for s in given.seeds.split(",")]
    rows, began = [], time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for schedule in given.schedules:
            for mutant in mutants(ROOT / "schedules" / f"{schedule}.yaml"):
                row = judge(schedule, mutant, Path(folder) / "mutant.yaml", seeds)
                rows.append(row)
                if row["verdict"] != "refused":
                    print(f"{schedule}: {row['verdict']}: {mutant.name}", flush=True)
                if row["verdict"] == "survivor":
                    print(*row["wrong"], sep="\n", flush=True)
            if given.json:
                given.json.write_text(json.dumps(summary(rows), indent=1) + "\n")
    counts = Counter(str(r["verdict"]) for r in rows)
    runs = sum(int(str(r.get("runs", 0))) for r in rows)
    print(
        f"{len(rows)} mutants, {dict(counts)}; {runs} emulated runs; "
        f"{time.monotonic() - began:.0f} s"
    )
    return int(bool(counts["survivor"]))


if __name__ == "__main__":
    sys.exit(main())
