"""The documentation: made pages are current, and every block of code in all pages runs.

```sh          run, must succeed (```sh fails: must be refused); `gpu`: only where there is one
```python      run in this process, names stay for the page's later blocks
```yaml        begins with `# FILE`: that file is written
```text        after a block that ran: its lines are found in what that printed, in this order;
               `…` stands for anything
"""

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from fa4gen import docs
from fa4gen.api import session

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
BLOCK = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
KINDS = ("sh", "python", "yaml", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: its kind, the words after that, its text and where it stands."""

    kind: str
    flags: tuple[str, ...]
    text: str
    place: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            kind=m[1],
            flags=tuple(m[2].split()),
            text=m[3],
            place=f"{page.name}:{text[: m.start()].count(chr(10)) + 1}",
        )
        for m in BLOCK.finditer(text)
    ]


def with_code(pages: list[Path]) -> list[Path]:
    return [p for p in pages if any(b.kind != "text" for b in blocks(p))]


def for_a_gpu(page: Path) -> int:
    return sum("gpu" in b.flags for b in blocks(page))


@pytest.mark.parametrize("name", docs.PAGES)
def test_made_pages_are_current(name: str) -> None:
    assert name not in docs.stale(ROOT / "docs"), "run `fa4gen docs`"


def test_a_page_that_is_not_current_is_told(tmp_path: Path) -> None:
    docs.write(tmp_path)
    assert docs.stale(tmp_path) == ()
    (tmp_path / "language.md").write_text("old")
    (tmp_path / "api.md").unlink()
    assert docs.stale(tmp_path) == ("api.md", "language.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere_and_blocks_are_of_known_kinds(page: Path) -> None:
    text = page.read_text()
    for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in link:
            assert (page.parent / link).exists(), link
    for block in blocks(page):
        assert block.kind in KINDS, block.place
        assert set(block.flags) <= {"gpu", "fails"}, block.place


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place like a fresh clone: schedules, and a `fa4gen` on the path."""
    shutil.copytree(ROOT / "schedules", tmp_path / "schedules")
    commands = tmp_path / ".venv" / "bin"
    commands.mkdir(parents=True)
    (commands / "fa4gen").write_text(f'#!/bin/sh\nexec {sys.executable} -m fa4gen "$@"\n')
    (commands / "fa4gen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.chdir(tmp_path)
    own = session.Session()
    monkeypatch.setattr(session, "PROCESS", own)
    token = session.CURRENT.set(own)
    yield tmp_path
    session.CURRENT.reset(token)


def run(block: Block, names: dict[str, Any]) -> str:
    """Runs a block; what it printed."""
    if block.kind == "yaml":
        name = block.text.partition("\n")[0]
        assert name.startswith("# "), f"{block.place}: the first line is `# FILE`"
        Path(name[2:]).write_text(block.text)
        return ""
    if block.kind == "python":
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block.text, block.place, "exec"), names)
        return said.getvalue()
    done = subprocess.run(["bash", "-ec", block.text], capture_output=True, text=True)
    printed = done.stdout + done.stderr
    assert done.returncode == ("fails" in block.flags), f"{block.place}: {printed}"
    return printed


def assert_printed(printed: str, expected: Block) -> None:
    """Each line of `expected` is found in what was printed, after the one before."""
    rest = printed
    for line in expected.text.splitlines():
        pattern = ".*".join(re.escape(part) for part in line.strip().split("…"))
        found = re.search(pattern, rest)
        assert found, f"{expected.place}: `{line}` is not in:\n{rest}"
        rest = rest[found.end() :]


def run_page(page: Path, *, gpu: bool) -> None:
    names: dict[str, Any] = {}
    printed: str | None = None
    for block in blocks(page):
        if block.kind == "text":
            if printed is not None:
                assert_printed(printed, block)
            printed = None
        elif gpu or "gpu" not in block.flags:
            printed = run(block, names)
        else:
            printed = None


@pytest.mark.dsl
@pytest.mark.parametrize("page", with_code(PAGES), ids=lambda p: p.name)
def test_code_of_a_page_runs(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "fa4gen cache clear" in page.read_text():
        monkeypatch.setenv("FA4GEN_CACHE_DIR", str(folder / "cache"))
    run_page(page, gpu=False)


@pytest.mark.gpu
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("page", [p for p in PAGES if for_a_gpu(p)], ids=lambda p: p.name)
def test_code_of_a_page_runs_on_a_gpu(page: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip(f"no NVIDIA GPU: {for_a_gpu(page)} blocks of {page.name} are not run")
    run_page(page, gpu=True)


def test_what_is_expected_and_not_printed_is_told() -> None:
    block = Block(kind="text", flags=(), text="a…c\nd\n", place="here")
    assert_printed("x abc\nd", block)
    for printed in ("abc", "d\nabc", "ab\nc\nd"):
        with pytest.raises(AssertionError, match="is not in"):
            assert_printed(printed, block)
