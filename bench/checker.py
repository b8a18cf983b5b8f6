"""Times the checker: shipped schedules as a process, and pipelines that grow.

    python bench/checker.py [--json FILE]

`check` is the whole command, interpreter and imports included (best of five). The synthetic ones
are so many copies of the Blackwell forward in one kernel, with roles, barriers and storage of
their own.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the copies are shared with the tests

from fa4gen.driver import check  # noqa: E402
from fa4gen.scheduler.check_counts import check_counts  # noqa: E402
from fa4gen.scheduler.check_program import prove  # noqa: E402
from fa4gen.scheduler.instantiate import instantiate  # noqa: E402
from fa4gen.scheduler.model import System  # noqa: E402
from tests.pipelines.copies import copies  # noqa: E402

SHIPPED = tuple(sorted(f.stem for f in (ROOT / "schedules").glob("*.yaml")))
COPIES = (1, 2, 4, 10)
TRIES = 5


def command(schedule: str) -> float:
    """Seconds of `fa4gen check`, best of some."""
    found = []
    for _ in range(TRIES):
        began = time.perf_counter()
        path = ROOT / "schedules" / f"{schedule}.yaml"
        subprocess.run(
            [sys.executable, "-m", "fa4gen", "check", str(path)], check=True, capture_output=True
        )
        found.append(time.perf_counter() - began)
    return min(found)


def proof(system: System) -> tuple[float, int]:
    """Seconds of counts and proof, and the frontiers kept."""
    began = time.perf_counter()
    if list(check_counts(system)):
        raise AssertionError("a sound pipeline has right counts")
    verdict = prove(system)
    return time.perf_counter() - began, verdict.frontiers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, object]] = [
        {"what": f"fa4gen check {name}", "seconds": round(command(name), 3)} for name in SHIPPED
    ]
    system = instantiate(check(ROOT / "schedules/fwd_hd128.yaml").program.value)
    for n in COPIES:
        grown = copies(system, n)
        actions = sum(len(r.actions) for r in grown.roles)
        seconds, frontiers = proof(grown)
        what = f"proof of {n} copies of fwd_hd128: {len(grown.roles)} roles, {actions} actions"
        rows.append({"what": what, "seconds": round(seconds, 3), "frontiers": frontiers})
    for row in rows:
        print(f"{row['seconds']:>8} s  {row['what']}")
    if given.json:
        about = {"machine": platform.machine(), "python": platform.python_version(), "rows": rows}
        given.json.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
