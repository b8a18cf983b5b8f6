"""Which kernels are in use: shipped schedules, the environment's, `use_schedule`, `load`.

A `Session` is a chain of layers with the kernels loaded so far. The context of a thread or task
has one; without `use_schedule` that is the session of the process.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fa4gen.diag import Fa4genError, error
from fa4gen.options import Options
from fa4gen.runtime import launch
from fa4gen.runtime.dispatch import Candidate, Layer, explain, find, make_layer
from fa4gen.runtime.pack import MANIFEST, read_pack
from fa4gen.runtime.problem import Problem, check_features
from fa4gen.target import TARGETS

from . import jit

DTYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16"}
MOST_PLANS = 4096  # shapes remembered at a time; a server's lengths may all differ
MOST_RECENT = 4  # compared one by one: layers of a few kinds
LASTING = ("FA0701", "FA0702")  # refusals that a second try would only repeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What every call of the same shapes, strides, types and devices does."""

    call: Callable[..., Any]
    num_sms: int
    device: int  # that must be current; -1: it cannot be another
    out_shape: tuple[int, ...]
    out_like_q: bool  # an output made here lies as q does
    lse_shape: tuple[int, ...]
    scale: float  # where the call gives none


# A plan that came twice, and what recognises its calls; a plain tuple, which Python takes apart
# fastest, for it is read each call: (causal, whether the outputs are given, `fits_of` the tensors,
# the kernel's function, the scale where the call gives none, num_sms, device, plan).
Recent = tuple[bool, bool, Callable[..., bool], Callable[..., Any], float, int, int, Plan]


class Session:
    """Layers, innermost first, and what was loaded for calls; safe to use from several threads.

    `kernels` maps what a call knows of its problem to a loaded kernel: the hot path's one look-up.
    """

    def __init__(self, parent: "Session | None" = None, layer: Layer | None = None) -> None:
        self.kernels: dict[tuple[Any, ...], launch.Kernel] = {}
        self.plans: dict[tuple[Any, ...], Plan] = {}
        self.recent: tuple[Recent, ...] = ()
        self.traced: Any = None  # functions of FlexAttention; see `flex`
        self.causal_masks: dict[int, tuple[Any, tuple[int, ...], bool]] = {}  # see `flex`
        self._own = [layer] if layer else []
        self._parent = parent
        self._children: weakref.WeakSet[Session] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._making: dict[tuple[Problem, int], threading.Lock] = {}
        self._refused: dict[Problem, Fa4genError] = {}
        self._base: list[Layer] | None = None
        if parent:
            parent._children.add(self)

    def layers(self) -> Iterator[Layer]:
        """Layers in the order of the search, read when it gets there. Raises what schedules say."""
        yield from tuple(self._own)
        if self._parent:
            yield from self._parent.layers()
            return
        with self._lock:
            if self._base is None:
                self._base = _base(Options.from_environment())
        yield from self._base

    def add(self, layer: Layer) -> None:
        """Puts a layer before the others; kernels found so far are looked up anew."""
        with self._lock:
            self._own.insert(0, layer)
            self.forget()

    def forget(self) -> None:
        """Empties the memory of loaded kernels, here and in sessions within this one."""
        self.kernels, self.plans, self.recent = {}, {}, ()
        self._refused.clear()
        for child in list(self._children):
            child.forget()

    def remember(self, key: tuple[Any, ...], plan: Plan) -> Plan:
        """Keeps the plan of a call; all are dropped when there are too many."""
        if len(self.plans) >= MOST_PLANS:
            self.plans = {}
        self.plans[key] = plan
        return plan

    def expect(self, causal: bool, given: bool, fits: Callable[..., bool], plan: Plan) -> None:
        """Puts a plan before the recent ones."""
        recent = (causal, given, fits, plan.call, plan.scale, plan.num_sms, plan.device, plan)
        self.recent = (recent, *self.recent[: MOST_RECENT - 1])

    def kernel(self, problem: Problem, device: int, num_sms: int) -> launch.Kernel:
        """The kernel that serves a problem on a device, loaded. Raises FA0805, FA081x, FA07xx."""
        with self._making.setdefault((problem, device), threading.Lock()):
            if refused := self._refused.get(problem):
                raise refused
            options = Options.from_environment()
            candidate = find(self.layers(), problem)
            try:
                path = jit.shared_object(candidate, problem, options)
            except Fa4genError as e:
                if all(d.code in LASTING for d in e.diagnostics):
                    self._refused[problem] = e
                raise
            return launch.Kernel(
                name=candidate.name,
                function=launch.load_function(path, options),
                device=device,
                num_sms=num_sms,
            )


def kernel_of(
    session: Session,
    q: Any,
    v: Any,
    causal: bool,
    features: tuple[str, ...],
    facts: launch.Device,
) -> launch.Kernel:
    """The kernel, from the memory of the session, or looked for and put there."""
    d, dv, device = q.shape[3], v.shape[3], q.get_device()
    kernels = session.kernels  # a new one if layers change meanwhile
    key = (q.dtype, q.dtype, q.dtype, d, d, dv, causal, features, device, device, device)
    if key not in kernels:
        problem = Problem(
            target=facts.target,
            dtype=DTYPES[str(q.dtype)],
            head_dim=d,
            head_dim_v=dv,
            causal=causal,
            features=features,
        )
        kernels[key] = session.kernel(problem, device, facts.num_sms)
    return kernels[key]


