"""One attention problem: its inputs, its answer in float64, PyTorch's call, and a kernel's call."""

import contextlib
import math
from collections.abc import Callable, Sequence
from typing import Any

from .features import NAMES, asked, changed, sinks
from .features import values as values_of_features

GUARD = 4096  # elements on either side of each tensor, poisoned and looked at afterwards


def serves(kernel: dict[str, Any], case: dict[str, Any]) -> bool:
    """Whether a kernel of the manifest takes the case's problem; a key left out serves all."""
    fixed = ("dtype", "head_dim", "head_dim_v", "causal")
    ratio = case["heads"] // case["heads_kv"]
    return bool(
        all(kernel.get(key, case[key]) == case[key] for key in fixed)
        and {f for f in kernel.get("features", ()) if f in NAMES} == set(asked(case))
        and kernel.get("gqa_ratio", ratio) == ratio
        and case["seqlen_q"] >= kernel.get("min_seqlen_q", 0)
        and case["seqlen_k"] >= kernel.get("min_seqlen_k", 0)
    )


def poisoned(
    torch: Any,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    dtype: Any,
    device: str,
    slack: int = 0,
) -> tuple[Any, Any]:
    """A tensor of NaN amid guards of NaN, its dimensions laid out in `order` (outermost first).

    `slack` widens the innermost dimension's storage, so that rows are not adjacent.
    """
    sizes = [shape[i] for i in order]
    sizes[-1] += slack
    store = torch.full((math.prod(sizes) + 2 * GUARD,), float("nan"), dtype=dtype, device=device)
    view = store[GUARD : GUARD + math.prod(sizes)].view(sizes)[..., : shape[order[-1]]]
    return store, view.permute([order.index(i) for i in range(len(order))])


LAYOUTS: dict[
    str, tuple[tuple[int, ...], int]
] = {  # order of the dimensions (batch, seqlen, heads, head_dim) in memory, slack of a row
    "contiguous": ((0, 1, 2, 3), 0),
    "heads_first": ((0, 2, 1, 3), 0),
    "sequence_first": ((1, 0, 2, 3), 0),
    "padded_rows": ((0, 1, 2, 3), 8),
}


