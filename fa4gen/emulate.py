"""`fa4gen emulate`: builds a schedule, runs the kernel in the emulator, and judges what came out.

No GPU takes part: the PTX that the DSL's compiler made runs on this machine's processor, launched
by the kernel's real host code. What is said of Blackwell here is emulated, never measured.
"""

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from fa4gen.diag import error
from fa4gen.emulator import Emulator
from fa4gen.emulator.attention import (
    MAX,
    RMS,
    AttentionProblem,
    Inputs,
    Verdict,
    exact_forward,
    judge_backward,
    judge_forward,
    listed,
    make_inputs,
    sinks,
    slopes,
)
from fa4gen.emulator.pages import paged
from fa4gen.emulator.report import Fault, Report
from fa4gen.ir.features import OPEN, pages_for
from fa4gen.ir.geometry import padded_rows

if TYPE_CHECKING:
    import torch

LISTS = {"block_list", "query_list"}  # features
SOFTCAP = 30.0  # where `--set softcap=true` says no more
Progress = Callable[[int, int], None]  # CTAs done, CTAs in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulated:
    """One run: the emulator's report, with places in the schedule, and verdicts on the values."""

    name: str
    target: str
    problem: AttentionProblem
    seed: int
    report: Report
    verdicts: tuple[Verdict, ...]

    @property
    def ok(self) -> bool:
        """Right values, no race, no hang, no other fault."""
        return not self.report.faulty and all(v.right for v in self.verdicts)

    def __str__(self) -> str:
        """What a person reads: values, faults, counts."""
        r, p = self.report, self.problem
        shape = (
            f"batch {p.batch}, heads {p.heads} over {p.heads_kv}, {p.seqlen_q} queries, "
            f"{p.seqlen_k} keys, {'causal' if p.causal else 'full'}, "
            f"{_modified(p)}{p.dtype}, seed {self.seed}"
        )
        lines = [f"{self.name} ({self.target}, emulated): {shape}", *map(str, self.verdicts)]
        lines += [str(f) for f in (*r.faults, *r.races)]
        lines += [str(r.deadlock)] if r.deadlock else []
        lines += [f"warning: {w}" for w in r.warnings]
        raced = "no race, " if r.races_checked else "races not checked, "
        found = f"{len(r.races)} races, {len(r.faults)} faults" if r.faulty else f"{raced}no hang"
        counts = f"{r.ctas} CTAs, {r.warp_instructions} warp instructions in {r.seconds:.1f} s"
        return "\n  ".join([*lines, f"{found}: {counts}"])

    def as_dict(self) -> dict[str, object]:
        """The same for machines (JSON types alone)."""
        r = self.report
        return {
            "schedule": self.name,
            "target": self.target,
            "problem": asdict(self.problem),
            "seed": self.seed,
            "ok": self.ok,
            "verdicts": [asdict(v) for v in self.verdicts],
            "races": [asdict(f) for f in r.races],
            "faults": [asdict(f) for f in r.faults],
            "warnings": [asdict(f) for f in r.warnings],
            "deadlock": asdict(r.deadlock) if r.deadlock else None,
            "ctas": r.ctas,
            "warp_instructions": r.warp_instructions,
            "seconds": round(r.seconds, 3),
        }


