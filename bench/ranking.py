#!/usr/bin/env python3
"""How well the cost model ranks: Spearman's correlation of modelled and measured times, Hopper.

    python bench/ranking.py --kit DIR --peers DIR   a kit of variants that no constant was fitted to
                                                    (and what they are predicted to take, kept)
    python bench/ranking.py --keep DIR              what came back of it, correlated with that
    python bench/ranking.py --earlier               the variants of the runs kept before

Variants are choices of `bench/ranking_sm90.yaml`. Ranks are compared within a problem (head dim,
mask, length); that one problem takes longer than another is no merit of a model, so the mean over
problems, weighted by their variants, is what counts. Times are relative to the peer of their run.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fa4gen.analyze.analysis import analyze_member
from fa4gen.analyze.counts import compiled_counts
from fa4gen.bench.cases import Case, case_name, grouped_shapes
from fa4gen.bench.results import keep, provenance, read
from fa4gen.bench.session import make_kit
from fa4gen.bench.verb import kit_kernel
from fa4gen.build import Member, member
from fa4gen.dsl.search import axes, schedule_text
from fa4gen.explore.report import spearman
from fa4gen.options import Options

HERE = Path(__file__).parent
BASE, RESULTS = HERE / "ranking_sm90.yaml", HERE / "results"
PREDICTED = RESULTS / "ranking-predicted.json"  # written before the kit runs
EARLIER = RESULTS / "2026-12-01_h200_earlier-variants.json"
QUICK = {"alternations": 3, "warm_ms": 3.0, "measure_ms": 6.0, "libraries": False}
HEADS, LENGTH = 16, 4096
FOLDER = Path("build/ranking")  # of the schedules: sources name them, and are cached by their text
WIDTHS = {64: ("128", "three"), 96: ("128", "two"), 128: ("128", "two"), 192: ("96", "two"),
          256: ("80", "two")}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A choice (axis: option) for one head dim and mask."""

    name: str
    head_dim: int
    causal: bool
    choice: dict[str, str]

    @property
    def head_dim_v(self) -> int:
        """192 stands for (192, 128)."""
        return 128 if self.head_dim == 192 else self.head_dim

    def member(self, folder: Path) -> Member:
        """Checked and printed, from a schedule file in `folder`."""
        options = {a.name: {o.name: o for o in a.options} for a in axes(BASE)}
        chosen = tuple((axis, options[axis][option]) for axis, option in self.choice.items())
        file = folder / f"{self.name}.yaml"
        file.write_text(schedule_text(chosen, name=self.name, extends=str(BASE.resolve())))
        widths = {"head_dim": str(self.head_dim), "head_dim_v": str(self.head_dim_v)}
        one = member(file, {**widths, "causal": str(self.causal).lower()}, None)
        return replace(one, name=self.name)


def variant(head_dim: int, causal: bool, **other: str) -> Variant:
    """The base's choice for a head dim, but for what is named."""
    tile_n, consumers = WIDTHS[head_dim]
    base = {"tile_n": tile_n, "kv_stages": "2", "consumers": consumers, "pipeline": "turns"}
    words = "_".join(other.values()) or "base"
    name = f"rank_d{head_dim}{'c' if causal else 'f'}_{words}"
    choice = {**base, "tiles": "grid", "registers": "base", **other}
    return Variant(name=name, head_dim=head_dim, causal=causal, choice=choice)


def fresh() -> list[Variant]:
    """The variants of the kit; none of the constants of the model were chosen with them."""
    changes: dict[int, list[dict[str, str]]] = {
        64: [
            {},
            {"tile_n": "96"},
            {"tile_n": "112"},
            {"tile_n": "80"},
            {"kv_stages": "3", "pipeline": "no_turns"},
            {"pipeline": "no_overlap"},
            {"consumers": "two", "tile_n": "160"},
            {"consumers": "two", "pipeline": "no_turns"},
            {"consumers": "two", "pipeline": "no_overlap"},
            {"tile_n": "112", "tiles": "persistent"},
            {"tile_n": "96", "tiles": "dynamic"},
            {"registers": "r144"},
        ],
        128: [
            {},
            {"tile_n": "64"},
            {"tile_n": "80"},
            {"tile_n": "96"},
            {"tile_n": "112"},
            {"tile_n": "96", "kv_stages": "3"},
            {"tile_n": "112", "pipeline": "no_turns"},
            {"pipeline": "no_overlap"},
            {"tile_n": "96", "tiles": "dynamic"},
            {"tile_n": "112", "tiles": "persistent"},
            {"consumers": "three", "tile_n": "64"},
            {"registers": "r168"},
        ],
    }
    return [
        variant(d, causal, **change)
        for d, causal in product((64, 128), (False, True))
        for change in changes[d]
    ]


