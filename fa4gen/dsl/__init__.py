"""The schedule language: YAML text to `ir.schedule.Schedule`, every name and position kept.

load   a schedule file, for one choice of parameters, variant and problem
json_schema   the language, for editors
"""

from collections.abc import Mapping
from pathlib import Path

from fa4gen.diag import Bag
from fa4gen.ir.schedule import Schedule

from .bind import bind
from .export import json_schema
from .family import apply_settings, choose, read_family
from .reader import Map

__all__ = ["json_schema", "load", "load_with_sources", "variants"]


def load(
    path: str | Path, *, settings: Mapping[str, str] | None = None, variant: str | None = None
) -> Schedule:
    """The schedule that a file declares.

    `settings`: texts as on the command line, for parameters (`kv_stages`, `exp2.fma_share`), for
    the problem (`dtype`, `causal`, `head_dim`, `head_dim_v`) or a path (`roles.mma.registers`).
    Raises Fa4genError with all faults of a step, sorted by position: FA01xx, FA02xx.
    """
    return load_with_sources(path, settings=settings, variant=variant)[0]


def load_with_sources(
    path: str | Path, *, settings: Mapping[str, str] | None = None, variant: str | None = None
) -> tuple[Schedule, dict[str, str]]:
    """The same, with the texts of all files read, so that later errors can draw their lines."""
    bag = Bag()
    tree = choose(read_family(Path(path), bag), variant, bag)
    tree, asked = apply_settings(tree, settings or {}, bag)
    bag.raise_if_any()
    return bind(tree, str(path), asked, bag), bag.sources


def variants(path: str | Path) -> list[str]:
    """Names of the variants that a file (or one that it extends) declares."""
    found = read_family(Path(path), Bag()).get("variants")
    return found.keys() if isinstance(found, Map) else []
