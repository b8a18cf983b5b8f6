"""Memory: bytes and columns, one by one and together; and what placing makes of them."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fa4gen.diag import Diagnostic
from fa4gen.dsl import load
from fa4gen.ir.schedule import Schedule, Space
from fa4gen.scheduler.check_memory import check
from fa4gen.scheduler.place import place, smem_bytes, smem_placements, solve_stages, tmem_columns
from fa4gen.target import TARGETS
from tests.scheduler.schedules import SCHEDULES, blackwell, codes, hopper, with_buffer

BLACKWELL = TARGETS["sm_100a"]


def faults(s: Schedule) -> list[Diagnostic]:
    return check(s, TARGETS[s.target])


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_schedules_are_right(path: object) -> None:
    assert faults(load(str(path))) == []


@pytest.mark.parametrize(
    ("name", "options", "stages", "total"),
    [
        # depths and totals of the same tiles in FlashAttention-4 (its formula leaves 1 KiB more)
        ("fwd_hd128", {}, 3, 232448),
        ("fwd_hd128", {"index.s": "1"}, 5, 231424),
        ("fwd_hd64", {}, 10, 232448),
        ("fwd_hd64", {"index.s": "1"}, 12, 231424),
    ],
)
def test_stages_are_as_many_as_fit(
    name: str, options: dict[str, str], stages: int, total: int
) -> None:
    plan = place(load(SCHEDULES / f"{name}.yaml", settings=options))
    assert (plan.stages["kv"], plan.smem_bytes) == (stages, total)


def test_one_stage_more_does_not_fit() -> None:
    s = blackwell()
    depth = solve_stages(s, BLACKWELL)["kv"]
    fits = with_buffer(s, "kv", stages=depth)
    assert faults(fits) == []
    found = faults(with_buffer(s, "kv", stages=depth + 1))
    assert codes(found) == ["FA0401"]
    assert found[0].title == "265216 bytes of shared memory, a CTA has 232448"
    assert [n.text for n in found[0].notes] == [
        "2048 bytes: `stats`, 2 of s x 1024 bytes",
        "65536 bytes: `q`, 2 of s x 32768 bytes",
        "131072 bytes: `kv`, 4 stages x 32768 bytes",
        "65536 bytes: `o_out`, 2 of s x 32768 bytes",
        "1024 bytes: mbarriers, before the first aligned tile",
    ]


def test_an_open_ring_that_does_not_fit_once_is_refused() -> None:
    found = faults(with_buffer(blackwell(), "q", tile=(512, 128)))
    assert "FA0401" in codes(found)


def test_an_overlay_takes_no_bytes_of_its_own() -> None:
    s = hopper()
    apart = with_buffer(s, "o_out", overlays=None)
    assert place(apart).smem_bytes - place(s).smem_bytes == 2 * 64 * 128 * 2


def test_rows_are_filled_up_to_whole_steps_of_the_product() -> None:
    s = with_buffer(blackwell(), "q", tile=(128, 72))
    placed = {p.buffer: p.tile_bytes for p in smem_placements(s, BLACKWELL, {})}
    assert placed["q"] == 128 * 80 * 2


def test_columns_are_placed_when_they_are_left_out() -> None:
    s = blackwell()
    for name in ("s", "p", "o"):
        s = with_buffer(s, name, columns=None)
    columns, widths = tmem_columns(s)
    assert dict(columns) == {"s": (0, 128), "p": (64, 192), "o": (256, 384)}
    assert dict(widths) == {"s": 128, "p": 64, "o": 128}
    assert place(s).tmem_columns == 512
    assert place(blackwell(**{"index.s": "1", "params.tile_n": "64"})).tmem_columns == 256


def test_columns_beyond_the_end() -> None:
    found = faults(with_buffer(blackwell(), "o", columns=(256, 448)))
    assert codes(found) == ["FA0402"]
    assert "576 columns of tensor memory, a CTA has 512" in found[0].title


def test_columns_that_meet_by_one() -> None:
    assert faults(with_buffer(blackwell(), "o", columns=(384, 256))) == []
    found = faults(with_buffer(blackwell(), "o", columns=(255, 384)))
    assert [d.title for d in found] == [
        "`o[0]` (columns 255 … 382) lies on `s[1]` (columns 128 … 255)",
        "`o[0]` (columns 255 … 382) lies on `p[1]` (columns 192 … 255)",
    ]


def test_an_overlay_lies_inside_of_its_own_instance() -> None:
    s = blackwell()
    assert faults(with_buffer(s, "p", columns=(0, 128))) == []
    assert codes(faults(with_buffer(s, "p", columns=(192, 64)))) == ["FA0403"]
    assert codes(faults(with_buffer(s, "p", columns=(65, 192)))) == ["FA0403"]
    assert codes(faults(with_buffer(s, "p", overlays=None))) == ["FA0403"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("o_out", {"overlays": "o_out"}),
        ("o_out", {"overlays": "kv"}),
        ("o_out", {"overlays": "o"}),
    ],
)
def test_overlays_that_cannot_be(name: str, change: dict[str, object]) -> None:
    assert codes(faults(with_buffer(blackwell(), name, **change))) == ["FA0404"]


def test_registers_are_not_shared_by_schedules() -> None:
    assert codes(faults(with_buffer(hopper(), "p", overlays="s"))) == ["FA0404"]


def test_each_target_has_its_spaces() -> None:
    assert "FA0405" in codes(faults(with_buffer(hopper(), "o", space=Space.TMEM)))
    moved = with_buffer(blackwell(), "o", space=Space.RMEM, columns=None)
    assert codes(faults(moved)) == ["FA0405"]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("q", {"columns": (0, 1)}),
        ("s", {"stages": 2}),
        ("o", {"one_load": True}),
        ("o", {"columns": (256,)}),
    ],
)
def test_keys_that_do_not_go_with_the_buffer(name: str, change: dict[str, object]) -> None:
    assert codes(faults(with_buffer(blackwell(), name, **change))) == ["FA0406"]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([32, 64, 96, 128, 160, 192, 256]),
    st.sampled_from([64, 128]),
    st.integers(min_value=1, max_value=2),
    st.permutations(range(7)),
)
def test_solved_stages_fill_the_memory_and_no_more(
    head_dim: int, keys: int, tiles: int, order: list[int]
) -> None:
    s = blackwell()
    for name in ("q", "o_out"):
        s = with_buffer(s, name, tile=(128, head_dim))
    s = with_buffer(s, "kv", tile=(keys, head_dim))
    s = replace(s, index=replace(s.index, count=tiles), buffers=tuple(s.buffers[n] for n in order))
    stages = solve_stages(s, BLACKWELL)
    used = smem_bytes(smem_placements(s, BLACKWELL, stages))
    more = {**stages, "kv": stages["kv"] + 1}
    assert used <= BLACKWELL.smem_bytes or stages["kv"] == 1
    assert (used <= BLACKWELL.smem_bytes) == (faults(s) == [])
    assert (
        smem_bytes(smem_placements(s, BLACKWELL, more)) > BLACKWELL.smem_bytes or stages["kv"] == 32
    )
