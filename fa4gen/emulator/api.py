"""The emulator as Python: load what the CuTe DSL exported, call it with CPU tensors, read a report.

    emulator = Emulator(target="sm_100a", seed=0, races=True)
    fwd = emulator.load("k.so", ptx=["k.ptx"])["fwd"]
    report = fwd(q, k, v, out, lse, scale, None)
    report.raise_if_faulty()

The host code runs natively; each of its launches runs in the emulated GPU, on the tensors' memory.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from fa4gen.diag import error
from fa4gen.emulator import capture, machine
from fa4gen.emulator.ptx.module import PtxEntry, PtxModule
from fa4gen.emulator.ptx.parser import load_ptx
from fa4gen.emulator.report import Report
from fa4gen.emulator.tensors import Region, present

# Multiprocessors of H200 and B200; shared memory a block may opt in to (CUDA programming guide).
DEVICES = {
    "sm_90a": capture.Device(multiprocessors=132, smem_optin_bytes=232448, capability=9),
    "sm_100a": capture.Device(multiprocessors=148, smem_optin_bytes=232448, capability=10),
}

Progress = Callable[[int, int], None]  # CTAs done, CTAs in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulator:
    """A GPU of `target` in which the same `seed` gives the same run, bit for bit.

    `races` turns the detection of races on (it costs time); CTAs run on `processes` processes.
    `perturb` names approximations (`machine.APPROXIMATIONS`) whose results the seed displaces to
    the bounds that PTX gives: outputs that change are those that a GPU may give otherwise.
    """

    target: str
    seed: int = 0
    perturb: tuple[str, ...] = ()
    races: bool = True
    processes: int = 1
    progress: Progress | None = None

    def __post_init__(self) -> None:
        """Raises `Fa4genError` for a target that is not emulated."""
        if self.target not in DEVICES:
            raise error(
                "FA0908",
                f"target {self.target!r} is not emulated",
                fix=f"use one of {', '.join(DEVICES)}",
            )

    def load(self, shared_object: str | Path, ptx: Iterable[str | Path]) -> "Exported":
        """The functions of an exported tvm-ffi shared object; the PTX files hold its kernels."""
        entries = _entries(ptx)
        stand_in, function = capture.load_exported(Path(shared_object))
        return Exported(self, stand_in, entries, function)

    def attach(self, function: Callable[..., object], ptx: Iterable[str | Path]) -> "Function":
        """A tvm-ffi function that the DSL compiled in this process, which must have been started
        with `capture.jit_environment`; its kernels are in the PTX files."""
        stand_in = capture.attach(capture.runtime_library())
        return Function(self, stand_in, _entries(ptx), function)


@dataclass(frozen=True, slots=True)
class Exported:
    """A loaded shared object: `exported["fwd"]` is its function `fwd`."""

    emulator: Emulator
    stand_in: capture.StandIn
    entries: dict[str, tuple[PtxModule, PtxEntry]]
    find: Callable[[str], Callable[..., object]]

    def __getitem__(self, name: str) -> "Function":
        """Raises `Fa4genError` if the object exports no function of this name."""
        return Function(self.emulator, self.stand_in, self.entries, self.find(name))


@dataclass(frozen=True, slots=True)
class Function:
    """Host code that launches into the emulator."""

    emulator: Emulator
    stand_in: capture.StandIn
    entries: dict[str, tuple[PtxModule, PtxEntry]]
    host: Callable[..., object]

    def __call__(self, *arguments: object) -> Report:
        """Calls the host code as on a GPU; tensors are CPU torch tensors of any strides.

        Returns one report over all launches of the call. Kernels may touch the storages of the
        tensors passed and nothing else of this process. Raises `Fa4genError` for arguments that
        cannot be emulated and for a launch whose kernel is in none of the PTX files.
        """
        shown, regions = present(arguments)
        reports: list[Report] = []

        def on_launch(launch: capture.Launch) -> None:
            reports.append(self._run(launch, regions))

        device = DEVICES[self.emulator.target]
        with self.stand_in.capturing(device, self._sizes, on_launch):
            self.host(*shown)
        return Report.merged(reports)

    def _run(self, launch: capture.Launch, regions: tuple[Region, ...]) -> Report:
        module, _ = self.entries[launch.kernel]
        return machine.run(
            module,
            launch.kernel,
            target=self.emulator.target,
            grid=launch.grid,
            block=launch.block,
            cluster=launch.cluster,
            dynamic_smem_bytes=launch.dynamic_smem_bytes,
            params=list(launch.params),
            memory=[(r.address, r.size_bytes, r.name, True) for r in regions],
            seed=self.emulator.seed,
            perturb=self.emulator.perturb,
            races=self.emulator.races,
            processes=self.emulator.processes,
            progress=self.emulator.progress,
        )

    def _sizes(self, kernel: str) -> list[int]:
        if kernel not in self.entries:
            raise error(
                "FA0909",
                f"no PTX given for the launched kernel {kernel!r}",
                why=f"the files given hold {', '.join(self.entries) or 'no kernel'}",
                fix="pass the PTX files of the same compilation (CUTE_DSL_KEEP=ptx writes them)",
            )
        return [p.bytes for p in self.entries[kernel][1].params]


def _entries(paths: Iterable[str | Path]) -> dict[str, tuple[PtxModule, PtxEntry]]:
    """Every entry of the files by name. One name in two files is an error: which one runs?"""
    found: dict[str, tuple[PtxModule, PtxEntry]] = {}
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    for path in map(Path, given):
        if not path.is_file():
            raise error(
                "FA0910", f"no PTX file at {path}", fix="CUTE_DSL_KEEP=ptx makes the DSL write it"
            )
        module = load_ptx(path.read_text(), path.name)
        for name, entry in module.entries.items():
            if name in found:
                raise error(
                    "FA0911",
                    f"kernel {name!r} is in {found[name][0].name} and in {path.name}",
                    fix="give the PTX files of one compilation",
                )
            found[name] = (module, entry)
    return found
