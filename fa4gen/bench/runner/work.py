"""What a worker process does: loads kernels, checks values, measures times."""

import ctypes
import datetime
import importlib
import importlib.util
import lzma
import math
import os
import random
import statistics
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .features import asked
from .judge import compare, untouched
from .problem import Call, launcher, make_inputs, sdpa, serves
from .table import rows

WARM_MS, MEASURE_MS = 15.0, 25.0  # of one measurement, on the device; events resolve 0.5 us
HOST_BATCHES, HOST_CALLS = 50, 50
LIBRARIES = {"cudnn": "CUDNN_ATTENTION", "sdpa flash": "FLASH_ATTENTION"}


def prepare(kit: Path) -> None:
    """Makes tvm_ffi importable and the DSL's runtime visible to the kernels."""
    home = Path.home() / ".cache" / "fa4gen-kit"
    home.mkdir(parents=True, exist_ok=True)
    for wheel in [] if importlib.util.find_spec("tvm_ffi") else kit.glob("*.whl"):
        site = home / wheel.stem
        if not site.exists():
            partial = site.with_suffix(f".{os.getpid()}")
            with zipfile.ZipFile(wheel) as z:
                z.extractall(partial)
            partial.rename(site)
        sys.path.insert(0, str(site))
    for packed in kit.glob("*.so.xz"):
        library = home / packed.stem
        if not library.exists():
            partial = home / f"{packed.stem}.{os.getpid()}"
            partial.write_bytes(lzma.decompress(packed.read_bytes()))
            partial.rename(library)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


