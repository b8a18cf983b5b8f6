"""Building ahead of time: the kernels of some head dims for one target, as a pack."""

from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from fa4gen.dtypes import IO_DTYPES
from fa4gen.options import Options
from fa4gen.runtime.dispatch import find
from fa4gen.runtime.pack import Built, write_pack
from fa4gen.runtime.problem import Problem, check_features
from fa4gen.target import find_target

from .jit import shared_objects
from .session import CURRENT


def make_pack(
    folder: str | Path,
    *,
    target: str,
    head_dims: Sequence[tuple[int, int]],
    dtypes: Sequence[str] = IO_DTYPES,
    causal: Sequence[bool] = (False, True),
    features: Sequence[Sequence[str]] = ((),),
    workers: int = 0,
) -> tuple[str, ...]:
    """Builds what calls with these head dims (of Q and K, of V) would use, `workers` at a time.

    `features`: for each choice of features, the kernels with all of them. Needs no GPU. Returns the
    kernels' names. Raises `Fa4genError`: FA0215 an unknown target, FA0805
    head dims that no schedule in use serves, FA07xx of compiling, FA0811 of the folder.
    """
    find_target(target)
    asked = [
        Problem(target=target, dtype=t, head_dim=d, head_dim_v=dv, causal=c, features=f)
        for d, dv in dict.fromkeys(head_dims)
        for t in dtypes
        for c in causal
        for f in dict.fromkeys(check_features(f) for f in features)
    ]
    layers = list(CURRENT.get().layers())
    jobs = [(find(layers, p), p) for p in asked]
    made = shared_objects(jobs, Options.from_environment(), workers)
    kernels = [
        Built(name=_name(c.name, p), problem=p, shared_object=so)
        for (c, p), so in zip(jobs, made, strict=True)
    ]
    write_pack(Path(folder), kernels, metadata.version("fa4gen"))
    return tuple(k.name for k in kernels)


def _name(schedule: str, problem: Problem) -> str:
    mask = "_".join(("causal" if problem.causal else "full", *problem.features))
    return f"{schedule}_d{problem.head_dim}_dv{problem.head_dim_v}_{problem.dtype}_{mask}"