def emulate(
    path: str | Path,
    *,
    settings: Mapping[str, str] | None = None,
    variant: str | None = None,
    batch: int = 1,
    heads: int = 1,
    heads_kv: int = 1,
    seqlen_q: int,
    seqlen_k: int,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    splits: int = 1,
    lengths_q: tuple[int, ...] | None = None,
    lengths_k: tuple[int, ...] | None = None,
    used_k: tuple[int, ...] | None = None,
    page_size: int = 0,
    seed: int = 0,
    races: bool = True,
    processes: int = 1,
    num_sms: int = 2,
    progress: Progress | None = None,
) -> Emulated:
    """Builds `path` (or takes the kernel from the cache) and runs it once on random inputs.

    `num_sms` is what a persistent kernel is told: with few, a CTA comes round to several tiles.
    `window` (left, right; None: open), `softcap` and several `splits` turn these features on.
    With `alibi` and `sinks`, values are made up (see `emulator.attention`). `lengths_q`,
    `lengths_k`: packed sequences (they decide batch and length); `used_k`: keys of each that are
    there. `page_size`: keys and values lie in pages of so many rows; all else in them is NaN.
    A schedule over lists of blocks is given lists of half of them.
    Raises `Fa4genError` for a schedule that is refused and for sizes that make no problem.
    """
    import torch

    from fa4gen import driver
    from fa4gen.emit.render import render
    from fa4gen.options import Options
    from fa4gen.runtime.compile import Request, compile_cached, line_map
    from fa4gen.scheduler.tile_ring import DYNAMIC

    packed = {"varlen_q": lengths_q, "varlen_k": lengths_k, "seqused_k": used_k}
    batch = _batch(batch, packed)
    seqlen_q = seqlen_q if lengths_q is None else sum(lengths_q)
    seqlen_k = seqlen_k if lengths_k is None else sum(lengths_k)
    sizes = {"batch": batch, "heads": heads, "heads_kv": heads_kv, "seqlen_q": seqlen_q}
    counts = {"seqlen_k": seqlen_k, "num_sms": num_sms, "splits": splits}
    for name, value in {**sizes, **counts}.items():
        if value < 1:
            raise error("FA0912", f"{name} is {value}", fix="give a whole number from 1")
    if heads % heads_kv:
        raise error("FA0912", f"{heads} heads are no multiple of {heads_kv} heads of K and V")
    paging = pages_for(page_size)
    if page_size and not paging:
        raise error("FA0912", f"page_size is {page_size}", fix="give a multiple of 16")
    if page_size and seqlen_k % page_size and used_k is None:
        used_k = packed["seqused_k"] = (seqlen_k,) * batch
    given = {"window": window, "softcap": softcap, "split_kv": splits > 1 or None, **packed}
    on = [name for name, value in given.items() if value is not None]
    asked = dict(settings or {}) | dict.fromkeys([*on, *filter(None, [paging])], "true")
    checked = driver.check(path, settings=asked, variant=variant)
    schedule, text = checked.schedule, render(checked.program).text
    made = compile_cached(
        Request(name=schedule.name, target=schedule.target, text=text), Options.from_environment()
    )
    problem = AttentionProblem(
        **sizes,
        seqlen_k=seqlen_k,
        head_dim=schedule.head_dim,
        head_dim_v=schedule.head_dim_v,
        causal=schedule.causal,
        window=window or ((None, None) if "window" in schedule.features else None),
        softcap=(softcap or SOFTCAP) if "softcap" in schedule.features else 0.0,
        alibi="alibi" in schedule.features,
        sinks="sinks" in schedule.features,
        lengths_q=lengths_q,
        lengths_k=lengths_k,
        used_k=used_k,
        page_size=page_size,
        blocks=schedule.tile() if LISTS & schedule.features else None,
        by_keys="query_list" in schedule.features,
        dtype={"bf16": "bfloat16", "fp16": "float16"}[schedule.dtype],
    )
    emulator = Emulator(
        target=schedule.target, seed=seed, races=races, processes=processes, progress=progress
    )
    fwd = emulator.load(made.shared_object, ptx=[made.lines_ptx])["fwd"]
    x = make_inputs(problem, seed)
    if schedule.kernel == "attention_backward":
        more = feature_values(problem)
        more += turns(problem) if "deterministic" in schedule.features else []
        report, verdicts = run_backward(fwd, problem, x, num_sms, more)
    else:
        k, v, table = paged(problem, x, seed) if page_size else (x.k, x.v, None)
        more = feature_values(problem, table)
        more += partials(problem, splits) if "split_kv" in schedule.features else []
        more += [torch.zeros(1, dtype=torch.int32)] if schedule.scheduler in DYNAMIC else []
        report, verdicts = _forward(fwd, problem, x, (k, v), num_sms, more)
    places = {line: str(span) for line, span in line_map(text).items()}
    return Emulated(
        name=driver.member_name(schedule),
        target=schedule.target,
        problem=problem,
        seed=seed,
        report=_placed(report, places),
        verdicts=tuple(verdicts),
    )


def feature_values(problem: AttentionProblem, table: "torch.Tensor | None" = None) -> list[object]:
    """What a kernel with the problem's features is called with, in the order of `ir.features`;
    `table`: of pages."""
    import torch

    found: list[object] = []
    if problem.window:
        found += [OPEN if bound is None else bound for bound in problem.window]
    found += [problem.softcap] if problem.softcap else []
    found += [slopes(problem)] if problem.alibi else []
    found += [sinks(problem)] if problem.sinks else []
    for lengths in (problem.lengths_q, problem.lengths_k):
        if lengths:
            found.append(torch.tensor((0, *accumulate(lengths)), dtype=torch.int32))
    if problem.used_k:
        found.append(torch.tensor(problem.used_k, dtype=torch.int32))
    found += [] if table is None else [table]
    return found if problem.blocks is None else [*found, *block_lists(problem)]


def block_lists(problem: AttentionProblem) -> "list[torch.Tensor]":
    """Counts and numbers of the blocks that are masked, then of those that are seen whole, int32:
    (batch, heads, blocks of queries), (batch, heads, blocks of queries, blocks of keys). `by_keys`:
    blocks of queries for each block of keys."""
    found = []
    for kind in (1, 2):
        chosen = listed(problem) == kind
        chosen = chosen.mT if problem.by_keys else chosen
        indices = chosen.byte().argsort(dim=-1, descending=True, stable=True)
        found += [chosen.sum(-1).int(), indices.int()]
    return found


