"""C sources are compiled once, kept by content, and refused in plain words."""

from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.emulator import native


def source(folder: Path, text: str) -> Path:
    written = folder / "source.c"
    written.write_text(text)
    return written


def test_the_same_source_and_flags_are_built_once(tmp_path: Path) -> None:
    code = source(tmp_path, "int one(void) { return 1; }")
    first = native.shared_library(code, "lib.so", folder=tmp_path / "cache")
    stamp = first.stat().st_mtime_ns
    assert native.shared_library(code, "lib.so", folder=tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == stamp
    assert native.shared_library(code, "lib.so", ("-O0",), folder=tmp_path / "cache") != first
    code.write_text("int one(void) { return 2; }")
    assert native.shared_library(code, "lib.so", folder=tmp_path / "cache") != first
    assert [p.name for p in first.parent.iterdir()] == ["lib.so"]  # no scratch left


def test_a_cached_library_needs_no_compiler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = source(tmp_path, "int one(void) { return 1; }")
    built = native.shared_library(code, "lib.so", folder=tmp_path / "cache")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    assert native.shared_library(code, "lib.so", folder=tmp_path / "cache") == built


def test_without_a_compiler_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(Fa4genError, match="apt-get install gcc"):
        native.shared_library(source(tmp_path, "int x;"), "lib.so", folder=tmp_path)


def test_the_compilers_words_come_through(tmp_path: Path) -> None:
    with pytest.raises(Fa4genError, match=r"failed on source\.c") as caught:
        native.shared_library(source(tmp_path, "int x"), "lib.so", folder=tmp_path)
    assert "error: expected" in str(caught.value)


def test_an_unwritable_cache_folder_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(Fa4genError, match="FA4GEN_CACHE_DIR"):
        native.shared_library(source(tmp_path, "int x;"), "lib.so", folder=blocked)


def test_the_cache_folder_follows_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FA4GEN_CACHE_DIR", str(tmp_path / "own"))
    assert native.cache_folder() == tmp_path / "own" / "emulator"
    monkeypatch.delenv("FA4GEN_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert native.cache_folder() == tmp_path / "xdg" / "fa4gen" / "emulator"
