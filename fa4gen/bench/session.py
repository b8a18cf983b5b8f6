"""A benchmark session: a kit of kernels and their cases, run here or elsewhere, results kept.

On a machine with a GPU, `run_here` runs the kit that `make_kit` wrote. Without one, carry the kit's
folder to a machine that has one, run `python3 KIT/run.py --out DIR` there, bring DIR back, and give
it to `keep_results`.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fa4gen.diag import error
from fa4gen.options import Options
from fa4gen.runtime.kit import KitKernel, write_kit

from . import results
from .cases import Case, cases
from .peers import peers


def make_kit(
    folder: Path,
    kernels: Sequence[KitKernel],
    options: Options,
    *,
    peers_folder: Path | None = None,
    only_cases: Sequence[Case] = (),
) -> Path:
    """Writes a kit that checks these kernels on all shapes that they serve, and times them; or for
    `only_cases`.

    Peers' kernels come from `peers_folder` (see `peers`). Raises `Fa4genError`: see `write_kit`.
    """
    targets = sorted({k.target for k in kernels})
    if len(targets) != 1:
        raise error("FA0708", f"a kit is for one target, not for {', '.join(targets) or 'none'}")
    theirs = peers(peers_folder, targets[0]) if peers_folder else ()
    return write_kit(
        folder,
        kernels=[*kernels, *(KitKernel(**fields) for fields in theirs)],  # type: ignore[arg-type]
        cases=only_cases or cases([k.entry() for k in kernels]),
        runner=results.RUNNER,
        about=results.provenance(),
        options=options,
    )


def run_here(
    kit: Path,
    out: Path,
    *,
    budget_seconds: float = 540.0,
    only: str = "check,time,host",
    match: str = "",
) -> Mapping[str, object]:
    """Runs a kit on this machine's GPU, its progress on stdout; returns the record.

    Raises `Fa4genError` FA0709 if the worker cannot start (no GPU, no torch with CUDA).
    """
    command = [sys.executable, str(kit / "run.py"), "--out", str(out)]
    command += ["--budget", f"{budget_seconds:g}", "--only", only, "--match", match]
    status = subprocess.run(command).returncode
    record = results.read(out)
    if not record["machine"]:
        log = out / "worker.log"
        said = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
        raise error(
            "FA0709",
            f"the runner did not start (exit status {status})",
            why=said[0] if said else "it said nothing",
            fix="run it where torch sees a GPU; `--kit DIR` writes what that machine needs",
        )
    return record


def has_gpu() -> bool:
    """Whether NVIDIA's driver sees a GPU on this machine."""
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and "GPU" in done.stdout


def refuse_without_gpu() -> None:
    """Raises FA0709 where there is no GPU, before minutes go into compiling."""
    if not has_gpu():
        raise error(
            "FA0709",
            "there is no NVIDIA GPU here, so nothing can be timed",
            fix="`--kit DIR` writes what a GPU machine needs; `--keep DIR` takes its results over",
        )


def keep_results(out: Path, results_folder: Path) -> tuple[Path, str]:
    """Takes what a run wrote into `out` over into the folder of results; its file and its table."""
    record = results.read(out)
    return results.keep(record, results_folder), results.text(record)
