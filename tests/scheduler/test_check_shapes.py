"""Shapes: matrices that fit together, and that instructions and TMA boxes can take."""

import pytest

from fa4gen.diag import Diagnostic
from fa4gen.dsl import load
from fa4gen.ir.schedule import Schedule, Space
from fa4gen.scheduler.check_shapes import check
from fa4gen.target import TARGETS
from tests.scheduler.schedules import SCHEDULES, blackwell, codes, hopper, with_buffer


def faults(s: Schedule) -> list[Diagnostic]:
    return check(s, TARGETS[s.target])


@pytest.mark.parametrize("path", sorted(SCHEDULES.glob("*.yaml")), ids=lambda p: p.stem)
def test_shipped_schedules_are_right(path: object) -> None:
    assert faults(load(str(path))) == []


@pytest.mark.parametrize(
    ("name", "tile"), [("kv", (128, 64)), ("s", (128, 64)), ("p", (64, 128)), ("o", (64, 128))]
)
def test_tiles_that_do_not_fit_together(name: str, tile: tuple[int, ...]) -> None:
    assert "FA0411" in codes(faults(with_buffer(blackwell(), name, tile=tile)))


def test_a_vector_is_no_matrix() -> None:
    assert "FA0411" in codes(faults(with_buffer(blackwell(), "q", tile=(128,))))


def test_o_and_its_output_are_alike() -> None:
    found = faults(with_buffer(blackwell(), "o_out", tile=(128, 64)))
    assert [d.title for d in found] == [
        "`store_o`: `o` 128 x 128 does not fit into `o_out` 128 x 64"
    ]


@pytest.mark.parametrize(
    ("keys", "right"), [(16, True), (128, True), (256, True), (24, False), (8, False), (272, False)]
)
def test_columns_of_a_blackwell_product(keys: int, right: bool) -> None:
    s = blackwell(
        tile_n=str(keys),
        p_parts=f"[{keys}]",
        **{"buffers.s.columns": "null", "buffers.p.columns": "null", "buffers.o.columns": "null"},
    )
    assert ("FA0412" in codes(faults(s))) is not right


@pytest.mark.parametrize(
    ("keys", "right"), [(80, True), (144, True), (256, True), (264, False), (100, False)]
)
def test_columns_of_a_hopper_product(keys: int, right: bool) -> None:
    assert ("FA0412" in codes(faults(hopper(tile_n=str(keys))))) is not right


def test_rows_of_a_product() -> None:
    assert codes(faults(blackwell(tile_m="64"))) == ["FA0412"]
    assert codes(faults(hopper(tile_m="128"))) == ["FA0412"]


def test_types() -> None:
    assert codes(faults(with_buffer(blackwell(), "q", dtype="f32"))) == ["FA0413"]
    assert codes(faults(with_buffer(blackwell(), "q", dtype="fp16"))) == ["FA0413"]
    assert codes(faults(with_buffer(blackwell(), "q", dtype="bf16"))) == []
    assert codes(faults(with_buffer(blackwell(), "s", dtype="io"))) == ["FA0413"]


def test_boxes() -> None:
    assert faults(hopper(**{"index.s": "4"})) == []  # one box of 4 x 64 rows
    tall = with_buffer(hopper(**{"index.s": "4"}), "q", tile=(72, 128))
    assert "FA0414" in codes(faults(tall))  # 288 rows
    narrow = with_buffer(with_buffer(blackwell(), "o", tile=(128, 12)), "o_out", tile=(128, 12))
    assert "FA0414" in codes(faults(narrow))
    assert "FA0414" in codes(faults(with_buffer(hopper(), "o_out", space=Space.RMEM)))


@pytest.mark.parametrize(
    ("parts", "right"),
    [
        ((128,), True),
        ((64, 64), True),
        ((112, 16), True),
        ((96, 16), False),
        ((120, 8), False),
        ((96, 48), False),
    ],
)
def test_parts(parts: tuple[int, ...], right: bool) -> None:
    assert (faults(with_buffer(blackwell(), "p", parts=parts)) == []) is right
