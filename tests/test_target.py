"""Facts of targets, and a clear word for parts that are none."""

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.dtypes import DTYPES, IO_DTYPES, resolve
from fa4gen.target import TARGETS, find_target, why_not


def test_every_target_is_found_under_its_name() -> None:
    assert [find_target(name).name for name in TARGETS] == ["sm_90a", "sm_100a", "sm_103a"]
    assert all(t.smem_bytes == 227 * 1024 for t in TARGETS.values())


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("sm_120", "neither tensor memory nor wgmma"),
        ("sm_121a", "neither tensor memory nor wgmma"),
        ("sm_89", "neither TMA nor wgmma"),
        ("sm_100", "write sm_100a"),
        ("sm_90", "write sm_90a"),
        ("sm_100f", "write sm_100a"),
        ("gfx942", "there are facts for"),
    ],
)
def test_other_parts_are_refused_with_the_reason(name: str, word: str) -> None:
    assert word in why_not(name)
    with pytest.raises(Fa4genError) as caught:
        find_target(name)
    assert caught.value.diagnostics[0].code == "FA0215"


def test_io_is_what_the_kernel_is_built_for() -> None:
    assert resolve("io", "fp16") is DTYPES["fp16"]
    assert resolve("f32", "fp16") is DTYPES["f32"]
    assert all(DTYPES[d].bits == 16 for d in IO_DTYPES)
    with pytest.raises(KeyError):
        resolve("fp8", "bf16")
