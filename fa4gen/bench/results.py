"""Results of a run: read back from where they were made, kept with date, device and commit."""

import json
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fa4gen.diag import error

from .runner.table import collect, summary

RUNNER = Path(__file__).parent / "runner"  # what a kit copies


def provenance() -> dict[str, str]:
    """Date (UTC) and commit of this checkout; `+` after the commit: with changes since."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        try:
            done = subprocess.run(["git", *words], cwd=here, capture_output=True, text=True)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "--short=12", "HEAD")
    changed = "+" if commit and git("status", "--porcelain", "--untracked-files=no") else ""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": f"{commit}{changed}" if commit else "not a checkout",
    }


def read(folder: Path) -> dict[str, Any]:
    """The record of the run that wrote into `folder`, whole or cut short.

    A run that was killed left `results.jsonl` alone, whose last line may be half a line. Raises
    `Fa4genError` FA0709 if there is nothing to read.
    """
    whole, lines = folder / "results.json", folder / "results.jsonl"
    try:
        if whole.exists():
            record: dict[str, Any] = json.loads(whole.read_text())
            return record
        messages = []
        for line in lines.read_text().splitlines():
            try:
                messages.append(json.loads(line))
            except ValueError:
                break
        return collect(messages)
    except (OSError, ValueError) as problem:
        raise error(
            "FA0709",
            f"`{folder}` holds no results: {problem}",
            fix="name the folder that `run.py --out` wrote",
        ) from problem


def keep(record: Mapping[str, Any], results: Path) -> Path:
    """Writes a record into the folder `results` and returns the file: date, device, seed.

    Raises `Fa4genError` FA0709 for a run that never reached a GPU.
    """
    machine = record.get("machine") or {}
    if not record.get("results") or "device" not in machine:
        raise error(
            "FA0709", "the run has no results: no worker reached a GPU", fix="see worker.log"
        )
    device = re.sub(r"[^a-z0-9]+", "-", str(machine["device"]).lower().replace("nvidia", "")).strip(
        "-"
    )
    date = str(machine["date"])[:16].replace(":", "")
    file = results / f"{date}_{device}_{str(record['seed'])[:8]}.json"
    results.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    partial.replace(file)
    return file


def merge(results: Path) -> dict[str, Any]:
    """All kept runs as one record: of each piece of work the latest result, and its file."""
    latest: dict[str, dict[str, Any]] = {}
    files = sorted(results.glob("*.json"))
    for file in files:
        record = json.loads(file.read_text())
        latest |= {r["done"]: {**r, "file": file.name} for r in record["results"]}
    return {"files": [f.name for f in files], "results": list(latest.values()), "not_run": []}


def text(record: Mapping[str, Any]) -> str:
    """A record as a table for people."""
    return summary(dict(record))
