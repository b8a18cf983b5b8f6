"""Whether a kernel's answer is right: its errors against float64, beside those of PyTorch's."""

import math
from typing import Any

from .features import asked, plain
from .problem import reference, sdpa, softmax_scale

RMS_FACTOR, MAX_FACTOR, FLOOR, LSE_LIMIT = 1.1, 1.5, 1e-5, 1e-4


def judge(
    o: Any, lse: Any, ref_o: Any, ref_lse: Any, torch_o: Any | None
) -> tuple[dict[str, float], list[str]]:
    """Errors of (n, sq, dv) outputs and (n, sq) LSE against float64, and what is wrong, in words.

    `torch_o` is PyTorch's output in the same dtype for the rows that have keys, None without any.
    """
    faults: list[str] = []
    live = ref_lse > -math.inf
    if not bool((o[~live] == 0).all()):
        faults.append("rows without keys are not 0")
    if not bool((lse[~live] == -math.inf).all()):
        faults.append("LSE of rows without keys is not -inf")
    found: dict[str, float] = {}
    if torch_o is not None and bool(live.any()):
        bad, theirs = (o - ref_o)[live].double(), (torch_o[live].double() - ref_o[live])
        found = {
            "rms": float(bad.square().mean().sqrt()),
            "max": float(bad.abs().max()),
            "torch_rms": float(theirs.square().mean().sqrt()),
            "torch_max": float(theirs.abs().max()),
            "lse": float((lse - ref_lse)[live].abs().max()),
        }
        limits = {
            "rms": RMS_FACTOR * found["torch_rms"] + FLOOR,
            "max": MAX_FACTOR * found["torch_max"] + FLOOR,
            "lse": LSE_LIMIT,
        }
        for name, limit in limits.items():
            if not found[name] <= limit:  # a NaN fails
                faults.append(f"{name} error {found[name]:.3g}, limit {limit:.3g}")
    return found, faults


def untouched(
    torch: Any, stores: dict[str, Any], tensors: dict[str, Any], names: tuple[str, ...]
) -> list[str]:
    """Names of tensors around which something was written: there all must be NaN still."""
    touched = []
    for name in names:
        tensors[name].fill_(float("nan"))
        if not bool(torch.isnan(stores[name]).all()):
            touched.append(name)
    return touched


def compare(
    torch: Any,
    tensors: dict[str, Any],
    case: dict[str, Any],
    pairs: list[tuple[int, int]] | None = None,
) -> tuple[dict[str, float], list[str]]:
    """Judges the outputs that lie in `tensors`, for all or some (batch, head) pairs."""
    q, k, v, o, lse = (tensors[n] for n in ("q", "k", "v", "o", "lse"))
    ref_o, ref_lse = reference(torch, q, k, v, case, pairs)
    torch_o = None
    if asked(case):
        every = [(b, h) for b in range(case["batch"]) for h in range(case["heads"])]
        torch_o = plain(torch, q, k, v, case, softmax_scale(case), pairs or every)
    elif case["seqlen_k"] and case["seqlen_q"]:
        call, start = sdpa(torch, q, k, v, case)
        torch_o = torch.zeros_like(ref_o, dtype=o.dtype)
        answer = call()  # (batch, heads, rows with keys, dv)
        if pairs is None:
            torch_o[:, start:] = answer.flatten(0, 1)
        else:
            torch_o[:, start:] = torch.stack([answer[b, h] for b, h in pairs])
    if pairs is None:
        flat_o, flat_lse = o.transpose(1, 2).flatten(0, 1), lse.flatten(0, 1)
    else:
        flat_o = torch.stack([o[b, :, h] for b, h in pairs])
        flat_lse = torch.stack([lse[b, h] for b, h in pairs])
    return judge(flat_o, flat_lse, ref_o, ref_lse, torch_o)
