"""Windows, soft-capping, ALiBi and sinks of a case, in PyTorch: in float64 and in its own type.

A case may have `window` ([left, right], null: open), `softcap`, `alibi` and `sinks` (true). Slopes
and sinks follow from the case, so that whoever needs them makes the same.
"""

import math
from typing import Any

NAMES = ("window", "softcap", "alibi", "sinks")
OPEN = 2**31 - 1


def asked(case: dict[str, Any]) -> tuple[str, ...]:
    """Names of the case's features."""
    return tuple(name for name in NAMES if case.get(name))


def slopes(torch: Any, case: dict[str, Any], device: Any) -> Any:
    """(batch, heads), float32: ALiBi's, other ones for each batch."""
    heads = 2.0 ** -(8.0 * (torch.arange(case["heads"], device=device) + 1) / case["heads"])
    batches = 1 + 0.5 * torch.arange(case["batch"], device=device)
    return (heads[None, :] * batches[:, None]).float()


def sinks(torch: Any, case: dict[str, Any], device: Any) -> Any:
    """(heads,), float32: some above and some below usual scores."""
    return 3.0 * torch.cos(torch.arange(case["heads"], device=device).float() + case["head_dim"])


def values(torch: Any, case: dict[str, Any], device: Any) -> dict[str, Any]:
    """What kernels are called with, by the names of their arguments."""
    found: dict[str, Any] = {}
    if window := case.get("window"):
        bounds = [OPEN if bound is None else bound for bound in window]
        found |= dict(zip(("window_left", "window_right"), bounds, strict=True))
    found |= {"softcap": float(case["softcap"])} if case.get("softcap") else {}
    found |= {"slopes": slopes(torch, case, device)} if case.get("alibi") else {}
    found |= {"sinks": sinks(torch, case, device)} if case.get("sinks") else {}
    return found


def changed(torch: Any, s: Any, case: dict[str, Any], batch: int, head: int) -> Any:
    """Scaled scores (seqlen_q, seqlen_k) of one head, capped, biased and masked."""
    rows = torch.arange(case["seqlen_q"], device=s.device)[:, None]
    place = rows + case["seqlen_k"] - case["seqlen_q"]
    behind = torch.arange(case["seqlen_k"], device=s.device)[None, :] - place
    if cap := case.get("softcap"):
        s = cap * torch.tanh(s / cap)
    if case.get("alibi"):
        s = s - slopes(torch, case, s.device)[batch, head].to(s.dtype) * behind.abs()
    left, right = case.get("window") or (None, None)
    if case["causal"]:
        right = 0 if right is None else min(right, 0)
    hidden = torch.zeros_like(behind, dtype=torch.bool)
    if left is not None:
        hidden |= behind < -left
    if right is not None:
        hidden |= behind > right
    return s.masked_fill(hidden, -math.inf)


def plain(
    torch: Any, q: Any, k: Any, v: Any, case: dict[str, Any], scale: float, pairs: Any
) -> Any:
    """(n, sq, dv): step by step in the tensors' type, scores changed in float32; NaN without
    keys."""
    ratio, out = case["heads"] // case["heads_kv"], []
    for b, h in pairs:
        s = (q[b, :, h] @ k[b, :, h // ratio].T) * scale
        s = changed(torch, s.float(), case, b, h).to(q.dtype)
        if case.get("sinks"):
            sink = sinks(torch, case, q.device)[h].to(q.dtype).expand(s.shape[0], 1)
            s = torch.cat((s, sink), -1)
        out.append(torch.softmax(s, -1)[:, : case["seqlen_k"]] @ v[b, :, h // ratio])
    return torch.stack(out)
