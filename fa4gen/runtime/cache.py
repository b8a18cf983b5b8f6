"""Compiled kernels on disk, by everything that changes their code.

    <folder>/<key>/…            files of one entry, and `entry.json`, which has a hash of each
    <folder>/locks/<key>.lock   held while one process makes the entry and others wait for it

An entry is made in a folder aside and renamed, so it is there as a whole or not at all. A damaged
one (a file that is missing, or whose hash differs) is a miss: it is made again. Keys are hashes of
the text, the target, the toolchain's versions and the format of this cache; the compiler process
gets no setting that is not in the key. What was not used for longest goes when the limit is passed.
"""

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from fa4gen.diag import error

FORMAT = 1
TOOLCHAIN = (
    "nvidia-cutlass-dsl",
    "nvidia-cutlass-dsl-libs-base",
    "nvidia-cutlass-dsl-libs-core",
    "nvidia-cutlass-dsl-libs-cu12",
    "nvidia-cutlass-dsl-libs-cu13",
    "apache-tvm-ffi",
)
RECORD = "entry.json"
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # whoever wrote: the disk's fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry: `files` are names within `folder`; `about` is what it was made from."""

    key: str
    folder: Path
    files: tuple[str, ...]
    about: dict[str, str]
    size_bytes: int
    used: float  # seconds since the epoch


def toolchain() -> dict[str, str]:
    """Versions of the installed distributions that change the code, and Python's."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in TOOLCHAIN:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def key_of(*, name: str, text: str, target: str) -> str:
    """The key of a generated file for a target, under the toolchain that is installed.

    The name is in it because line tables hold it.
    """
    made_from = {"name": name, "text": text, "target": target}
    what = {"format": FORMAT, "toolchain": toolchain(), **made_from}
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """A folder of entries; every method may run in several processes and threads at once.

    With a limit, making an entry removes others, the least recently used first.
    """

    folder: Path
    limit_bytes: int | None = None

    def find(self, key: str) -> Entry | None:
        """The entry, whole and undamaged, or None; marks it as used."""
        entry = _read(self.folder / key)
        if entry is None or not _whole(entry):
            return None
        with contextlib.suppress(OSError):  # a cache that others own, read-only, still serves
            os.utime(entry.folder / RECORD)
        return entry

    def get(self, key: str, about: dict[str, str], make: Callable[[Path], None]) -> Entry:
        """The entry; if it is not there, `make(folder)` writes its files into that empty folder.

        One process makes a key while others wait for it. Raises what `make` raises, and
        `Fa4genError` FA0707 if the folder cannot be written.
        """
        if entry := self.find(key):
            return entry
        with self._lock(key):
            return self.find(key) or self._make(key, about, make)

    def _make(self, key: str, about: dict[str, str], make: Callable[[Path], None]) -> Entry:
        """Makes an entry; the caller holds its lock, so that what else bears its key is left over
        from a process that was killed."""
        with self._writing():
            for left in self.folder.glob(f".{key}.*"):
                shutil.rmtree(left, ignore_errors=True)
            aside = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=self.folder))
        try:
            with self._writing(only=NO_ROOM):
                make(aside)
            with self._writing():
                files = sorted(p for p in aside.iterdir() if p.is_file())
                hashes = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}
                record = {"about": about, "sha256": hashes}
                (aside / RECORD).write_text(json.dumps(record, indent=1, sort_keys=True))
                shutil.rmtree(self.folder / key, ignore_errors=True)  # damaged: else it was found
                aside.rename(self.folder / key)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        entry = _read(self.folder / key)
        assert entry is not None
        if self.limit_bytes is not None:
            self.trim(self.limit_bytes, keep=key)
        return entry

    @contextlib.contextmanager
    def _writing(self, only: Sequence[int] = ()) -> Iterator[None]:
        """What the system says about this folder becomes an error that says how to mend it.

        `only`: the error numbers that are meant, if not all.
        """
        try:
            yield
        except OSError as problem:
            if only and problem.errno not in only:
                raise
            raise error(
                "FA0707",
                f"the cache `{self.folder}` cannot be written: {problem.strerror or problem}",
                fix="make room there, or set FA4GEN_CACHE_DIR to another folder of yours",
            ) from problem

    @contextlib.contextmanager
    def _lock(self, key: str, *, wait: bool = True) -> Iterator[bool]:
        """Holds the lock of a key; yields whether it is held, which without `wait` may fail."""
        with self._writing():
            locks = self.folder / "locks"
            locks.mkdir(parents=True, exist_ok=True)
            held = (locks / f"{key}.lock").open("w")
        with held:
            try:  # it goes with the process, however that ends
                fcntl.flock(held, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True

    def entries(self) -> tuple[Entry, ...]:
        """All entries with a record, the least recently used first; hashes are not looked at."""
        folders = [p for p in _folders(self.folder) if not p.name.startswith(".")]
        found = [e for e in map(_read, folders) if e]
        return tuple(sorted(found, key=lambda e: (e.used, e.key)))

    def damaged(self) -> tuple[str, ...]:
        """Keys of entries that would not be served, after reading all of their files."""
        folders = [p for p in _folders(self.folder) if not p.name.startswith(".")]
        return tuple(sorted(p.name for p in folders if (e := _read(p)) is None or not _whole(e)))

    def trim(self, limit_bytes: int, keep: str = "") -> tuple[str, ...]:
        """Removes the least recently used entries until the rest fits; returns their keys.

        Also removes what processes that were killed left behind. What is being made right now stays
        and so does the key `keep`. A limit of 0 empties the cache.
        """
        for left in (p for p in _folders(self.folder) if p.name.startswith(".")):
            key = left.name.split(".")[1]
            if key != keep:
                self._remove(key, left)
        entries = self.entries()
        total, gone = sum(e.size_bytes for e in entries), []
        for entry in entries:
            if total <= limit_bytes:
                break
            if entry.key != keep and self._remove(entry.key, entry.folder):
                total -= entry.size_bytes
                gone.append(entry.key)
        if limit_bytes == 0:
            for key in self.damaged():
                self._remove(key, self.folder / key)
        return tuple(gone)

    def _remove(self, key: str, folder: Path) -> bool:
        """Removes a folder unless a process is making its key; whether it did."""
        with self._lock(key, wait=False) as held:
            if held:
                shutil.rmtree(folder, ignore_errors=True)
            return held


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and p.name != "locks")


def _read(folder: Path) -> Entry | None:
    """What the record of an entry says; None if there is none that can be read."""
    try:
        record = json.loads((folder / RECORD).read_text())
        names = tuple(sorted(record["sha256"]))
        if not names:
            return None
        return Entry(
            key=folder.name,
            folder=folder,
            files=names,
            about=dict(record["about"]),
            size_bytes=sum((folder / n).stat().st_size for n in names),
            used=(folder / RECORD).stat().st_mtime,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _whole(entry: Entry) -> bool:
    """Whether every file has the hash that it had when it was made."""
    try:
        expected = json.loads((entry.folder / RECORD).read_text())["sha256"]
        return all(
            hashlib.sha256((entry.folder / n).read_bytes()).hexdigest() == expected[n]
            for n in entry.files
        )
    except (OSError, ValueError, KeyError):
        return False
