"""A deterministic backward: tiles of keys add to a block's dQ in turn."""

from pathlib import Path

import pytest

from fa4gen import driver
from fa4gen.diag import Fa4genError
from fa4gen.emulate import emulate, turns
from fa4gen.ir.geometry import padded_rows
from fa4gen.scheduler.check_turns import CLAIMS, accumulation, ordered
from fa4gen.scheduler.semaphores import ASSUMPTION, residency

SCHEDULES = Path(__file__).parents[1] / "schedules"
FAMILIES = ("bwd_turns_to64_sm90", "bwd_turns_to128_sm90", "bwd_turns_to256_sm90")


@pytest.mark.dsl
@pytest.mark.parametrize(("family", "causal"), [(FAMILIES[0], "true"), (FAMILIES[2], "false")])
def test_gradients_are_right(family: str, causal: str) -> None:
    pytest.importorskip("cutlass")
    sizes = {"heads": 2, "heads_kv": 1, "seqlen_q": 131, "seqlen_k": 300}
    got = emulate(SCHEDULES / f"{family}.yaml", settings={"causal": causal}, **sizes)  # type: ignore[arg-type]
    assert got.ok, str(got)


@pytest.mark.dsl
def test_every_interleaving_gives_the_same_bits() -> None:
    """Four tiles of keys at a time, in threads of the operating system's. (Without turns, the sums
    of six seeds were six different ones, on 2026-12-01.)"""
    pytest.importorskip("cutlass")
    import torch

    from fa4gen.emit.render import render
    from fa4gen.emulator import Emulator
    from fa4gen.emulator.attention import AttentionProblem, exact_forward, make_inputs
    from fa4gen.options import Options
    from fa4gen.runtime.compile import Request, compile_cached

    name = "bwd_turns_to128_sm90"
    asked = {"causal": "true", "head_dim": "64"}
    checked = driver.check(SCHEDULES / f"{name}.yaml", settings=asked)
    text = render(checked.program).text
    made = compile_cached(
        Request(name=name, target="sm_90a", text=text), Options.from_environment()
    )
    p = AttentionProblem(
        heads=2, heads_kv=1, seqlen_q=131, seqlen_k=600, head_dim=64, head_dim_v=64, causal=True
    )
    x = make_inputs(p, 0)
    out, lse = exact_forward(p, x)
    found = []
    for seed in range(3):
        emulator = Emulator(target="sm_90a", seed=seed, processes=4)
        kernel = emulator.load(made.shared_object, ptx=[made.lines_ptx])["fwd"]
        results = [torch.full_like(t, float("nan")) for t in (x.q, x.k, x.v)]
        rows = [torch.full((1, 2, padded_rows(p.seqlen_q)), float("nan")) for _ in range(2)]
        given = (x.q, x.k, x.v, out, x.d_out, lse, torch.zeros_like(lse), *results, *rows)
        sums = torch.full(x.q.shape, float("nan"))
        report = kernel(*given, sums, p.scale, 2, *turns(p))
        assert not report.faulty, report
        found.append([sums, *results])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def edited(tmp_path: Path, scheduler: str, order: str) -> Path:
    path = tmp_path / "edited.yaml"
    path.write_text(
        f"language: 1\nschedule: edited\nextends: {SCHEDULES}/bwd_turns_to128_sm90.yaml\n"
        f"levels: {{tile: {{scheduler: {scheduler}}}}}\n"
        f"operations: {{reduce_dq: {{turns: {order}}}}}\n"
    )
    return path


@pytest.mark.parametrize("order", ["ascending", "descending"])
@pytest.mark.parametrize("scheduler", CLAIMS)
def test_no_tile_may_wait_for_one_that_is_claimed_later(
    scheduler: str, order: str, tmp_path: Path
) -> None:
    path = edited(tmp_path, scheduler, order)
    if CLAIMS[scheduler] == order:
        assert ("assumption", ASSUMPTION) in driver.check(path).program.evidence
        return
    with pytest.raises(Fa4genError) as caught:
        driver.check(path, settings={"causal": "true"})
    (found,) = caught.value.diagnostics
    assert found.code == "FA0323"
    assert found.span is not None
    assert found.span.line == 5
    assert f"`turns: {CLAIMS[scheduler]}`" in found.fix


@pytest.mark.parametrize("causal", ["true", "false"])
def test_each_tile_that_visits_a_block_has_a_turn(causal: str) -> None:
    schedule = driver.check(SCHEDULES / f"{FAMILIES[1]}.yaml", settings={"causal": causal}).schedule
    op = ordered(schedule)
    assert op is not None
    seen = accumulation(schedule, op, 7)
    visitors = {m: [n for n, v in enumerate(seen.visits) if m in v] for m in seen.ranks}
    assert all(sorted(seen.ranks[m]) == visitors[m] for m in visitors)
    assert residency(seen).least == 1


def test_it_is_a_feature_that_is_always_on() -> None:
    schedule = driver.check(SCHEDULES / f"{FAMILIES[0]}.yaml").schedule
    assert "deterministic" in schedule.features
    with pytest.raises(Fa4genError, match="FA0211"):
        driver.check(SCHEDULES / "bwd_sm90.yaml", settings={"deterministic": "true"})


def test_a_window_has_other_visitors(tmp_path: Path) -> None:
    path = edited(tmp_path, "spt", "descending")
    path.write_text(path.read_text() + "serves: {features: [window, deterministic]}\n")
    driver.check(path)
    with pytest.raises(Fa4genError) as caught:
        driver.check(path, settings={"window": "true"})
    assert [d.code for d in caught.value.diagnostics] == ["FA0324"]
