"""Axes of a search, and the schedule files that they make."""

from pathlib import Path

import pytest

from fa4gen.diag import Bag, Fa4genError
from fa4gen.driver import check
from fa4gen.dsl import load
from fa4gen.dsl.family import read_family
from fa4gen.dsl.reader import Map, Node, Scalar, Seq, read
from fa4gen.dsl.search import axes, choices, label, schedule_text
from fa4gen.dsl.writer import entries_text

SCHEDULES = Path(__file__).parents[2] / "schedules"
HOPPER = SCHEDULES / "fwd_hd128_sm90.yaml"


def plain(node: Node) -> object:
    """Values without places."""
    if isinstance(node, Map):
        return {k.text: plain(v) for k, v in node.entries}
    return [plain(i) for i in node.items] if isinstance(node, Seq) else node.value


def written(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "derived.yaml"
    path.write_text(f"language: 1\nschedule: derived\nextends: {HOPPER}\n{body}")
    return path


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.yaml")), ids=lambda p: p.stem)
def test_a_written_tree_reads_back(path: Path) -> None:
    tree = read_family(path, Bag())
    assert plain(read(entries_text(tree), "again")) == plain(tree)


def test_a_misspelt_axis_is_refused() -> None:
    with pytest.raises(Fa4genError, match="FA0112") as caught:
        axes(HOPPER, {"kv_stage": "1, 2"})
    assert "kv_stages" in str(caught.value)


def test_a_scalar_keeps_its_kind() -> None:
    tree = read('a: "1"\nb: 1\nc: null\nd: "null"\ne: "x: [y]"\nf: 0.5\n', "first")
    assert plain(read(entries_text(tree), "again")) == plain(tree)
    assert isinstance(tree.get("c"), Scalar)


def test_every_combination_once() -> None:
    found = axes(HOPPER, {"tile_n": "96, 128"})
    combined = choices(found)
    assert [a.name for a in found] == ["tile_n", "kv_stages", "consumers", "pipeline", "tiles"]
    assert len(combined) == len({label(c) for c in combined}) == 2 * 2 * 2 * 3 * 3


def test_a_choice_is_an_ordinary_schedule(tmp_path: Path) -> None:
    asked = ("tile_n=144", "kv_stages=2", "consumers=two", "pipeline=no_turns", "tiles=dynamic")
    choice = next(c for c in choices(axes(HOPPER)) if label(c) == " ".join(asked))
    path = tmp_path / "found.yaml"
    path.write_text(schedule_text(choice, name="found", extends=str(HOPPER), comment="why"))
    found = check(path).schedule
    assert found.params["tile_n"] == 144
    assert (found.turns, found.scheduler) == ((), "dynamic")
    assert next(b for b in found.buffers if b.name == "o_out").overlays is None
    assert path.read_text().startswith("# why\n")


def test_a_file_that_extends_changes_axes_and_keeps_nulls(tmp_path: Path) -> None:
    path = written(
        tmp_path, "search: {tile_n: [64], kv_stages: null, pipeline: {turns: {params: {}}}}\n"
    )
    found = {a.name: [o.name for o in a.options] for a in axes(path)}
    assert found["tile_n"] == ["64"]
    assert "kv_stages" not in found
    free = next(
        o for a in axes(path) if a.name == "pipeline" for o in a.options if o.name == "no_turns"
    )
    assert plain(free.patch) == {"turns": None}
    assert load(path).turns  # a search changes nothing by itself


@pytest.mark.parametrize(
    "body",
    ["search: {tile_n: 128}", "search: {turns: {}}", "search: {a: {b: 1}}", "search: {x: [1, 1]}",
     "search: {causal: [true, false]}"],
)  # fmt: skip
def test_what_is_no_axis_is_refused_with_its_place(tmp_path: Path, body: str) -> None:
    with pytest.raises(Fa4genError) as caught:
        axes(written(tmp_path, body + "\n"))
    (d,) = caught.value.diagnostics
    assert d.code == "FA0113"
    assert d.span is not None
    assert d.span.line == 4
