"""Points of a search: each is a schedule file, and a record of what is known of it, in one folder.

    DIR/points/NAME.yaml   the schedule (extends the base)
    DIR/points/NAME.json   what was found, written as a whole after each step

What is there and was made from the same texts by the same compiler is not done again.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import fa4gen
from fa4gen.diag import error
from fa4gen.dsl import load_with_sources
from fa4gen.dsl.search import Choice, label, schedule_text

PACKAGE = Path(fa4gen.__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One choice. Seconds are of one call; `None`: not known (yet).

    `refused`: the code of the checker or the compiler, `why` its title. `shape_seconds`: modelled
    from shapes alone; `modelled_seconds`: with the instructions that were counted. `measured`:
    medians of runs, `reference` those of what ran beside.
    """

    name: str
    label: str
    key: str
    refused: str = ""
    why: str = ""
    bound: str = ""
    shape_seconds: float | None = None
    modelled_seconds: float | None = None
    spills: bool = False
    measured_seconds: float | None = None
    reference: str = ""
    reference_seconds: float | None = None
    faults: tuple[str, ...] = ()
    device: str = ""

    @property
    def predicted(self) -> float:
        """The best prediction there is."""
        return self.modelled_seconds or self.shape_seconds or float("inf")

    @property
    def speed(self) -> float | None:
        """Against the reference of the same run."""
        if not self.measured_seconds or not self.reference_seconds:
            return None
        return self.reference_seconds / self.measured_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """The folder of one search."""

    path: Path

    def schedule(self, name: str) -> Path:
        """A point's schedule file."""
        return self.path / "points" / f"{name}.yaml"

    def write(self, choices: Sequence[Choice], base: Path, stem: str) -> list[tuple[str, str]]:
        """Writes the schedule of each choice; (name, label) of each.

        Raises `Fa4genError` FA0709 if the folder cannot be written.
        """
        folder = self.path / "points"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            extends = os.path.relpath(base.resolve(), folder.resolve())
            made = []
            for n, choice in enumerate(choices):
                name = f"{stem}_p{n:03d}"
                text = schedule_text(choice, name=name, extends=extends, comment=label(choice))
                replaced(self.schedule(name), text)
                made.append((name, label(choice)))
        except OSError as problem:
            raise error(
                "FA0709", f"`{folder}` cannot be written: {problem.strerror}", fix="--out DIR"
            ) from None
        return made

    def known(self, name: str, key: str) -> Point | None:
        """What was found of a point that is unchanged; a record that is damaged is not there."""
        try:
            record = json.loads((self.path / "points" / f"{name}.json").read_text())
            point = Point(**{**record, "faults": tuple(record["faults"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return point if point.key == key else None

    def keep(self, point: Point) -> Point:
        """Writes a point's record."""
        text = json.dumps(asdict(point), indent=1) + "\n"
        replaced(self.path / "points" / f"{point.name}.json", text)
        return point


def replaced(file: Path, text: str) -> None:
    """Writes a file as a whole or not at all."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def compiler_digest() -> str:
    """Of all that decides what a schedule becomes: the package's own files."""
    digest = hashlib.sha256()
    for file in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.j2")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def key_of(file: Path, settings: Mapping[str, str], shape: object, digest: str) -> str:
    """What a point's record holds for: its texts, the problem, the compiler."""
    texts = load_with_sources(file, settings=settings)[1]
    names = {Path(k).name: v for k, v in texts.items()}  # wherever the folder lies
    what = [digest, names, dict(settings), shape]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


def ranked(points: Iterable[Point]) -> list[Point]:
    """Best first: what was measured and is right, then what is predicted; refused ones left out."""
    sound = [p for p in points if not p.refused and not p.faults]
    return sorted(sound, key=lambda p: (p.speed is None, -(p.speed or 0.0), p.predicted, p.name))


def refusals(points: Iterable[Point]) -> dict[str, int]:
    """How many points each code refused, most first."""
    found: dict[str, int] = {}
    for p in points:
        if p.refused:
            found[p.refused] = found.get(p.refused, 0) + 1
    return dict(sorted(found.items(), key=lambda x: (-x[1], x[0])))


def without_measurement(point: Point) -> Point:
    """The same, as before it ran."""
    return replace(point, measured_seconds=None, reference="", reference_seconds=None, faults=())
