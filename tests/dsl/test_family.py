"""Families: `extends`, variants and settings make one tree, and places stay those of the files."""

from pathlib import Path

import pytest

from fa4gen.diag import Bag, Fa4genError
from fa4gen.dsl import load, variants
from fa4gen.dsl.family import merge
from fa4gen.dsl.reader import Map, read

SCHEDULES = Path(__file__).parents[2] / "schedules"
BLACKWELL = SCHEDULES / "fwd_hd128.yaml"


def derived(tmp_path: Path, body: str) -> Path:
    path = tmp_path / "derived.yaml"
    path.write_text(f"language: 1\nschedule: derived\nextends: {BLACKWELL}\n{body}")
    return path


def codes(path: Path, **how: object) -> list[str]:
    with pytest.raises(Fa4genError) as caught:
        load(path, **how)  # type: ignore[arg-type]
    return [d.code for d in caught.value.diagnostics]


def test_merging_goes_key_by_key_and_null_takes_away() -> None:
    base = read("a: {b: 1, c: 2}\nd: [1, 2]\ne: 5\n", "base")
    patch = read("a: {c: 3}\nd: [4]\ne: null\nf: 6\n", "patch")
    merged = merge(base, patch)
    assert merged.keys() == ["a", "d", "f"]
    a = merged.get("a")
    assert isinstance(a, Map)
    assert [(k.text, k.span.file) for k, _ in a.entries] == [("b", "base"), ("c", "patch")]


def test_a_choice_by_mask_is_replaced_as_a_whole() -> None:
    base = read("x: {full: 1, causal: 2}\n", "base")
    whole = merge(base, read("x: {causal: 4, full: 3}\n", "patch")).get("x")
    half = merge(base, read("x: {full: 3}\n", "patch")).get("x")
    assert isinstance(whole, Map)
    assert isinstance(half, Map)
    assert [(k.text, k.span.file) for k, _ in whole.entries] == [
        ("causal", "patch"),
        ("full", "patch"),
    ]
    assert [(k.text, k.span.file) for k, _ in half.entries] == [
        ("full", "patch"),
        ("causal", "base"),
    ]


def test_a_derived_schedule_changes_what_it_says_and_nothing_else(tmp_path: Path) -> None:
    base = load(BLACKWELL)
    path = derived(tmp_path, "roles:\n  mma: {registers: 48}\n")
    schedule = load(path)
    assert schedule.name == "derived"
    assert [r.registers for r in schedule.roles] == [192, 72, 48, 56, 56]
    assert schedule.buffers == base.buffers
    mma, load_role = schedule.role("mma"), schedule.role("load")
    assert mma.span
    assert load_role.span
    assert (mma.span.file, mma.span.line) == (str(path), 5)
    assert Path(load_role.span.file).name == "fwd_hd128.yaml"


def test_a_derived_schedule_has_its_own_name(tmp_path: Path) -> None:
    path = tmp_path / "nameless.yaml"
    path.write_text(f"language: 1\nextends: {BLACKWELL}\n")
    assert codes(path) == ["FA0107"]


def test_extending_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("schedule: a\nextends: b.yaml\n")
    (tmp_path / "b.yaml").write_text("schedule: b\nextends: a.yaml\n")
    assert codes(tmp_path / "a.yaml") == ["FA0110"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert codes(tmp_path / "none.yaml") == ["FA0111"]
    (tmp_path / "latin.yaml").write_bytes(b"schedule: \xff\n")
    assert codes(tmp_path / "latin.yaml") == ["FA0111"]
    assert codes(derived(tmp_path, "").with_name("none.yaml")) == ["FA0111"]


def test_settings_reach_parameters_the_problem_and_paths() -> None:
    settings = {
        "kv_stages": "2",
        "exp2.fma_share": "0.25",
        "dtype": "fp16",
        "causal": "true",
        "roles.mma.registers": "48",
        "p_parts": "[64, 64]",
        "steps.mma.block": "qk[s] pv[s]",
    }
    schedule = load(BLACKWELL, settings=settings)
    assert (schedule.dtype, schedule.causal, schedule.scheduler) == ("fp16", True, "lpt")
    assert schedule.buffer_of("k").stages == 2
    assert schedule.operation("exp").options["mix"] == {"fma_share": 0.25, "degree": 3}
    assert schedule.role("mma").registers == 48
    assert schedule.buffer_of("p").parts == (64, 64)
    assert [s.operation for s in schedule.steps_of("mma").block] == ["qk", "pv", "qk", "pv"]


def test_a_setting_leaves_things_where_the_file_has_them() -> None:
    plain = load(BLACKWELL)
    schedule = load(BLACKWELL, settings={"roles.mma.registers": "48", "buffers.o.columns": "null"})
    assert schedule.role("mma").span == plain.role("mma").span
    assert schedule.buffer_of("o").span == plain.buffer_of("o").span
    assert schedule.buffer_of("o").columns is None


@pytest.mark.parametrize(
    ("setting", "code"),
    [
        ({"kv_stage": "2"}, "FA0112"),
        ({"exp2.degre": "2"}, "FA0112"),
        ({"roles.mm.registers": "48"}, "FA0112"),
        ({"a b": "2"}, "FA0112"),
        ({"variants.one_tile": "2"}, "FA0112"),
        ({"kv_stages": "[1"}, "FA0101"),
        ({"kv_stages": "many"}, "FA0204"),
        ({"dtype": "fp8"}, "FA0211"),
        ({"head_dim": "96"}, "FA0211"),
        ({"causal": "yes"}, "FA0211"),
        ({"roles.mma.regs": "48"}, "FA0105"),
    ],
)
def test_settings_that_do_not_exist(setting: dict[str, str], code: str) -> None:
    assert codes(BLACKWELL, settings=setting) == [code]


def test_a_setting_is_drawn_as_it_was_given() -> None:
    with pytest.raises(Fa4genError) as caught:
        load(BLACKWELL, settings={"exp2.fma_share": "2"})
    text = str(caught.value)
    assert "--set exp2.fma_share:1:17: error[FA0109]: 2 is outside 0 … 1" in text
    assert "1 | exp2.fma_share: 2" in text


def test_variants() -> None:
    assert "two_rings" in variants(BLACKWELL)
    assert variants(SCHEDULES / "fwd_hd64.yaml") == variants(BLACKWELL)
    assert codes(BLACKWELL, variant="three_rings") == ["FA0112"]
    assert codes(SCHEDULES / "fwd_hd128_sm90.yaml", variant="two_rings") == ["FA0112"]
    rings = {
        b.name: b.ring for b in load(BLACKWELL, variant="two_rings").buffers if b.stages is None
    }
    assert rings == {"k": (), "v": ()}


def test_the_texts_of_all_files_are_kept(tmp_path: Path) -> None:
    from fa4gen.dsl.family import read_family

    bag = Bag()
    path = derived(tmp_path, "")
    read_family(path, bag)
    assert {Path(name).name for name in bag.sources} == {"derived.yaml", "fwd_hd128.yaml"}