def earlier_variant(name: str) -> Variant:
    """Names of the earlier runs: `d64c_s2n192` is head dim 64, causal, two consumers, 192 keys."""
    m = re.fullmatch(r"d(\d+)([fc])_(.*)", name)
    assert m is not None
    head_dim, words = int(m[1]), m[3]
    change: dict[str, str] = {}
    if count := re.match(r"s([23])(?!t)(?!p)|s(3)p", words):
        change["consumers"] = {"2": "two", "3": "three"}[count[1] or count[2]]
    if keys := re.search(r"n(\d+)", words):
        change["tile_n"] = keys[1]
    if stages := re.search(r"(?:st|sp|lptp)(\d)$", words):
        change["kv_stages"] = stages[1]
    if words.endswith(("noturn", "nt")):
        change["pipeline"] = "no_turns"
    for ending, tiles in (
        ("ldyn", "lpt_dynamic"), ("dyn", "dynamic"), ("ownp", "persistent"), ("own", "own"),
        ("single", "plain"), ("n176p", "shared_persistent"), ("s3p", "shared_persistent"),
        ("persist", "shared_persistent"),
    ):  # fmt: skip
        if words.endswith(ending):
            change["tiles"] = tiles
            break
    if re.search(r"(sp|lptp)\d?$", words):
        change["tiles"] = "persistent"
    return replace(variant(head_dim, m[2] == "c", **change), name=name)


def predictions(
    variants: Iterable[Variant], shapes: list[tuple[int, int, int]], folder: Path
) -> Iterator[tuple[Variant, Member, tuple[float, ...]]]:
    """Each variant compiled, with modelled seconds for each shape; two compilers side by side."""
    options = Options.from_environment()

    def one(v: Variant) -> tuple[Variant, Member, tuple[float, ...]]:
        made = v.member(folder)
        found = analyze_member(made, *compiled_counts(made, options), shapes)
        return v, made, tuple(x.seconds for _, x in found.calls)

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(one, variants):
            print(done[0].name, f"{done[2][0] * 1e3:.3f} ms modelled", flush=True)
            yield done


