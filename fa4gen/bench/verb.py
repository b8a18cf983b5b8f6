"""What `fa4gen bench` does: kernels into a kit, run here or elsewhere, results kept."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from fa4gen.build import Member, members
from fa4gen.ir.features import inputs, ordered
from fa4gen.options import Options
from fa4gen.runtime.compile import Request, compile_cached
from fa4gen.runtime.kit import ARGUMENTS, KitKernel
from fa4gen.scheduler.tile_ring import DYNAMIC

from .session import keep_results, make_kit, run_here

RESULTS = Path("bench/results")
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}


def kit_kernel(one: Member, options: Options) -> KitKernel:
    """A member as a kernel of a kit, compiled or taken from the cache."""
    schedule = one.checked.schedule
    request = Request(name=one.name, target=schedule.target, text=one.source.text)
    counter = ("counter",) if schedule.scheduler in DYNAMIC else ()
    return KitKernel(
        name=one.name,
        shared_object=compile_cached(request, options).shared_object,
        target=schedule.target,
        dtype=DTYPES[schedule.dtype],
        head_dim=schedule.head_dim,
        head_dim_v=schedule.head_dim_v,
        causal=schedule.causal,
        features=ordered(schedule.features),
        min_seqlen_k=1,
        arguments=(*ARGUMENTS, *(i.name for i in inputs(schedule.features)), *counter),
    )


def kernels(
    schedules: Sequence[str], settings: Mapping[str, str], variant: str | None, options: Options
) -> list[KitKernel]:
    """Every member that was asked for: each mask, and each dtype that a schedule serves."""
    found = []
    for path in schedules:
        dtypes = [settings["dtype"]] if "dtype" in settings else list(DTYPES)
        for dtype in dtypes:
            asked = {**settings, "dtype": dtype}
            found += [kit_kernel(one, options) for one in members(path, asked, variant)]
    return found


def write(
    kit: Path, made: Sequence[KitKernel], peers_folder: Path | None, options: Options
) -> Path:
    """The folder that a GPU machine needs; see its `run.py`."""
    return make_kit(kit, made, options, peers_folder=peers_folder)


def measure(
    made: Sequence[KitKernel], peers_folder: Path | None, options: Options, budget_seconds: float
) -> tuple[Path, str]:
    """Runs on this machine's GPU; where the results are kept, and their table. Raises FA0709."""
    with tempfile.TemporaryDirectory() as folder:
        kit = write(Path(folder) / "kit", made, peers_folder, options)
        out = Path(folder) / "out"
        run_here(kit, out, budget_seconds=budget_seconds)
        return keep(out)


def keep(out: Path) -> tuple[Path, str]:
    """Takes results that came back from another machine over; where they lie, and their table."""
    return keep_results(out, RESULTS)
