"""`fa4gen analyze`: what a KV block asks of each unit, what bounds the loop, how long a call takes.

Everything here is modelled from shapes, from the graph that the proof uses, and (if compiled) from
instructions counted in the machine code. Nothing is measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fa4gen.build import Member, member
from fa4gen.cost.counts import Counts
from fa4gen.cost.model import Loop, Prediction, loop_of, predict
from fa4gen.cost.pipeline import Pipeline
from fa4gen.cost.rates import DEVICES, Rates, rates_of
from fa4gen.cost.tile import Load, tile_load
from fa4gen.cost.waves import Problem
from fa4gen.options import Options
from fa4gen.runtime.report import CodeCounts

from .counts import compiled_counts
from .loop import pipeline_of

FORWARD = "attention_forward"  # whose calls are modelled; of a backward, the block alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Analysis:
    """One member: its load, its loop, and what calls are predicted to take."""

    one: Member
    pipeline: Pipeline
    load: Load
    loop: Loop
    rates: Rates
    calls: tuple[tuple[Problem, Prediction], ...]
    counts: Counts | None
    code: CodeCounts | None

    def as_dict(self) -> dict[str, object]:
        """JSON types alone."""
        schedule = self.one.checked.schedule
        return {
            "schedule": self.one.name,
            "target": schedule.target,
            "tile": list(schedule.buffer_of("s").tile),
            "instances": self.load.instances,
            "clocks": {u: round(c, 1) for u, c in self.load.one.items()},
            "exponentials": self.load.exponentials,
            "clocks_of_the_cta": {u: round(c, 1) for u, c in self.loop.loads.items()},
            "slowest_cycle": round(self.loop.cycle.period, 1),
            "pace": round(self.loop.pace, 1),
            "bound": self.loop.bound,
            "counted_in": "machine code" if self.counts else "shapes",
            "calls": [
                {
                    "seqlen_q": p.seqlen_q,
                    "seqlen_k": p.seqlen_k,
                    "batch": p.batch,
                    "heads": p.heads,
                    "modelled_seconds": x.seconds,
                    "modelled_tflops": tflops(p, schedule.head_dim, schedule.head_dim_v, x),
                }
                for p, x in self.calls
            ],
        }


def analyze(
    path: str | Path,
    settings: Mapping[str, str],
    variant: str | None,
    shapes: Sequence[tuple[int, int, int]],
    options: Options | None,
) -> Analysis:
    """One schedule; `shapes`: (batch, heads, length) of calls. With `options` it is compiled, and
    its instructions counted. Raises Fa4genError as `check` does; FA0215 without rates."""
    one = member(path, settings, variant)
    counts, code = compiled_counts(one, options) if options else (None, None)
    return analyze_member(one, counts, code, shapes)


def analyze_member(
    one: Member,
    counts: Counts | None,
    code: CodeCounts | None,
    shapes: Sequence[tuple[int, int, int]],
) -> Analysis:
    """The same for a member that is there already."""
    schedule = one.checked.schedule
    rates = rates_of(schedule.target)
    pipeline = pipeline_of(one.checked)
    loop = loop_of(pipeline, counts)
    device = DEVICES[schedule.target]
    calls = []
    for batch, heads, length in shapes if schedule.kernel == FORWARD else ():
        problem = Problem(
            batch=batch,
            heads=heads,
            seqlen_q=length,
            seqlen_k=length,
            causal=schedule.causal,
        )
        calls.append((problem, predict(pipeline, loop, counts, problem, device)))
    return Analysis(
        one=one,
        pipeline=pipeline,
        load=tile_load(schedule, rates),
        loop=loop,
        rates=rates,
        calls=tuple(calls),
        counts=counts,
        code=code,
    )


def tflops(problem: Problem, head_dim: int, head_dim_v: int, x: Prediction) -> float:
    """10^12 multiplications and additions a second, as published comparisons count them."""
    pairs = problem.seqlen_q * problem.seqlen_k * (0.5 if problem.causal else 1.0)
    flop = 2 * problem.batch * problem.heads * pairs * (head_dim + head_dim_v)
    return flop / x.seconds / 1e12
