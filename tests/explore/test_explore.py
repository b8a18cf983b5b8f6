"""A search: what is refused is counted, the rest ranked, kept, resumed, merged, written out."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from fa4gen.cli import main
from fa4gen.diag import Fa4genError
from fa4gen.driver import check
from fa4gen.explore import search as searching
from fa4gen.explore.measure import measured, timed_case
from fa4gen.explore.points import Folder, Point, ranked, refusals
from fa4gen.explore.report import plot, spearman, table, write_winner
from fa4gen.explore.search import Search, examine
from fa4gen.runtime.kit import KitKernel

SCHEDULES = Path(__file__).parents[2] / "schedules"
BASE = """\
language: 1
schedule: small
extends: {base}
search:
  tile_n: null
  kv_stages: [1, 2]
  consumers: null
  pipeline: null
  tiles: null
  q: {{waited: {{}}, broken: {{barriers: {{q_full: null}}}}}}
"""


def search(tmp_path: Path, **more: object) -> Search:
    base = tmp_path / "small.yaml"
    base.write_text(BASE.format(base=SCHEDULES / "fwd_hd128_sm90.yaml"))
    folder = Folder(path=tmp_path / "out")
    shape = (8, 16, 4096)
    return replace(
        Search(base=base, settings={"causal": "false"}, tries={}, shape=shape, folder=folder),
        **more,
    )  # type: ignore[arg-type]


def test_unsound_points_are_counted_and_the_rest_ranked(tmp_path: Path) -> None:
    points = examine(search(tmp_path))
    assert len(points) == 4
    assert list(refusals(points).values()) == [2]
    assert all(bool(p.refused) == ("broken" in p.label) for p in points)
    best = ranked(points)[0]
    assert "kv_stages=2" in best.label
    assert best.measured_seconds is None
    assert "ranked by the model alone" in table(points)


def test_it_resumes_and_a_changed_base_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, asked, examine_one = search(tmp_path), [], searching._examine_one

    def fails_at_the_third(job: tuple[Search, str, str, str]) -> Point:
        asked.append(job[1])
        if len(asked) == 3:
            raise KeyboardInterrupt
        return examine_one(job)

    monkeypatch.setattr(searching, "_examine_one", fails_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        examine(first)
    kept = sorted(p.stem for p in (tmp_path / "out" / "points").glob("*.json"))
    assert len(kept) == 2
    points = examine(first)
    assert len(points) == 4
    assert not set(kept) & set(asked[3:])
    count = len(asked)
    assert examine(first) == points
    assert len(asked) == count
    first.base.write_text(first.base.read_text() + "params: {softmax_note: 1}\n")
    examine(first)
    assert len(asked) == count + 4


def test_a_damaged_record_is_examined_again(tmp_path: Path) -> None:
    points = examine(search(tmp_path))
    file = tmp_path / "out" / "points" / f"{points[0].name}.json"
    file.write_text(file.read_text()[:20])
    assert examine(search(tmp_path)) == points


def test_the_winner_is_an_ordinary_schedule(tmp_path: Path) -> None:
    one = search(tmp_path)
    points = examine(one)
    winner = write_winner(one, points)
    assert winner is not None
    assert check(winner, settings={"causal": "false"}).schedule.params["kv_stages"] == 2
    assert "modelled" in winner.read_text()
    assert write_winner(one, [replace(p, refused="FA0310") for p in points]) is None


def record(points: list[Point], faults: list[str]) -> dict[str, object]:
    rows = {p.name: {"ms": 2.0 + n} for n, p in enumerate(points)}
    done = {"done": "time", "base": "peer", "faults": faults, "rows": rows | {"peer": {"ms": 4.0}}}
    return {"machine": {"device": "a GPU"}, "results": [done]}


def test_what_came_back_decides_and_wrong_answers_lose(tmp_path: Path) -> None:
    one = search(tmp_path)
    points = examine(one)
    sound = ranked(points)
    back = list(reversed(sound))
    found = measured(one, points, record(back, [f"{back[0].name}: rms error"]))
    order = ranked(found)
    assert [p.name for p in order] == [p.name for p in back[1:]]
    assert order[0].speed == pytest.approx(4.0 / 3.0)
    assert "wrong on the GPU: " in table(found)
    assert examine(one) == found  # kept
    drawn = ET.fromstring(plot(found))
    assert len(drawn.findall(".//{http://www.w3.org/2000/svg}circle")) == len(order)
    assert "measured on a GPU" in (write_winner(one, found) or Path()).read_text()


def test_rank_correlation() -> None:
    assert spearman([1, 2, 3, 4], [10, 20, 30, 400]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 2, 2, 3], [1, 3, 2, 4]) == pytest.approx(0.9486833)
    assert spearman([1, 1, 1], [1, 2, 3]) != spearman([1, 1, 1], [1, 2, 3])  # not a number


def test_the_case_is_the_searchs_shape(tmp_path: Path) -> None:
    kernel = KitKernel(
        name="x", shared_object=tmp_path / "x.so", target="sm_90a", dtype="bfloat16",
        head_dim=128, head_dim_v=128, causal=False,
    )  # fmt: skip
    case = timed_case(kernel, search(tmp_path))
    assert (case["batch"], case["heads"], case["seqlen_k"]) == (8, 16, 4096)
    assert case["kind"] == "time"


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = search(tmp_path)
    words = ["explore", str(one.base), "--set", "causal=false", "--out", str(tmp_path / "out")]
    assert main([*words, "--model", "--jobs", "1"]) == 0
    assert "ranked by the model alone" in capsys.readouterr().out
    assert (tmp_path / "out" / "best.yaml").exists()
    assert main([*words, "--model", "--jobs", "1", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["points"]) >= 1
    assert main([*words, "--try", "kv_stages=0", "--model", "--jobs", "1"]) == 1
    assert "2 refused, FA0109" in capsys.readouterr().out
    assert main([*words, "--try", "kv_stage=2"]) == 2
    assert "kv_stages" in capsys.readouterr().err


def test_nothing_to_combine_is_refused(tmp_path: Path) -> None:
    one = search(tmp_path)
    one.base.write_text(one.base.read_text().split("search:")[0] + "search: null\n")
    with pytest.raises(Fa4genError, match="FA0113"):
        examine(one)
