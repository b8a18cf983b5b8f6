"""A kernel in Python that insists on all that the machine code relies on, and a session of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fa4gen.api import session
from fa4gen.runtime import launch


class Reference:
    """Attention on CPU tensors; counts its calls. Breaks on what TMA or the grid cannot take."""

    def __init__(self, causal: bool) -> None:
        self.causal, self.calls = causal, 0

    def __call__(
        self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, num_sms: int
    ) -> None:
        assert type(scale) is float
        assert num_sms == 132
        b, sq, h, _ = q.shape
        sk, hk = k.shape[1:3]
        assert min(b, sq, h, sk, hk) >= 1
        assert max(b, h) <= launch.GRID_LIMIT
        assert h % hk == 0
        for t in (q, k, v, o):
            assert t.dtype == q.dtype
            assert t.stride(-1) == 1
            assert all(s and s % 8 == 0 for s in t.stride()[:-1])
            if t.data_ptr() % 16:  # what compiled host code says: tests/runtime/test_host_code.py
                raise ValueError("expected data alignment=16 bytes")
        assert lse.dtype == torch.float32
        assert lse.shape == (b, h, sq)
        assert lse.stride(2) == 1
        self.calls += 1
        out, rows = reference(q, k, v, self.causal, scale)
        o.copy_(out)
        lse.copy_(rows)


def reference(q: Any, k: Any, v: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    """o (b, sq, h, dv) and lse (b, h, sq) in float64; causal aligned bottom-right."""
    ratio = q.shape[2] // max(1, k.shape[2])
    qd, kd, vd = (t.double().transpose(1, 2) for t in (q, k, v))
    kd, vd = (t.repeat_interleave(ratio, 1) for t in (kd, vd))
    s = qd @ kd.transpose(2, 3) * scale
    if causal:
        sq, sk = s.shape[2:]
        seen = torch.ones(sq, sk, dtype=torch.bool).tril(sk - sq)
        s = s.masked_fill(~seen, float("-inf"))
    lse = torch.logsumexp(s, -1)
    p = torch.exp(s - lse.nan_to_num(neginf=0.0)[..., None])
    return (p @ vd).transpose(1, 2), lse


@contextmanager
def on_cpu(patch: pytest.MonkeyPatch, target: str = "sm_90a") -> Iterator[dict[Any, Reference]]:
    """CPU tensors count as a device, kernels are references; yields those made, by problem."""
    made: dict[Any, Reference] = {}

    def load(path: Any, _options: Any) -> Reference:
        made[path] = Reference(causal=path.causal)
        return made[path]

    facts = launch.Device(target=target, num_sms=132)
    patch.setattr(launch, "device_of_tensor", lambda _tensor: facts)
    patch.setattr(launch, "load_function", load)
    patch.setattr(session.jit, "shared_object", lambda _candidate, problem, _options: problem)
    token = session.CURRENT.set(session.Session(parent=session.PROCESS))
    try:
        yield made
    finally:
        session.CURRENT.reset(token)
