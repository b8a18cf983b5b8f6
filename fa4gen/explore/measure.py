"""Points on a GPU: a kit of the compiled ones, run here or elsewhere, and what came back."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fa4gen.bench.cases import Case, case_name
from fa4gen.bench.session import make_kit, run_here
from fa4gen.bench.verb import kit_kernel
from fa4gen.build import member
from fa4gen.options import Options
from fa4gen.runtime.kit import KitKernel

from .points import Point, ranked
from .search import Search

ALTERNATIONS, WARM_MS, MEASURE_MS = 3, 4.0, 8.0  # short runs: many variants, few per cent apart


def kit_kernels(
    search: Search, points: Sequence[Point], best: int, options: Options
) -> list[KitKernel]:
    """The best compiled points, not yet measured, as kernels of a kit."""
    ready = [p for p in ranked(points) if p.modelled_seconds and p.measured_seconds is None]
    found = []
    for p in ready[:best]:
        one = member(search.folder.schedule(p.name), search.settings, None)
        found.append(replace(kit_kernel(one, options), name=p.name))
    return found


def timed_case(kernel: KitKernel, search: Search) -> Case:
    """The case of a search's shape."""
    batch, heads, length = search.shape
    case: Case = {
        "kind": "time",
        "dtype": kernel.dtype,
        "head_dim": kernel.head_dim,
        "head_dim_v": kernel.head_dim_v,
        "causal": kernel.causal,
        "batch": batch,
        "heads": heads,
        "heads_kv": heads,
        "seqlen_q": length,
        "seqlen_k": length,
        "alternations": ALTERNATIONS,
        "warm_ms": WARM_MS,
        "measure_ms": MEASURE_MS,
        "libraries": False,
    }
    return {"name": case_name(case), **case}


def write_kit(
    folder: Path, search: Search, kernels: Sequence[KitKernel], peers: Path | None, options: Options
) -> Path:
    """A kit that times these points once, each checked in the same run. Raises FA0708."""
    cases = [timed_case(kernels[0], search)]
    return make_kit(folder, kernels, options, peers_folder=peers, only_cases=cases)


def measured(search: Search, points: Sequence[Point], record: Mapping[str, Any]) -> list[Point]:
    """Points with what a run found of them; what belongs to no point of this search is left."""
    device = str((record.get("machine") or {}).get("device", ""))
    done = {p.name: p for p in points}
    for r in record["results"]:
        rows = r.get("rows", {})
        base = rows.get(r.get("base"))
        for name, row in rows.items():
            if name not in done:
                continue
            faults = tuple(f for f in r["faults"] if f.startswith(f"{name}:"))
            done[name] = search.folder.keep(
                replace(
                    done[name],
                    measured_seconds=row["ms"] / 1e3,
                    reference=r["base"] or "",
                    reference_seconds=base["ms"] / 1e3 if base else None,
                    faults=faults,
                    device=device,
                )
            )
    return [done[p.name] for p in points]


def run(kit: Path, out: Path, budget_seconds: float) -> Mapping[str, Any]:
    """Runs a kit on this machine's GPU; its record. Raises FA0709 without one."""
    return run_here(kit, out, budget_seconds=budget_seconds, only="time")
