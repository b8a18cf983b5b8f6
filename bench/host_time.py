"""Times the host side of a call, beside the kernel's own function.

    python bench/host_time.py [--pack DIR] [--json FILE]

With a pack, on this machine's GPU. Without one, on CPU tensors with a function that does nothing in
the kernel's place: what is left is this package's part.
"""

import argparse
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the stand-in for a device is shared with the tests

import fa4gen  # noqa: E402
from fa4gen.api import session  # noqa: E402
from fa4gen.bench.host import calls, measure  # noqa: E402
from fa4gen.runtime import launch  # noqa: E402
from tests.api.kernels import on_cpu  # noqa: E402


def nothing(*_arguments: object) -> None:
    """A kernel that is no work."""


def on_this_cpu() -> dict[str, Any]:
    """With `nothing` for a kernel."""
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