class Bench:
    """What a worker holds: torch, the loaded functions, and the random seed of this run."""

    device = "cuda"

    def __init__(self, kit: Path, manifest: dict[str, Any], seed: str) -> None:
        import torch

        self.torch, self.kit, self.seed = torch, kit, seed
        self.kernels = {k["name"]: k for k in manifest["kernels"]}
        self.functions: dict[str, Callable[..., Any]] = {}
        self.properties = torch.cuda.get_device_properties(0)
        self.num_sms = self.properties.multi_processor_count

    def function(self, name: str) -> Callable[..., Any]:
        """The function of a kernel, loaded at first use: tvm-ffi's, or what a Python one makes."""
        if name not in self.functions:
            kernel = self.kernels[name]
            if maker := kernel.get("python"):
                module, _, function = maker.partition(":")
                made = getattr(importlib.import_module(module), function)
                self.functions[name] = made(self.kit / kernel["file"])
            else:
                import tvm_ffi

                module = tvm_ffi.load_module(str(self.kit / kernel["file"]))
                self.functions[name] = module[kernel["function"]]
        return self.functions[name]

    def answer(self, name: str, tensors: dict[str, Any], case: dict[str, Any]) -> None:
        """One call; then the outputs lie in `tensors`, also of a function that returns them."""
        returned = self.call(name, tensors, case)()
        for output, value in zip(
            self.kernels[name].get("returns", ()), returned or (), strict=True
        ):
            tensors[output].copy_(value)
        self.torch.cuda.synchronize()

    def call(self, name: str, tensors: dict[str, Any], case: dict[str, Any]) -> Call:
        """A launch of one kernel on these tensors."""
        return launcher(self.kernels[name], self.function(name), tensors, case, self.num_sms)

    def inputs(self, case: dict[str, Any], salt: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
        """Fresh inputs of a case, the same for the same seed."""
        number = random.Random(f"{self.seed} {case['name']} {salt}").getrandbits(62)
        generator = self.torch.Generator(self.device).manual_seed(number)
        return make_inputs(self.torch, case, self.device, generator)

    def check(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Values, bitwise repetition and guards of one kernel on one problem."""
        torch, case = self.torch, unit["case"]
        tensors, stores = self.inputs(case)
        self.answer(unit["kernels"][0], tensors, case)
        errors, faults = compare(torch, tensors, case)
        first = {n: tensors[n].clone() for n in ("o", "lse")}
        for n in ("o", "lse"):
            tensors[n].fill_(float("nan"))
        self.answer(unit["kernels"][0], tensors, case)
        if any(not torch.equal(first[n], tensors[n]) for n in first):
            faults.append("two runs differ")
        touched = untouched(torch, stores, tensors, ("q", "k", "v", "o", "lse"))
        faults += [f"memory around `{n}` was written" for n in touched]
        return {**errors, "faults": faults}

    def contenders(
        self, unit: dict[str, Any], sets: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Call]], str | None]:
        """Name -> calls, one for each input set (ours, peers, control, PyTorch's); and the base.

        The control is the first peer once more. What refuses the problem is left out, with a note.
        """
        torch, case = self.torch, unit["case"]
        peers = [n for n, k in self.kernels.items() if k.get("peer") and serves(k, case)]
        peers = [n for n in peers if n not in unit["kernels"]]
        calls = {n: [self.call(n, t, case) for t in sets] for n in [*unit["kernels"], *peers]}
        libraries = LIBRARIES if case.get("libraries", True) or not peers else {}
        libraries = {} if asked(case) else libraries  # they have other features, or none
        for name in peers[:1]:
            calls[f"{name} (again)"] = calls[name]
        for name, backend in libraries.items():
            calls[name] = [sdpa(torch, t["q"], t["k"], t["v"], case, [backend])[0] for t in sets]
        for name in [n for n in calls if n not in unit["kernels"]]:
            try:
                calls[name][0]()
                torch.cuda.synchronize()
            except RuntimeError as refused:
                print(f"{unit['id']}: {name} left out: {refused}", file=sys.stderr)
                del calls[name]
        return calls, next((n for n in [*peers, "cudnn", "sdpa flash"] if n in calls), None)

    def measure(self, calls: list[Call], count: int) -> float:
        """Mean device time in ms of `count` launches in a row, over the input sets in turn."""
        torch = self.torch
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with calls[0].around():
            start.record()
            for i in range(count):
                calls[i % len(calls)].call()
            end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / count

    def time(self, unit: dict[str, Any]) -> dict[str, Any]:
        """One alternating run of all contenders; ratios are paired, round by round.

        The clock drifts with power, and follows what ran before: each measurement comes after some
        untimed launches of the same kernel, and each kernel comes after each other equally often.
        A case that is to be quick says how long (`warm_ms`, `measure_ms`), and how many of those
        orders there are (`alternations`).
        """
        torch, case = self.torch, unit["case"]
        size = sum(t.nbytes for t in self.inputs(case)[0].values())
        copies = max(2, math.ceil(2 * self.properties.L2_cache_size / size))
        sets = [self.inputs(case, i)[0] for i in range(copies)]
        faults: list[str] = []
        pairs = [(0, 0), (case["batch"] - 1, case["heads"] - 1)]
        for name in unit["kernels"]:
            self.answer(name, sets[0], case)
            faults += [f"{name}: {f}" for f in compare(torch, sets[0], case, pairs)[1]]
        calls, base = self.contenders(unit, sets)
        once = {}
        for name, work in calls.items():
            self.measure(work, 3)
            once[name] = self.measure(work, 3)
        times: dict[str, list[float]] = {name: [] for name in calls}
        names = list(calls)
        warm_ms, measure_ms = case.get("warm_ms", WARM_MS), case.get("measure_ms", MEASURE_MS)
        orders = balanced_orders(len(names), case.get("rounds", 10))
        few = case.get("alternations", len(orders))
        for order in orders[:: max(1, len(orders) // few)][:few]:
            for name in (names[n] for n in order):
                self.measure(calls[name], math.ceil(warm_ms / once[name]))
                count = max(3, math.ceil(measure_ms / once[name]))
                times[name].append(self.measure(calls[name], count))
        return {"faults": faults, "base": base, "times_ms": times, "rows": rows(times, base, case)}

    def host(self, unit: dict[str, Any]) -> dict[str, Any]:
        """Host time of a call in us: medians of batches in turn; a batch waits for nothing."""
        sets = [self.inputs(unit["case"])[0]]
        calls, base = self.contenders(unit, sets)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(HOST_BATCHES + 2):
            for name, (one,) in calls.items():
                self.torch.cuda.synchronize()
                with one.around():
                    begin = time.perf_counter()
                    for _ in range(HOST_CALLS):
                        one.call()
                    times[name].append((time.perf_counter() - begin) / HOST_CALLS * 1e6)
        medians = {name: statistics.median(t[2:]) for name, t in times.items()}
        return {"faults": [], "base": base, "host_us": medians}


def balanced_orders(count: int, rounds: int) -> list[list[int]]:
    """At least `rounds` orders of `count` contenders; each follows each other equally often.

    Williams's design: for an odd count, the rows and their mirror images.
    """
    first = [0] + [(i + 1) // 2 if i % 2 else count - i // 2 for i in range(1, count)]
    square = [[(x + row) % count for x in first] for row in range(count)]
    if count % 2:
        square += [row[::-1] for row in square]
    return square * math.ceil(rounds / len(square))


def work(
    kit: Path,
    manifest: dict[str, Any],
    units: list[dict[str, Any]],
    seed: str,
    send: Callable[[dict[str, Any]], object],
) -> None:
    """The worker: does the units in order and sends a line before and after each."""
    prepare(kit)
    bench = Bench(kit, manifest, seed)
    send({"ready": machine(bench.torch)})
    for unit in units:
        send({"start": unit["id"]})
        begin = time.perf_counter()
        try:
            result = getattr(bench, unit["kind"])(unit)
        except Exception as failure:
            result = {"faults": [f"{type(failure).__name__}: {str(failure)[:400]}"]}
            try:
                bench.torch.cuda.synchronize()
            except RuntimeError:  # the context is lost: a new worker has to take over
                result["lost_context"] = True
        send({"done": unit["id"], "seconds": time.perf_counter() - begin, **result})
        if result.get("lost_context"):
            return


def machine(torch: Any) -> dict[str, Any]:
    """What the numbers depend on, beside the kernels."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.split()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(0),
        "num_sms": torch.cuda.get_device_properties(0).multi_processor_count,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": sys.version.split()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }
