"""Times the host side of a call, beside the kernel's own function.

    python bench/host_time.py [--pack DIR] [--json FILE]

With a pack, on this machine's GPU. Without one, on CPU tensors with a function that does nothing in
the kernel's place: what is left is this package's part. Batches of calls go in turn, so that a busy
machine is busy for all of them alike.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the stand-in for a device is shared with the tests

import fa4gen  # noqa: E402
from fa4gen.api import session  # noqa: E402
from fa4gen.runtime import launch  # noqa: E402

Calls = Mapping[str, Callable[[], Any]]
RAW = "the kernel's own function"


def calls(device: str, kernel: Callable[..., Any], num_sms: int) -> dict[str, Callable[[], Any]]:
    """Ways to call attention, of one small problem (bf16, head dim 128), the kernel's own first."""
    q, k, v, out = (torch.randn(1, 128, 2, 128, device=device).bfloat16() for _ in range(4))
    lse = torch.empty(1, 2, 128, device=device)
    scale, op = 128**-0.5, torch.ops.fa4gen
    found: dict[str, Callable[[], Any]] = {
        RAW: lambda: kernel(q, k, v, out, lse, scale, num_sms),
        "attention, outputs given": lambda: fa4gen.attention(q, k, v, out=out, lse=lse),
        "attention": lambda: fa4gen.attention(q, k, v),
        "flash_attn_func": lambda: fa4gen.flash_attn_func(q, k, v),
        "operator, outputs given": lambda: op.forward_into.default(q, k, v, out, lse, False, None),
        "operator": lambda: op.forward.default(q, k, v, False, None),
    }
    if device != "cpu":  # there it would be all work
        x, y, z = (t.transpose(1, 2) for t in (q, k, v))
        found["torch sdpa"] = lambda: torch.nn.functional.scaled_dot_product_attention(x, y, z)
    return found


def measure(
    ways: Calls, *, rounds: int = 60, batch: int = 50, settle: Callable[[], None] | None = None
) -> dict[str, dict[str, float]]:
    """Microseconds a call of each: the median of all batches, and the best.

    `settle` runs before each batch: on a GPU a synchronisation, so that no queue is full.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    with torch.no_grad():
        for call in ways.values():  # each kind of call is met before it is timed
            for _ in range(5):
                call()
        for _ in range(rounds):
            for name, call in ways.items():
                if settle:
                    settle()
                begin = time.perf_counter()
                for _ in range(batch):
                    call()
                times[name].append((time.perf_counter() - begin) / batch * 1e6)
    return {
        name: {"median": round(statistics.median(t), 2), "best": round(min(t), 2)}
        for name, t in times.items()
    }


def nothing(*_arguments: object) -> None:
    """A kernel that is no work."""


def on_this_cpu() -> dict[str, Any]:
    """With `nothing` for a kernel."""
    import pytest

    from tests.api.kernels import on_cpu

    with pytest.MonkeyPatch.context() as patch, on_cpu(patch):
        patch.setattr(launch, "load_function", lambda *_: nothing)
        return measure(calls("cpu", nothing, 132), rounds=300)


def on_this_gpu(pack: Path) -> dict[str, Any]:
    """With the pack's kernel."""
    fa4gen.load(pack)
    q = torch.zeros(1, 128, 2, 128, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        fa4gen.attention(q, q, q)
    kernel = next(iter(session.CURRENT.get().kernels.values()))
    settle: Callable[[], None] = torch.cuda.synchronize
    return measure(calls("cuda", kernel.function, kernel.num_sms), settle=settle)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pack", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = on_this_gpu(given.pack) if given.pack else on_this_cpu()
    device = torch.cuda.get_device_name(0) if given.pack else "none: a function that does nothing"
    for name, t in found.items():
        print(f"{t['median']:8.2f} us  best {t['best']:6.2f}  {name}")
    if given.json:
        about = {"device": device, "machine": platform.processor() or platform.machine()}
        versions = {"torch": torch.__version__, "python": platform.python_version()}
        record = {**about, **versions, "unit": "us a call", "calls": found}
        given.json.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