def _base(options: Options) -> list[Layer]:
    named = {"FA4GEN_SCHEDULES": options.schedules, "shipped schedules": (jit.SHIPPED,)}
    found = []
    for name, paths in named.items():
        files = jit.schedule_files(p for p in paths if p is not jit.SHIPPED or p.exists())
        try:
            found.append(make_layer(name, [jit.candidate_of(f, options) for f in files]))
        except ModuleNotFoundError as missing:
            raise error(
                "FA0810",
                f"no pack that is loaded serves the call, and schedules need `{missing.name}`",
                fix=f"pip install {missing.name}, or `fa4gen.load` a pack that serves it",
            ) from missing
    return found


PROCESS = Session()
CURRENT: ContextVar[Session] = ContextVar("fa4gen_session", default=PROCESS)


@contextmanager
def use_schedule(*paths: str | Path) -> Iterator[None]:
    """Within this context, calls use these schedules (files, or folders of them) where they serve.

    Other problems go on to the schedules around: outer contexts, FA4GEN_SCHEDULES, the shipped.
    It holds for the thread or task that entered it. Raises `Fa4genError`: what is wrong with a
    schedule, FA0812 (two of them serve one problem), FA0813 (one serves nothing).
    """
    options = Options.from_environment()
    files = jit.schedule_files(Path(p) for p in paths)
    if not files:
        raise error("FA0111", "there is no schedule among what `use_schedule` names")
    layer = make_layer("use_schedule", [jit.candidate_of(f, options) for f in files])
    token = CURRENT.set(Session(parent=CURRENT.get(), layer=layer))
    try:
        yield
    finally:
        CURRENT.reset(token)


def load(
    path: str | Path,
    *,
    target: str | None = None,
    dtype: str = "bf16",
    head_dim: int = 0,
    head_dim_v: int = 0,
    causal: bool | None = None,
    features: Sequence[str] = (),
) -> tuple[str, ...]:
    """Kernels built before, for this process: they come before all schedules. Returns their names.

    path: a pack (`fa4gen pack -o DIR`), or one shared object, which does not say what it serves:
    then `target` ('sm_90a'), `dtype`, `head_dim`, `causal` and `features` must. Raises
    `Fa4genError` FA0811 for a pack that is damaged or for none of this machine's GPUs. Loading runs
    the machine code.
    """
    path = Path(path)
    if path.suffix == ".so":
        if target is None or target not in TARGETS or not head_dim or causal is None:
            raise error(
                "FA0811",
                f"`{path.name}` does not say what it serves",
                fix='load(path, target="sm_90a", dtype="bf16", head_dim=128, causal=False)',
            )
        if not path.exists():
            raise error("FA0811", f"there is no `{path}`", fix=f"or a folder with {MANIFEST}")
        found: tuple[Candidate, ...] = (
            Candidate(
                name=path.stem,
                target=target,
                dtypes=(dtype,),
                head_dims=(head_dim,),
                head_dims_v=(head_dim_v or head_dim,),
                causal=(causal,),
                features=check_features(features),
                origin=str(path),
                shared_object=str(path.absolute()),
            ),
        )
    else:
        found = read_pack(path)
    _check_targets(path, {c.target for c in found})
    PROCESS.add(make_layer(f"load({str(path)!r})", found))
    return tuple(c.name for c in found)


def _check_targets(path: Path, targets: set[str]) -> None:
    """A pack for no GPU of this machine is refused; where there is none, it cannot be known."""
    here = visible_targets()
    if here and not targets & set(here):
        raise error(
            "FA0811",
            f"`{path}` is for {', '.join(sorted(targets))}, this machine has {', '.join(here)}",
            fix=f"`fa4gen pack --target {here[0]}` makes one for it",
        )


def visible_targets() -> tuple[str, ...]:
    """Architectures of this machine's GPUs, as targets are written."""
    import torch

    if not torch.cuda.is_available():
        return ()
    found = [torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())]
    return tuple(dict.fromkeys(f"sm_{major}{minor}a" for major, minor in found))


def explain_dispatch(
    *,
    target: str,
    head_dim: int,
    dtype: str = "bf16",
    head_dim_v: int = 0,
    causal: bool = False,
    features: Sequence[str] = (),
) -> str:
    """Which kernel serves a problem here and now, and why the others do not; one line for each.

    features: 'window', 'softcap', 'alibi', 'sinks'.
    """
    asked = Problem(
        target=target,
        dtype=dtype,
        head_dim=head_dim,
        head_dim_v=head_dim_v or head_dim,
        causal=causal,
        features=check_features(features),
    )
    return os.linesep.join(
        [f"{asked}:", *(f"  {x}" for x in explain(CURRENT.get().layers(), asked))]
    )
