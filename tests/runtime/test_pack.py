"""Packs: what is written is read back; damage, cut manifests and strangers are refused."""

import json
from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.runtime.pack import MANIFEST, Built, read_pack, write_pack
from fa4gen.runtime.problem import Problem


def problem(d: int = 64, target: str = "sm_90a") -> Problem:
    return Problem(target=target, dtype="bf16", head_dim=d, head_dim_v=d, causal=True)


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    (tmp_path / "kernel.so").write_bytes(b"machine code" * 100)
    built = [
        Built(name=f"k{d}", problem=problem(d), shared_object=tmp_path / "kernel.so")
        for d in (64, 128)
    ]
    return write_pack(tmp_path / "pack", built, "1.0")


def test_what_is_written_is_read_back(pack: Path) -> None:
    found = read_pack(pack)
    assert [c.head_dims for c in found] == [(64,), (128,)]
    assert [c.why_not(problem(d)) for c, d in zip(found, (64, 128), strict=True)] == ["", ""]
    assert [len(c.serves()) for c in found] == [1, 1]
    assert all(Path(c.shared_object).is_absolute() for c in found)
    assert {p.name for p in pack.iterdir()} == {"pack.json", "k64.so", "k128.so"}


def test_a_pack_takes_the_place_of_an_older_one_and_of_nothing_else(pack: Path) -> None:
    built = Built(name="new", problem=problem(), shared_object=pack.parent / "kernel.so")
    write_pack(pack, [built], "1.0")
    assert [c.name for c in read_pack(pack)] == ["new"]
    with pytest.raises(Fa4genError, match="neither empty nor a pack"):
        write_pack(pack.parent, [built], "1.0")


@pytest.mark.parametrize("where", [0, 600, -1])
def test_one_bit_of_a_kernel(pack: Path, where: int) -> None:
    data = bytearray((pack / "k128.so").read_bytes())
    data[where] ^= 1
    (pack / "k128.so").write_bytes(data)
    with pytest.raises(Fa4genError, match=r"FA0811.*k128\.so.*another hash"):
        read_pack(pack)


def test_a_missing_kernel_and_a_missing_manifest(pack: Path) -> None:
    (pack / "k64.so").unlink()
    with pytest.raises(Fa4genError, match=r"FA0811.*k64\.so"):
        read_pack(pack)
    (pack / MANIFEST).unlink()
    with pytest.raises(Fa4genError, match=r"FA0811.*is no pack"):
        read_pack(pack)


@pytest.mark.parametrize("length", range(0, 700, 50))
def test_a_manifest_that_was_cut(pack: Path, length: int) -> None:
    text = (pack / MANIFEST).read_text()
    assert length < len(text) - 3
    (pack / MANIFEST).write_text(text[:length])
    with pytest.raises(Fa4genError, match="FA0811"):
        read_pack(pack)


@pytest.mark.parametrize(
    ("key", "value"), [("file", "../kernel.so"), ("head_dim", "64"), ("causal", 1), ("name", None)]
)
def test_entries_that_are_none(pack: Path, key: str, value: object) -> None:
    manifest = json.loads((pack / MANIFEST).read_text())
    manifest["kernels"][0][key] = value
    (pack / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(Fa4genError, match="FA0811"):
        read_pack(pack)


def test_one_target_a_pack(pack: Path) -> None:
    so = pack.parent / "kernel.so"
    two = [
        Built(name=t, problem=problem(target=t), shared_object=so) for t in ("sm_90a", "sm_100a")
    ]
    for kernels in ([], two):
        with pytest.raises(Fa4genError, match="FA0811"):
            write_pack(pack.parent / "other", kernels, "1.0")
