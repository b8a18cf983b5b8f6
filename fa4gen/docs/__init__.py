"""Pages of documentation that are made from the code: the language, the API, speeds.

`fa4gen docs` writes them, `fa4gen docs --check` (and a test) says whether the committed ones are
what would be written.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from fa4gen.bench.page import performance

from .api import api
from .language import language

ROOT = Path(__file__).parents[2]
PAGES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "api.md": api,
        "language.md": language,
        "performance.md": lambda: performance(ROOT / "bench" / "results"),
    }
)


def write(folder: Path) -> tuple[Path, ...]:
    """Writes every page into a folder; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        (folder / name).write_text(make(), encoding="utf-8")
    return tuple(folder / name for name in PAGES)


def stale(folder: Path) -> tuple[str, ...]:
    """Names of pages in a folder that are not what would be written now."""

    def old(name: str) -> str:
        path = folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    return tuple(name for name, make in PAGES.items() if old(name) != make())
