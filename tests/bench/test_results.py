"""Reading results back and keeping them; what a peer's file name says."""

import json

import pytest

from fa4gen.bench import results
from fa4gen.bench.peers import peers
from fa4gen.diag import Fa4genError

RUN = {"run": {"seed": "ab12cd34ef", "kit": {"commit": "c"}}}
READY = {"ready": {"device": "NVIDIA H200", "date": "2026-12-01T01:04:47+00:00", "torch": "2"}}


def done(name, **more):
    return {"done": name, "faults": [], **more}


def lines(*messages):
    return "".join(json.dumps(m) + "\n" for m in messages)


def test_a_run_that_was_killed_is_read_up_to_its_last_whole_line(tmp_path):
    text = lines(RUN, READY, done("check k a")) + '{"done": "check k'
    (tmp_path / "results.jsonl").write_text(text)
    record = results.read(tmp_path)
    assert [r["done"] for r in record["results"]] == ["check k a"]
    assert record["kit"] == {"commit": "c"}


def test_results_are_kept_by_date_device_and_seed(tmp_path):
    (tmp_path / "results.jsonl").write_text(lines(RUN, READY, done("check k a")))
    file = results.keep(results.read(tmp_path), tmp_path / "kept")
    assert file.name == "2026-12-01T0104_h200_ab12cd34.json"
    assert json.loads(file.read_text())["machine"]["torch"] == "2"


def test_the_latest_result_of_each_piece_of_work_counts(tmp_path):
    for hour, value in (("03", 3), ("05", 5)):
        ready = {"ready": {**READY["ready"], "date": f"2026-12-01T{hour}:00:00"}}
        extra = [done("check k only")] if hour == "03" else []
        (tmp_path / "results.jsonl").write_text(lines(RUN, ready, done("time a", v=value), *extra))
        results.keep(results.read(tmp_path), tmp_path / "kept")
    merged = results.merge(tmp_path / "kept")
    assert {r["done"]: r.get("v") for r in merged["results"]} == {"time a": 5, "check k only": None}
    assert len(merged["files"]) == 2


@pytest.mark.parametrize("messages", [(RUN,), (RUN, READY)])
def test_a_run_without_results_is_not_kept(tmp_path, messages):
    (tmp_path / "results.jsonl").write_text(lines(*messages))
    with pytest.raises(Fa4genError, match="FA0709"):
        results.keep(results.read(tmp_path), tmp_path)


def test_a_folder_without_results_is_an_error(tmp_path):
    with pytest.raises(Fa4genError, match="FA0709"):
        results.read(tmp_path)


def test_provenance_names_a_date_and_a_commit():
    found = results.provenance()
    assert found["date"].startswith("20")
    assert found["commit"]


def test_a_peers_file_name_says_what_it_serves(tmp_path):
    for name in ("fa4_sm_90a_d192_dv128_causal_gqa8", "fa4_sm_100a_d64_dv64_full", "other"):
        (tmp_path / f"{name}.so").touch()
    (found,) = peers(tmp_path, "sm_90a")
    assert (found["head_dim"], found["head_dim_v"], found["causal"]) == (192, 128, True)
    assert (found["gqa_ratio"], found["name"]) == (8, "fa4_d192,128_causal_gqa8")
    assert len(found["arguments"]) == 18
    with pytest.raises(Fa4genError, match="no peer is known"):
        list(peers(tmp_path, "sm_80"))
