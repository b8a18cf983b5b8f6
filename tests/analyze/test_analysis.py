"""The analysis of shipped schedules: one graph with the checker's, bounds that hold, text."""

from pathlib import Path

import pytest

from fa4gen.analyze.analysis import Analysis, analyze
from fa4gen.analyze.counts import counts_of
from fa4gen.analyze.loop import pipeline_of
from fa4gen.analyze.text import markdown, render, side_by_side
from fa4gen.cli import main
from fa4gen.cost.model import loop_of
from fa4gen.driver import check
from fa4gen.runtime.report import CodeCounts, LoopCount
from fa4gen.scheduler.graph import loop_graph
from fa4gen.scheduler.instantiate import instantiate

SCHEDULES = Path(__file__).parents[2] / "schedules"
BLACKWELL, HOPPER = SCHEDULES / "fwd_hd128.yaml", SCHEDULES / "fwd_hd128_sm90.yaml"
BACKWARD = SCHEDULES / "bwd_hd128_sm90.yaml"


def analysis(path: Path, **settings: str) -> Analysis:
    return analyze(path, {"causal": "false", **settings}, None, [(2, 16, 16384)], None)


def loop(role: str, segment: str, mufu: int, instructions: int) -> LoopCount:
    return LoopCount(
        role=role,
        segment=segment,
        at="",
        address=0,
        instructions=instructions,
        units={"mufu": mufu, "fma": 200, "alu": 100, "tensor": 16},
        opcodes={"MUFU.EX2": mufu},
        functions={},
    )


def code(*loops: LoopCount) -> CodeCounts:
    return CodeCounts(
        instructions=2000,
        registers=168,
        local_bytes=0,
        local_loads=0,
        local_stores=0,
        setmaxnreg=(24, 240),
        loops=loops,
    )


def test_the_pipeline_has_the_checkers_edges() -> None:
    checked = check(HOPPER)
    graph = loop_graph(instantiate(checked.program.value))
    ours = {(e.source.key, e.target.key, e.distance) for e in pipeline_of(checked).edges}
    assert ours == {(a, b, d) for a, b, d in graph.edges(data="d")}


@pytest.mark.parametrize("path", [BLACKWELL, HOPPER], ids=["sm_100a", "sm_90a"])
def test_bounds_hold(path: Path) -> None:
    found = analysis(path).loop
    assert found.pace >= found.cycle.period
    assert found.pace >= max(found.loads.values())
    assert found.loads["tensor core"] == 2048


def test_of_a_backward_the_block_is_modelled_and_no_call() -> None:
    found = analysis(BACKWARD)
    assert found.calls == ()
    assert found.loop.pace >= found.loop.loads["tensor core"] == 2560


def test_parts_of_an_operation_share_its_work() -> None:
    """P in one part or two asks the same of MUFU."""
    split, whole = (
        sum(e.target.share for e in pipeline_of(check(BLACKWELL, variant=v)).edges
            if getattr(e.target.stmt, "operation", "") == "exp" and e.target.part == "step")
        for v in (None, "whole_p")
    )  # fmt: skip
    assert split == pytest.approx(whole)


def test_what_is_slower_by_its_nature() -> None:
    """One consumer that waits for its own products; one stage, so that loads wait for their use."""
    one = {"index.s": "1", "turns": "null"}
    alone = loop_of(pipeline_of(check(HOPPER, settings=one, variant="no_overlap")), None).pace
    assert alone > 1.1 * loop_of(pipeline_of(check(HOPPER, settings=one)), None).pace
    assert analysis(HOPPER, kv_stages="1").loop.pace > analysis(HOPPER).loop.pace


def test_counted_instructions_replace_estimates() -> None:
    pipeline = pipeline_of(check(HOPPER))
    few = counts_of(
        code(loop("consumer", "unmasked", 60, 400), loop("consumer", "masked", 60, 500))
    )
    many = counts_of(code(loop("consumer", "unmasked", 600, 4000)))
    assert few.masked == {"consumer": 500}
    assert loop_of(pipeline, many).pace > loop_of(pipeline, few).pace
    assert loop_of(pipeline, many).bound == "MUFU"
    serialised = counts_of(code(loop("consumer", "unmasked", 60, 400)), serialised=True)
    assert loop_of(pipeline, serialised).pace > loop_of(pipeline, few).pace


def test_the_text_has_the_published_row_and_says_modelled() -> None:
    text = render(analysis(BLACKWELL))
    assert "modelled" in text
    rows = [line.split() for line in text.splitlines()]
    for unit, clocks in (("exponentials", 1024), ("tensor core", 1024), ("shared memory", 768)):
        words = [*unit.split(), str(clocks), str(2 * clocks)]
        assert any(row[: len(words)] == words for row in rows)


def test_kernels_side_by_side() -> None:
    table = side_by_side([("ours", code(loop("x", "", 66, 480))), ("none", code())])
    assert [row[0] for row in table] == ["kernel", "ours"]
    assert table[1][1:3] == ["480", "66"]
    assert "| ours | 480 | 66 |" in markdown(table)


def test_the_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(HOPPER), "--set", "causal=false", "--seqlen", "4096"]) == 0
    assert "busiest unit: tensor core" in capsys.readouterr().out
    assert main(["analyze", str(BLACKWELL), "--target", "sm_120a"]) == 1
    assert "FA0215" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["analyze", str(HOPPER), "--seqlen", "many"])
