"""Host time of a call: how long Python is busy before the GPU has its work, in microseconds.

Batches of calls in turn, so that a busy machine is busy for all of them alike.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

import fa4gen

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