def partials(problem: AttentionProblem, splits: int) -> list[object]:
    """Room for the outputs and LSEs of splits; what is not written stays NaN."""
    import torch

    p, rows = problem, splits * problem.batch_q
    out = torch.full((rows, p.seqlen_q, p.heads, p.head_dim_v), float("nan"))
    return [out, torch.full((rows, p.heads, p.seqlen_q), float("nan"))]


def _batch(batch: int, packed: Mapping[str, tuple[int, ...] | None]) -> int:
    """The number of sequences, where lengths say it. Raises FA0912 where they disagree."""
    counts = {name: len(x) for name, x in packed.items() if x is not None}
    negative = [name for name, x in packed.items() if x is not None and min(x, default=0) < 0]
    if len(set(counts.values())) > 1 or 0 in counts.values() or negative:
        said = [f"{n} for {name}" for name, n in counts.items()]
        said += [f"{name} has one below 0" for name in negative]
        raise error(
            "FA0912",
            f"lengths of sequences: {', '.join(said)}",
            fix="give one whole number from 0 for each sequence, as many in each list",
        )
    return next(iter(counts.values()), batch)


def _modified(p: AttentionProblem) -> str:
    """The features of a problem, in words."""
    words = []
    if p.window:
        left, right = ("open" if b is None else b for b in p.window)
        words.append(f"window {left}, {right}")
    words += [f"softcap {p.softcap:g}"] if p.softcap else []
    for name, lengths in (("q", p.lengths_q), ("k", p.lengths_k), ("used k", p.used_k)):
        words += [f"lengths of {name} {' '.join(map(str, lengths))}"] if lengths else []
    words += [f"pages of {p.page_size}"] if p.page_size else []
    words += [name for name, on in (("alibi", p.alibi), ("sinks", p.sinks)) if on]
    return "".join(f"{word}, " for word in words)


Result = tuple[Report, list[Verdict]]
Kernel = Callable[..., Report]


def _forward(
    kernel: Kernel,
    problem: AttentionProblem,
    x: Inputs,
    keys: "tuple[torch.Tensor, torch.Tensor]",
    num_sms: int,
    more: list[object],
) -> Result:
    """Runs a forward on `keys` (K and V, perhaps in pages); what it does not write stays NaN."""
    import torch

    p = problem
    out = torch.full((p.batch_q, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).to(x.q.dtype)
    lse = torch.full((p.batch_q, p.heads, p.seqlen_q), float("nan"))
    report = kernel(x.q, *keys, out, lse, p.scale, num_sms, *more)
    return report, judge_forward(p, x, out, lse)


def turns(problem: AttentionProblem) -> list[object]:
    """How many tiles of keys have added to a block of dQ: none yet."""
    import torch

    blocks = padded_rows(problem.seqlen_q)
    return [torch.zeros(problem.batch, problem.heads, blocks, dtype=torch.int32)]


def run_backward(
    kernel: Kernel, problem: AttentionProblem, x: Inputs, num_sms: int, more: Iterable[object] = ()
) -> Result:
    """Runs a backward on the exact output, rounded; what it does not write stays NaN."""
    import torch

    p = problem
    out, lse = exact_forward(p, x)
    made = [torch.full_like(t, float("nan")) for t in (x.q, x.k, x.v)]
    rows = (p.batch, p.heads, padded_rows(p.seqlen_q))
    values = [torch.full(rows, float("nan")) for _ in range(2)]
    sums = torch.full(x.q.shape, float("nan"))
    given = (x.q, x.k, x.v, out, x.d_out, lse, torch.zeros_like(lse))
    report = kernel(*given, *made, *values, sums, p.scale, num_sms, *more)
    return report, judge_backward(p, x, tuple(made), max_factor=MAX, rms_factor=RMS)


def _placed(report: Report, places: Mapping[int, str]) -> Report:
    """The report with the schedule's lines before those of the generated file, where known."""

    def of(source: str) -> str:
        line = source.rpartition(":")[2]
        place = places.get(int(line)) if line.isdigit() else None
        return f"{place}, {source}" if place else source

    def placed(faults: tuple[Fault, ...]) -> tuple[Fault, ...]:
        return tuple(
            replace(f, source=of(f.source), other_source=of(f.other_source)) for f in faults
        )

    deadlock = report.deadlock
    if deadlock:
        waiters = tuple(replace(w, source=of(w.source)) for w in deadlock.waiters)
        deadlock = replace(deadlock, waiters=waiters)
    return replace(
        report,
        races=placed(report.races),
        faults=placed(report.faults),
        warnings=placed(report.warnings),
        deadlock=deadlock,
    )


def bar(done: int, total: int) -> None:
    """A progress bar on standard error."""
    width = 30 * done // max(total, 1)
    end = "\r\x1b[K" if done == total else ""
    print(
        f"\r[{'=' * width}{' ' * (30 - width)}] {done} of {total} CTAs{end}",
        end="",
        file=sys.stderr,
        flush=True,
    )
