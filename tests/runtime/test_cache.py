"""The disk cache: whole entries or none, damage is a miss, one maker a key."""

import json
import os
import threading
import time

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.runtime import cache
from fa4gen.runtime.cache import Cache, key_of

KEY = "k" * 40


def writer(folder, content=b"code"):
    (folder / "kernel.so").write_bytes(content)
    (folder / "kernel.ptx").write_text("ptx")


@pytest.fixture
def store(tmp_path):
    return Cache(folder=tmp_path / "cache")


def test_an_entry_is_made_once_and_found_again(store):
    made = store.get(KEY, {"name": "fwd"}, writer)
    again = store.get(KEY, {}, lambda _: pytest.fail("made twice"))
    assert made.files == again.files == ("kernel.ptx", "kernel.so")
    assert again.about == {"name": "fwd"}
    assert (again.folder / "kernel.so").read_bytes() == b"code"


@pytest.mark.parametrize(
    "damage",
    [
        lambda e: (e.folder / "kernel.so").write_bytes(b"cod3"),
        lambda e: (e.folder / "kernel.so").unlink(),
        lambda e: (e.folder / "entry.json").write_text("{"),
        lambda e: (e.folder / "entry.json").write_text('{"sha256": {}, "about": {}}'),
        lambda e: (e.folder / "entry.json").unlink(),
    ],
)
def test_a_damaged_entry_is_a_miss_and_is_made_again(store, damage):
    damage(store.get(KEY, {}, writer))
    assert store.find(KEY) is None
    assert store.damaged() == (KEY,)
    entry = store.get(KEY, {}, lambda f: writer(f, b"new"))
    assert (entry.folder / "kernel.so").read_bytes() == b"new"
    assert store.damaged() == ()


def test_a_failure_leaves_nothing_behind(store):
    def fails(folder):
        writer(folder)
        raise KeyError("no")

    with pytest.raises(KeyError):
        store.get(KEY, {}, fails)
    assert store.find(KEY) is None
    assert [p.name for p in store.folder.iterdir()] == ["locks"]


def test_of_two_that_want_a_key_one_makes_it(store):
    made = []

    def slow(folder):
        made.append(1)
        time.sleep(0.2)
        writer(folder)

    threads = [threading.Thread(target=store.get, args=(KEY, {}, slow)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert made == [1]


def test_trim_removes_the_least_recently_used(store):
    for n in range(3):
        entry = store.get(f"key{n}", {}, lambda f: writer(f, b"x" * 97))
        os.utime(entry.folder / "entry.json", (1000 + n, 1000 + n))
    store.find("key0")  # used now
    assert store.trim(200) == ("key1",)
    assert [e.key for e in store.entries()] == ["key2", "key0"]
    assert store.trim(0) == ("key2", "key0")
    assert store.entries() == ()


def test_trim_clears_what_a_killed_process_left(store):
    left = store.folder / f".{KEY}.abc"
    left.mkdir(parents=True)
    writer(left)
    store.trim(10**9)
    assert not left.exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Fa4genError, match="FA4GEN_CACHE_DIR"):
        Cache(folder=tmp_path / "file").get(KEY, {}, writer)


def test_what_making_raises_is_not_taken_for_the_cache(store):
    def fails(folder):
        raise FileNotFoundError(2, "no compiler", str(folder))

    with pytest.raises(FileNotFoundError, match="no compiler"):
        store.get(KEY, {}, fails)


def test_the_key_holds_text_target_and_toolchain(monkeypatch):
    base = key_of(name="n", text="a", target="sm_90a")
    assert base == key_of(name="n", text="a", target="sm_90a")
    assert base != key_of(name="n", text="b", target="sm_90a")
    assert base != key_of(name="n", text="a", target="sm_100a")
    monkeypatch.setattr(cache.metadata, "version", lambda name: "9.9" if "cutlass" in name else "1")
    assert base != key_of(name="n", text="a", target="sm_90a")


def test_the_record_is_plain_json(store):
    entry = store.get(KEY, {"target": "sm_90a"}, writer)
    record = json.loads((entry.folder / "entry.json").read_text())
    assert sorted(record["sha256"]) == ["kernel.ptx", "kernel.so"]