def make_inputs(
    torch: Any, case: dict[str, Any], device: str, generator: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fresh random q, k, v in the case's layout, and poisoned o and lse with what guards them."""
    c, dtype = case, getattr(torch, case["dtype"])
    order, slack = LAYOUTS[case.get("layout", "contiguous")]
    shapes = {
        "q": (c["batch"], c["seqlen_q"], c["heads"], c["head_dim"]),
        "k": (c["batch"], c["seqlen_k"], c["heads_kv"], c["head_dim"]),
        "v": (c["batch"], c["seqlen_k"], c["heads_kv"], c["head_dim_v"]),
        "o": (c["batch"], c["seqlen_q"], c["heads"], c["head_dim_v"]),
    }
    made: dict[str, Any] = {}
    stores: dict[str, Any] = {}
    for name, shape in shapes.items():
        stores[name], made[name] = poisoned(torch, shape, order, dtype, device, slack)
    stores["lse"], made["lse"] = poisoned(
        torch, (c["batch"], c["heads"], c["seqlen_q"]), (0, 1, 2), torch.float32, device
    )
    for name in "qkv":
        values = torch.randn(shapes[name], device=device, generator=generator)
        made[name].copy_(values * (case.get("spread", 1.0) if name == "q" else 1.0))
    return made, stores


def softmax_scale(case: dict[str, Any]) -> float:
    """The scale of the scores; 1 / sqrt(head_dim) unless the case has its own."""
    return float(case.get("softmax_scale", case["head_dim"] ** -0.5))


def reference(
    torch: Any,
    q: Any,
    k: Any,
    v: Any,
    case: dict[str, Any],
    pairs: list[tuple[int, int]] | None = None,
) -> tuple[Any, Any]:
    """Attention in float64: o (n, sq, dv) and lse (n, sq) of the (batch, head) pairs asked for."""
    ratio = case["heads"] // case["heads_kv"]
    sq, sk = case["seqlen_q"], case["seqlen_k"]
    pairs = pairs or [(b, h) for b in range(case["batch"]) for h in range(case["heads"])]
    o = torch.zeros(len(pairs), sq, case["head_dim_v"], dtype=torch.float64, device=q.device)
    lse = torch.full((len(pairs), sq), -math.inf, dtype=torch.float64, device=q.device)
    for n, (b, h) in enumerate(pairs if sk else []):
        s = q[b, :, h].double() @ k[b, :, h // ratio].double().T * softmax_scale(case)
        s = changed(torch, s, case, b, h)
        lse[n] = torch.logsumexp(s, -1)
        if case.get("sinks"):
            lse[n] = torch.logaddexp(lse[n], sinks(torch, case, q.device)[h].double())
        p = torch.exp(s - torch.where(lse[n] == -math.inf, 0.0, lse[n])[:, None])
        o[n] = p @ v[b, :, h // ratio].double()
    return o, lse


class Call:
    """A call of an attention function on fixed tensors, and the context that it has to run in."""

    def __init__(
        self, call: Callable[[], Any], around: Callable[[], Any] = contextlib.nullcontext
    ) -> None:
        self.call, self.around = call, around

    def __call__(self) -> Any:
        """One call by itself."""
        with self.around():
            return self.call()


BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")


def sdpa(
    torch: Any,
    q: Any,
    k: Any,
    v: Any,
    case: dict[str, Any],
    backends: Sequence[str] = BACKENDS,
) -> tuple[Call, int]:
    """A call of PyTorch's attention, by the first of the backends that takes the problem.

    Returns the call, whose answer is (batch, heads, rows that have keys, head_dim_v), and the
    number of rows before these, which have no keys.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    sq, sk = case["seqlen_q"], case["seqlen_k"]
    start = max(0, sq - sk) if case["causal"] else 0
    t = [x.transpose(1, 2) for x in (q[:, start:], k, v)]
    more: dict[str, Any] = {"enable_gqa": True} if case["heads"] != case["heads_kv"] else {}
    more["is_causal"] = case["causal"]
    if case["causal"] and sq < sk:
        ratio = case["heads"] // case["heads_kv"]
        t = [t[0], *(x.repeat_interleave(ratio, 1) for x in t[1:])]
        more = {"attn_mask": causal_lower_right(sq, sk)}
    chosen = [getattr(SDPBackend, name) for name in backends]
    attention, scale = torch.nn.functional.scaled_dot_product_attention, softmax_scale(case)
    call = Call(
        lambda: attention(*t, scale=scale, **more), lambda: sdpa_kernel(chosen, set_priority=True)
    )
    return call, start


def feature_values(case: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """Arguments for the features of a case."""
    if not asked(case):
        return {}
    import torch

    return values_of_features(torch, case, tensors["q"].device)


def launcher(
    kernel: dict[str, Any],
    function: Callable[..., Any],
    tensors: dict[str, Any],
    case: dict[str, Any],
    num_sms: int,
) -> Call:
    """A call without arguments of one kernel on these tensors, as the manifest describes it."""
    scale = softmax_scale(case)
    values = {
        **tensors,
        "softmax_scale": scale,
        "scale_log2": scale * math.log2(math.e),
        "num_sms": num_sms,
        "max_seqlen_q": case["seqlen_q"],
        "causal": case["causal"],
        **feature_values(case, tensors),
    }

    if "counter" in kernel["arguments"]:  # of a dynamic tile scheduler
        values["counter"] = tensors["lse"].new_zeros(1).int()

    def argument(a: Any) -> Any:
        return None if a is None else values[a] if isinstance(a, str) else tuple(map(argument, a))

    args = tuple(argument(a) for a in kernel["arguments"])
    return Call(lambda: function(*args))
