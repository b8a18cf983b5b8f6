"""The backward with windows, soft-capping, ALiBi and sinks, in the emulator: right gradients, no
race, no hang."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fa4gen.api.gradients import sink_gradient
from fa4gen.driver import check
from fa4gen.emit.render import render
from fa4gen.emulate import Emulated, emulate, feature_values
from fa4gen.emulator import Emulator
from fa4gen.emulator.attention import AttentionProblem, exact_forward, make_inputs, sinks, slopes
from fa4gen.ir.geometry import padded_rows
from fa4gen.options import Options
from fa4gen.runtime.compile import Request, compile_cached
from tests.api.kernels import reference

SCHEDULES = Path(__file__).parents[1] / "schedules"
BOTH = pytest.mark.parametrize("name", ["bwd_hd64", "bwd_hd64_sm90"])
ALL = dict.fromkeys(("window", "softcap", "alibi"), "true")


def run(name: str, **asked: Any) -> Emulated:
    pytest.importorskip("cutlass")
    given = {"heads": 2, "heads_kv": 1, "settings": ALL} | asked
    return emulate(SCHEDULES / f"{name}.yaml", **given)


@pytest.mark.dsl
@BOTH
def test_all_at_once_with_windows_of_any_kind(name: str) -> None:
    """Rows that see no key, keys that no row sees, open and shifted ends; another head's slope."""
    for window, sq, sk in (((60, 20), 129, 300), ((None, -100), 200, 160), ((-40, 90), 130, 129)):
        done = run(name, window=window, softcap=20.0, seqlen_q=sq, seqlen_k=sk, seed=sq)
        assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_blocks_outside_of_a_window_are_never_visited(name: str) -> None:
    """One tile of keys under 1500 queries, in 12 blocks of 128 rows: an LSE and a delta each."""

    def blocks(*window: int | None) -> float:
        done = run(name, heads=1, seqlen_q=1500, seqlen_k=128, races=False, window=window)
        assert done.ok, str(done)
        counts = done.report.opcodes
        return sum(n for op, n in counts.items() if op.startswith("cp.async.bulk.shared")) / 2

    assert blocks(None, 100) == 3  # from row 1272 on
    assert blocks(-900, None) == 5  # to row 599
    assert blocks(None, None) == 12


@pytest.mark.dsl
def test_sinks_take_their_share_of_the_gradient() -> None:
    """The kernel knows them by the LSE alone; theirs comes of its row values. Of some rows the sink
    is all that there is."""
    pytest.importorskip("cutlass")
    sizes = {"batch": 2, "heads": 3, "seqlen_q": 150, "seqlen_k": 100}
    features = {"window": (60, 0), "softcap": 20.0, "alibi": True}
    problem = AttentionProblem(**sizes, **features, head_dim=64, head_dim_v=64)  # type: ignore[arg-type]
    with_sinks = replace(problem, heads_kv=1, sinks=True)
    checked = check(SCHEDULES / "bwd_hd64_sm90.yaml", settings=ALL)
    request = Request(
        name=checked.schedule.name, target="sm_90a", text=render(checked.program).text
    )
    made = compile_cached(request, Options.from_environment())
    kernel = Emulator(target="sm_90a", seed=0).load(made.shared_object, ptx=[made.lines_ptx])["fwd"]
    x = make_inputs(with_sinks, 0)
    out, lse = exact_forward(with_sinks, x)
    d_lse = torch.randn(lse.shape, generator=torch.Generator().manual_seed(1))
    grads = [torch.full_like(t, float("nan")) for t in (x.q, x.k, x.v)]
    rows = [torch.full((2, 3, padded_rows(150)), float("nan")) for _ in range(2)]
    sums = torch.full(x.q.shape, float("nan"))
    given = (x.q, x.k, x.v, out, x.d_out, lse, d_lse, *grads, *rows, sums)
    report = kernel(*given, problem.scale, 2, *feature_values(problem))
    assert not report.faulty, report
    got = (*grads, sink_gradient(sinks(problem), lse, rows[1][:, :, :150]))
    leaves = [t.double().requires_grad_() for t in (x.q, x.k, x.v, sinks(problem))]
    more = {"softcap": 20.0, "slopes": slopes(problem), "sinks": leaves[3]}
    made = reference(*leaves[:3], False, problem.scale, 60, 0, **more)
    wanted = torch.autograd.grad(made, leaves, (x.d_out.double(), d_lse.double()))
    for g, e in zip(got, wanted, strict=True):
        assert torch.allclose(g.double(), e.nan_to_num(), atol=0.03, rtol=0.02)
        assert (g.double() - e.nan_to_num()).norm() <= 0.01 * e.nan_to_num().norm()
