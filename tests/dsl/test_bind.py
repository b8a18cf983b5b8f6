"""Binding: what a schedule says for one problem, with what the author left short spread out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.dsl import load
from fa4gen.ir.schedule import Barrier, Schedule, Space, Step

SCHEDULES = Path(__file__).parents[2] / "schedules"
BLACKWELL, HOPPER = SCHEDULES / "fwd_hd128.yaml", SCHEDULES / "fwd_hd128_sm90.yaml"

Derive = Callable[[str], Path]


@pytest.fixture
def derive(tmp_path: Path) -> Derive:
    def make(body: str, base: Path = BLACKWELL) -> Path:
        path = tmp_path / "derived.yaml"
        path.write_text(f"language: 1\nschedule: derived\nextends: {base}\n{body}")
        return path

    return make


def barrier(schedule: Schedule, name: str) -> Barrier:
    return next(b for b in schedule.barriers if b.name == name)


def order(steps: tuple[Step, ...]) -> list[str]:
    return [
        s.operation
        + (f"[{s.instance}]" if s.instance is not None else "")
        + (f"+{s.ahead}" if s.ahead else "")
        for s in steps
    ]


def codes(path: Path) -> list[str]:
    with pytest.raises(Fa4genError) as caught:
        load(path)
    return [d.code for d in caught.value.diagnostics]


def test_the_blackwell_forward_says_what_its_file_says() -> None:
    s = load(BLACKWELL)
    assert (s.name, s.target, s.kernel) == ("fwd_hd128", "sm_100a", "attention_forward")
    assert (s.dtype, s.causal, s.head_dim, s.head_dim_v) == ("bf16", False, 128, 128)
    assert (s.scheduler, s.order, s.empty) == ("static_persistent", "descending", "mask")
    assert [(r.name, r.warps, r.per, r.registers) for r in s.roles] == [
        ("softmax", 4, True, 192),
        ("correction", 4, False, 72),
        ("mma", 1, False, 56),
        ("load", 1, False, 56),
        ("epilogue", 1, False, 56),
    ]
    p = s.buffer_of("p")
    assert (p.space, p.parts, p.overlays, p.columns) == (Space.TMEM, (96, 32), "s", (64, 192))
    assert s.buffer_of("v") is s.buffer_of("k")
    assert s.buffer_of("v").stages is None
    pv = s.operation("pv")
    assert (pv.role, pv.kind, pv.a, pv.b, pv.updates) == ("mma", "umma", "p", "v", ("o",))
    assert s.operation("exp").options["mix"] == {"fma_share": 0.125, "degree": 3}
    assert s.operation("stats").options["threshold"] == 8.0
    assert s.operation("scores").options["mask"] == ("seqlen_k", "causal", "window")
    assert s.params["p_parts"] == (96, 32)


def test_the_hopper_forward_says_what_its_file_says() -> None:
    s = load(HOPPER)
    assert (s.index.name, s.index.count) == ("s", 2)
    assert (s.role("load").warps, s.role("load").active) == (4, 1)
    assert s.buffer_of("k").stages == 2
    assert s.buffer_of("q").one_load
    turn = s.turns[0]
    assert (turn.name, turn.role, turn.kind) == ("tensor", "consumer", "named")
    assert (turn.first.operation, turn.first.ahead, turn.last.operation) == ("qk", 1, "pv")
    q_full = barrier(s, "q_full")
    assert q_full.after[0][0].instance is None
    assert q_full.before[0][0].instance == "all"


def test_steps_with_the_index_are_repeated_together() -> None:
    s = load(BLACKWELL)
    assert order(s.steps_of("mma").block) == ["pv[0]", "qk[0]+1", "pv[1]", "qk[1]+1"]
    assert order(s.steps_of("load").tile) == ["load_q[0]", "load_q[1]"]
    assert order(s.steps_of("softmax").block) == ["scores", "stats", "exp", "sum"]
    one = load(BLACKWELL, settings={"index.s": "1"})
    assert order(one.steps_of("mma").block) == ["pv[0]", "qk[0]+1"]


def test_runs_are_separated_by_other_steps(derive: Derive) -> None:
    s = load(derive('steps:\n  mma: {block: "qk[s]+1 pv[0] pv[1]"}\n'))
    assert order(s.steps_of("mma").block) == ["qk[0]+1", "qk[1]+1", "pv[0]", "pv[1]"]


def test_both_points_of_a_repeated_step_are_its_token(derive: Derive) -> None:
    s = load(derive('steps:\n  mma: {block: "pv[s] qk[s]+1"}\n'))
    spans = [(x.span.line, x.span.col, x.span.end_col) for x in s.steps_of("mma").block if x.span]
    assert spans == [(5, 17, 22), (5, 23, 30), (5, 17, 22), (5, 23, 30)]


def test_the_rest_of_the_parts_is_one_barrier_for_each() -> None:
    def rest(parts: str) -> list[tuple[str, int | None]]:
        found = load(BLACKWELL, settings={"p_parts": parts}).barriers
        return [(b.name, b.after[0][0].part) for b in found if b.name.startswith("p_rest")]

    assert rest("[128]") == []
    assert rest("[96, 32]") == [("p_rest", 1)]
    assert rest("[32, 32, 64]") == [("p_rest_1", 1), ("p_rest_2", 2)]


def test_a_ring_without_a_side_has_both() -> None:
    found = [(b.name, b.ring, b.side) for b in load(BLACKWELL).barriers if b.ring]
    assert found == [("kv_full", "kv", "full"), ("kv_empty", "kv", "empty")]


def test_ends_take_turns_or_come_together() -> None:
    s = load(BLACKWELL)
    assert [[e.operation for e in x] for x in barrier(s, "p_ready").after] == [["exp", "rescale"]]
    assert [[e.operation for e in x] for x in barrier(s, "stats_full").after] == [
        ["stats"],
        ["final_stats"],
    ]


def test_the_mask_picks_anywhere_a_value_stands(derive: Derive) -> None:
    path = derive(
        "params: {exp2: {fma_share: {full: 0.25, causal: 0.125}}}\n"
        "roles:\n  correction: {registers: {full: 80, causal: 72}}\n"
    )
    full, causal = load(path), load(path, settings={"causal": "true"})
    assert (full.role("correction").registers, causal.role("correction").registers) == (80, 72)
    assert full.params["exp2"] == {"fma_share": 0.25, "degree": 3}
    assert causal.params["exp2"] == {"fma_share": 0.125, "degree": 3}
    assert (full.scheduler, causal.scheduler) == ("static_persistent", "lpt")


def test_both_sides_of_a_choice_are_read(derive: Derive) -> None:
    assert codes(derive("roles:\n  mma: {registers: {full: 56, causal: lots}}\n")) == ["FA0204"]
    assert codes(derive("roles:\n  mma: {registers: {full: 56}}\n")) == ["FA0107"]
    only_full = derive("serves: {causal: false}\nroles:\n  mma: {registers: {full: 56}}\n")
    assert load(only_full).role("mma").registers == 56


def test_a_range_of_head_dims(derive: Derive) -> None:
    path = derive(
        "serves:\n"
        "  head_dim: {multiple_of: 16, from: 32, to: 128, default: 64}\n"
        "  head_dim_v: null\n"
    )
    s = load(path)
    assert (s.head_dim, s.head_dim_v) == (64, 64)
    assert s.serves["head_dim"] == (64, 32, 48, 80, 96, 112, 128)
    assert "head_dim_v" not in s.serves
    narrow = load(path, settings={"head_dim": "48"})
    assert (narrow.head_dim_v, narrow.buffer_of("q").tile) == (48, (128, 48))
    with pytest.raises(Fa4genError) as caught:
        load(path, settings={"head_dim": "40"})
    assert [d.code for d in caught.value.diagnostics] == ["FA0211"]


def test_stages_left_open_stay_open() -> None:
    assert load(BLACKWELL).buffer_of("k").stages is None
    assert load(BLACKWELL, settings={"kv_stages": "2 + 1"}).buffer_of("k").stages == 3
    assert load(BLACKWELL).params["kv_stages"] == "max"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("target: sm_100\n", ["FA0215"]),
        ("target: sm_80\n", ["FA0215"]),
        ("index: {s: 2, t: 2}\n", ["FA0106"]),
        ("index: {s: 9}\n", ["FA0109"]),
        ("serves: 128\n", ["FA0106"]),
        ("serves: {dtype: fp8}\n", ["FA0109"]),
        ("buffers:\n  q: {per: t}\n", ["FA0206"]),
        ("barriers:\n  'x[t]': {after: stats, before: stats}\n", ["FA0206"]),
        ("barriers:\n  x: {after: sum}\n", ["FA0107"]),
        ("barriers:\n  kv: {ring: kv, level: tile}\n", ["FA0106"]),
        ("barriers:\n  'kv[s]': {ring: kv}\n", ["FA0206"]),
        ("barriers:\n  x: {after: sum, before: sum, side: full}\n", ["FA0106"]),
        ("turns:\n  t: {around: [scores], over: s}\n", ["FA0106"]),
        ("turns:\n  t: {around: [scores, sum], over: t}\n", ["FA0206"]),
        ("steps:\n  load: {tile: 'load_q[2]'}\n", ["FA0206"]),
        ("operations:\n  sum: {op: row_sum, threshold: 3}\n", ["FA0105"]),
        ("operations:\n  stats: {threshold: high}\n", ["FA0106"]),
        ("params: {exp2: {degree: 9}}\n", ["FA0109"]),
        ("params: {exp2: {fma_part: 0.5}}\n", ["FA0105"]),
    ],
)
def test_faults(derive: Derive, body: str, expected: list[str]) -> None:
    assert codes(derive(body)) == expected


def test_another_version_of_the_language_is_refused() -> None:
    with pytest.raises(Fa4genError) as caught:
        load(BLACKWELL, settings={"language": "2"})
    assert [d.code for d in caught.value.diagnostics] == ["FA0109"]


def test_faults_come_in_the_order_of_the_file(derive: Derive) -> None:
    path = derive("roles:\n  mma: {warp: 1}\nbuffers:\n  q: {tiles: 1}\n  o: {space: none}\n")
    with pytest.raises(Fa4genError) as caught:
        load(path)
    lines = [d.span.line for d in caught.value.diagnostics if d.span]
    assert lines == sorted(lines) == [5, 7, 8]
