"""The disk cache in trouble, for real: processes side by side, killed; disks full, read-only."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.options import Options
from fa4gen.runtime import cache, compile  # noqa: A004
from fa4gen.runtime.cache import Cache
from fa4gen.runtime.compile import Request, compile_cached, find_compiled

KEY = "k" * 40
WRITER = """\
import os, sys, time
from pathlib import Path
from fa4gen.runtime.cache import Cache

folder, log, seconds, start = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), sys.argv[4]

def make(aside):
    (aside / "kernel.so").write_bytes(b"half")
    with log.open("a") as out:
        out.write(f"{os.getpid()}\\n")
    time.sleep(seconds)
    (aside / "kernel.so").write_bytes(b"whole")

while start != "now" and not Path(start).exists():
    time.sleep(0.01)
entry = Cache(folder=folder).get("k" * 40, {}, make)
print((entry.folder / "kernel.so").read_text())
"""


def writer(folder: Path, log: Path, seconds: float, start: str = "now") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", WRITER, str(folder), str(log), str(seconds), start]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(file: Path) -> None:
    for _ in range(1000):
        if file.exists():
            return
        time.sleep(0.01)
    raise AssertionError(f"no {file}")


def whole(folder: Path) -> None:
    (folder / "kernel.so").write_bytes(b"whole")


# --------------------------------------------------------------------------- several processes
def test_of_two_processes_one_makes_an_entry_and_both_have_it(tmp_path: Path) -> None:
    log, start = tmp_path / "log", tmp_path / "start"
    both = [writer(tmp_path / "cache", log, 0.3, str(start)) for _ in range(2)]
    start.touch()
    assert [p.communicate(timeout=60)[0].strip() for p in both] == ["whole", "whole"]
    assert len(log.read_text().split()) == 1


def test_a_writer_that_is_killed_leaves_nothing_that_is_served(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    killed = writer(folder, log, 60)
    wait_for(log)
    waiting = writer(folder, log, 0)
    time.sleep(0.2)
    assert Cache(folder=folder).find(KEY) is None
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert waiting.communicate(timeout=60)[0].strip() == "whole"  # its lock went with it
    assert sorted(p.name for p in folder.iterdir()) == [KEY, "locks"]  # and so did its half


def test_emptying_the_cache_does_not_wait_for_or_disturb_a_writer(tmp_path: Path) -> None:
    folder, log = tmp_path / "cache", tmp_path / "log"
    store = Cache(folder=folder)
    store.get("other", {}, whole)
    busy = writer(folder, log, 1.0)
    wait_for(log)
    begin = time.perf_counter()
    assert store.trim(0) == ("other",)
    assert time.perf_counter() - begin < 0.9
    assert busy.communicate(timeout=60)[0].strip() == "whole"
    assert store.find(KEY)


def test_making_an_entry_removes_the_oldest_beyond_the_limit(tmp_path: Path) -> None:
    store = Cache(folder=tmp_path, limit_bytes=250)
    for n in range(5):
        entry = store.get(f"key{n}", {}, lambda f: (f / "a").write_bytes(b"x" * 100) and None)
        os.utime(entry.folder / cache.RECORD, (1000 + n, 1000 + n))
    assert [e.key for e in store.entries()] == ["key3", "key4"]
    large = store.get("large", {}, lambda f: (f / "a").write_bytes(b"x" * 999) and None)
    assert [e.key for e in store.entries()] == ["large"]  # what was just made stays
    assert large.folder.exists()


# ------------------------------------------------------------------ disks that are full, read-only
def on_a_full_disk(folder: Path) -> None:
    (folder / "kernel.so").symlink_to("/dev/full")
    (folder / "kernel.so").write_bytes(b"code")  # the system says ENOSPC


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Fa4genError, match=r"FA0707.*No space left on device"):
        Cache(folder=tmp_path / "cache").get(KEY, {}, on_a_full_disk)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["locks"]


def as_child(run: Callable[[], object]) -> str:
    """Runs in a process of its own, which may give up rights; what came of it, as text."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = str(run())
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as f:
        said = f.read()
    os.waitpid(child, 0)
    return said