def correlate(rows: list[dict[str, Any]], source: str) -> dict[str, Any]:
    """Spearman's correlation within each problem, and their mean weighted by variants."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for r in rows:
        groups.setdefault(r["problem"], []).append(r)
    found = {
        p: {
            "variants": len(g),
            "rho": spearman([r["modelled"] for r in g], [r["measured"] for r in g]),
        }
        for p, g in sorted(groups.items())
        if len(g) > 2
    }
    total = sum(g["variants"] for g in found.values())
    mean = sum(g["variants"] * g["rho"] for g in found.values()) / total
    names = len({r["variant"] for r in rows})
    return {"source": source, "variants": names, "pairs": total, "mean_rho": mean,
            "problems": found, "rows": rows}  # fmt: skip


def write(name: str, record: dict[str, Any]) -> None:
    """Keeps a correlation, and prints it."""
    (RESULTS / name).write_text(json.dumps(record, indent=1) + "\n")
    for problem, g in record["problems"].items():
        print(f"  {problem:24s} {g['variants']:3d} variants  rho {g['rho']:.3f}")
    print(f"{record['variants']} variants, mean rho {record['mean_rho']:.3f}: {RESULTS / name}")


def earlier(folder: Path) -> None:
    """Correlates with the runs kept before; their kernels are of earlier compilers."""
    runs = json.loads(EARLIER.read_text())
    lengths = sorted({r["length"] for r in runs["rows"]})
    shapes = [(max(1, 32768 // n), HEADS, n) for n in lengths]
    measured: dict[tuple[str, int], list[float]] = {}
    for r in runs["rows"]:
        measured.setdefault((r["variant"], r["length"]), []).append(r["ms"] / r["peer_ms"])
    rows = []
    names = sorted({v for v, _ in measured})
    for v, _, seconds in predictions(map(earlier_variant, names), shapes, folder):
        mask = "causal" if v.causal else "full"
        for n, s in zip(lengths, seconds, strict=True):
            if times := measured.get((v.name, n)):
                problem = f"d{v.head_dim} {mask} {n}"
                row = {"problem": problem, "variant": v.name, "choice": v.choice, "modelled": s}
                rows.append({**row, "measured": sum(times) / len(times)})
    write("ranking-earlier.json", correlate(rows, EARLIER.name))


def kit(where: Path, peers: Path | None, folder: Path) -> None:
    """Fresh variants at 4 k, and LPT against plain order for MHA, GQA and MQA, causal, 8 k."""
    options, shapes = Options.from_environment(), [(32768 // LENGTH, HEADS, LENGTH)]
    known = list(predictions([*fresh(), *orders()], shapes, folder))
    foretold = {v.name: {"choice": v.choice, "modelled": s} for v, _, (s,) in known}
    PREDICTED.write_text(json.dumps({**provenance(), "variants": foretold}, indent=1) + "\n")
    made = [m for _, m, _ in known]
    kernels = [replace(kit_kernel(m, options), gqa_ratio=_ratio(m.name)) for m in made]
    cases = []
    for d, causal in product((64, 128), (False, True)):
        shape = {"batch": 32768 // LENGTH, "heads": HEADS, "heads_kv": HEADS}
        shape |= {"seqlen_q": LENGTH, "seqlen_k": LENGTH}
        cases.append(_case(d, causal, shape))
    cases += [_case(128, True, shape) for shape in grouped_shapes()]
    print(make_kit(where, kernels, options, peers_folder=peers, only_cases=cases))


def orders() -> list[Variant]:
    """The same kernel in LPT order and in plain order; other names than those of `fresh`."""
    found = [
        variant(128, True),
        variant(128, True, tiles="plain"),
        variant(128, True, tiles="dynamic"),
    ]
    return [replace(v, name=v.name.replace("rank_", "order_")) for v in found]


def _ratio(name: str) -> int | None:
    """Variants that are ranked run on MHA alone; orders on any ratio."""
    return 1 if name.startswith("rank_") else None


def _case(head_dim: int, causal: bool, shape: Case) -> Case:
    dims = {"head_dim": head_dim, "head_dim_v": head_dim}
    case: Case = {"kind": "time", "dtype": "bfloat16", **dims, "causal": causal, **shape, **QUICK}
    return {"name": case_name(case), **case}


def kept(out: Path) -> None:
    """Keeps a kit's results, correlates the ranked variants, and prints the orders' speeds."""
    record = read(out)
    print(keep(record, RESULTS))
    times: dict[str, tuple[float, float]] = {}
    for r in record["results"]:
        rows, base = r.get("rows", {}), r.get("base")
        for name, row in rows.items():
            wrong = any(f.startswith(f"{name}:") for f in r["faults"])
            if name.startswith("rank_") and not wrong:
                times[name] = (row["ms"], rows[base]["ms"] if base in rows else 1.0)
            if name.startswith("order_"):
                print(
                    f"  {r['done']}: {name} {row['ms']:.3f} ms, {row['ratio'] or 0:.3f} of {base}"
                )
    foretold = json.loads(PREDICTED.read_text())["variants"]
    rows = []
    for v in (v for v in fresh() if v.name in times):
        problem = f"d{v.head_dim} {'causal' if v.causal else 'full'} {LENGTH}"
        ms, peer = times[v.name]
        row = {"problem": problem, "variant": v.name, **foretold[v.name], "ms": ms}
        rows.append({**row, "measured": ms / peer})
    write("ranking-sm90.json", correlate(rows, str(record["machine"].get("device"))))


def main() -> None:
    """The command line."""
    p = argparse.ArgumentParser(description="How well the cost model ranks Hopper variants.")
    what = p.add_mutually_exclusive_group(required=True)
    what.add_argument("--kit", type=Path, metavar="DIR")
    what.add_argument("--keep", type=Path, metavar="DIR")
    what.add_argument("--earlier", action="store_true")
    p.add_argument("--peers", type=Path, metavar="DIR")
    args = p.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if args.kit:
        kit(args.kit, args.peers, FOLDER)
    elif args.keep:
        kept(args.keep)
    else:
        earlier(FOLDER)


if __name__ == "__main__":
    main()