def test_a_limit_of_file_sizes_is_told(tmp_path: Path) -> None:
    import resource

    def run() -> object:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        big: Callable[[Path], Any] = lambda f: (f / "kernel.so").write_bytes(b"x" * 5000)  # noqa: E731
        return Cache(folder=tmp_path / "cache").get(KEY, {}, big)

    assert "FA0707" in as_child(run)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["locks"]


@pytest.fixture
def read_only() -> Iterator[tuple[Path, Callable[[Callable[[], object]], str]]]:
    """A cache with one entry that others own, and a way to run as a user who may not write it."""
    top = Path(tempfile.mkdtemp(prefix="fa4gen-read-only."))
    Cache(folder=top / "cache").get(KEY, {}, whole)
    places = [top, *(p for p in top.rglob("*") if p.is_dir())]
    for place in places:
        place.chmod(0o555)

    def run(what: Callable[[], object]) -> str:
        def child() -> object:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            return what()

        return as_child(child)

    yield top / "cache", run
    for place in places:
        place.chmod(0o755)
    shutil.rmtree(top)


def test_a_read_only_cache_serves_what_it_has(read_only: Any) -> None:
    folder, run = read_only
    store = Cache(folder=folder)
    assert run(lambda: (store.find(KEY).folder / "kernel.so").read_text()) == "whole"  # type: ignore[union-attr]
    assert run(lambda: store.get(KEY, {}, lambda _: pytest.fail("made")).key) == KEY
    said = run(lambda: store.get("other", {}, whole))
    assert "FA0707" in said
    assert "FA4GEN_CACHE_DIR" in said


# ---------------------------------------------------------------------- kernels in such a cache
REQUEST = Request(name="small", target="sm_90a", text="text")


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A compiler that writes what it was asked for, and counts."""
    made: list[str] = []

    def into(request: Request, folder: Path, _options: Options) -> None:
        made.append(request.text)
        for name in compile.FILES:
            (folder / name).write_text(request.text)

    monkeypatch.setattr(compile, "compile_into", into)
    compile._aside.cache_clear()
    return made


def test_a_cache_that_cannot_be_written_is_gone_round_with_a_warning(
    tmp_path: Path, compilations: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kernels").write_text("in the way")
    options = Options(cache_dir=tmp_path)
    for _ in range(2):
        assert compile_cached(REQUEST, options).ptx.read_text() == "text"
    assert compilations == ["text"]
    assert "cannot be written" in caplog.text
    assert "this process alone" in caplog.text


def test_no_room_anywhere_is_an_error(
    tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        compilations.append("tried")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(compile, "compile_into", full)
    with pytest.raises(Fa4genError, match=r"FA0707.*No space left"):
        compile_cached(REQUEST, Options(cache_dir=tmp_path))
    assert len(compilations) == 2


def test_another_toolchain_compiles_anew_and_the_old_one_finds_its_own(
    tmp_path: Path, compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    options, real = Options(cache_dir=tmp_path), cache.metadata.version
    first = compile_cached(REQUEST, options).folder
    for package in cache.TOOLCHAIN:
        with monkeypatch.context() as patch:
            patch.setattr(
                cache.metadata,
                "version",
                lambda name, changed=package: "99" if name == changed else real(name),
            )
            assert find_compiled(REQUEST, options) is None
            assert compile_cached(REQUEST, options).folder != first
    assert compile_cached(REQUEST, options).folder == first
    assert len(compilations) == 1 + len(cache.TOOLCHAIN)


def test_a_damaged_kernel_is_compiled_anew(tmp_path: Path, compilations: list[str]) -> None:
    options = Options(cache_dir=tmp_path)
    made = compile_cached(REQUEST, options)
    made.shared_object.write_text("tex7")
    assert find_compiled(REQUEST, options) is None
    assert compile_cached(REQUEST, options).shared_object.read_text() == "text"
    assert compilations == ["text", "text"]
