"""A kernel in Python that insists on all that the machine code relies on, and a session of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from fa4gen.api import session
from fa4gen.ir.features import inputs
from fa4gen.runtime import launch


class Reference:
    """Attention on CPU tensors; counts its calls. Breaks on what TMA or the grid cannot take.

    A ValueError is what compiled host code raises too: tests/runtime/test_host_code.py.
    """

    def __init__(self, causal: bool, features: tuple[str, ...], head_dims: tuple[int, int]) -> None:
        self.causal, self.features, self.head_dims, self.calls = causal, features, head_dims, 0

    def __call__(
        self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, num_sms: int, *more: Any
    ) -> None:
        assert type(scale) is float
        assert num_sms == 132
        b, sq, h, d = q.shape
        sk, hk = k.shape[1:3]
        if (d, v.shape[3]) != self.head_dims:
            raise ValueError("expected the head dims that it was compiled for")
        shapes = (k.shape, v.shape, o.shape, lse.shape)
        dv, kv = v.shape[3], k.shape[0]  # of sequences, of all together, or of pages
        if shapes != ((kv, sk, hk, d), (kv, sk, hk, dv), (b, sq, h, dv), (b, h, sq)):
            raise ValueError("expected sizes that agree")
        assert min(b, sq, h, sk, hk) >= 1
        names = [i.name for i in inputs(self.features)]
        assert len(names) == len(more)
        extras = dict(zip(names, more, strict=True))
        parts = [extras.pop(n) for n in ("o_partial", "lse_partial") if n in extras]
        assert [t.shape[0] % b for t in parts] in ([], [0, 0])
        table = extras.pop("page_table", None)
        if table is not None:
            assert v.stride(0) % v.stride(1) == 0
            k, v = (t[table.long().clamp(0, t.shape[0] - 1)].flatten(1, 2) for t in (k, v))
        lengths = [extras.pop(n, None) for n in ("cu_seqlens_q", "cu_seqlens_k", "seqused_k")]
        if k.shape[0] != b and lengths[:2] == [None, None]:
            raise ValueError("expected batches that agree")
        assert max(b, h) <= launch.GRID_LIMIT
        assert h % hk == 0
        for t in (q, k, v, o):
            assert t.dtype == q.dtype
            assert t.stride(-1) == 1
            assert all(s and s % 8 == 0 for s in t.stride()[:-1])
            if t.data_ptr() % 16:
                raise ValueError("expected data alignment=16 bytes")
        assert lse.dtype == torch.float32
        assert lse.stride(2) == 1
        self.calls += 1
        assert all(t.dtype == torch.float32 for n, t in extras.items() if n in ("slopes", "sinks"))
        for mine, one, theirs, keys in members(q, k, *lengths):
            part = {n: t[mine : mine + 1] if n == "slopes" else t for n, t in extras.items()}
            at, of = (mine if cu is None else 0 for cu in lengths[:2])
            given = (q[at, one][None], k[of, theirs][None, :keys], v[of, theirs][None, :keys])
            out, rows = reference(*given, self.causal, scale, **part)
            o[at, one], lse[at, :, one] = out[0].to(o.dtype), rows[0].float()


def members(q: Any, k: Any, cu_q: Any, cu_k: Any, used: Any) -> Iterator[tuple[Any, ...]]:
    """(sequence, rows of queries, rows of keys, keys that count) of each sequence."""
    many = q.shape[0] if cu_q is None else len(cu_q) - 1
    for n in range(many):
        mine = slice(None) if cu_q is None else slice(int(cu_q[n]), int(cu_q[n + 1]))
        theirs = slice(None) if cu_k is None else slice(int(cu_k[n]), int(cu_k[n + 1]))
        room = len(range(*theirs.indices(k.shape[1])))
        yield n, mine, theirs, room if used is None else min(int(used[n]), room)


class Backward:
    """Gradients on CPU tensors, in float64; insists on what the machine code needs."""

    def __init__(self, causal: bool, features: tuple[str, ...] = ()) -> None:
        self.causal, self.features, self.calls = causal, features, 0

    def __call__(self, *given: Any) -> None:
        q, k, v, out, d_out, lse, d_lse, dq, dk, dv, lse_rows, delta_rows, dq_sum = given[:13]
        scale, _, *more = given[13:]
        extras = dict(zip([i.name for i in inputs(self.features)], more, strict=True))
        for t in (q, k, v, out, d_out, dq, dk, dv):
            assert t.dtype == q.dtype
            assert t.stride(-1) == 1
            assert all(s and s % 8 == 0 for s in t.stride()[:-1])
            assert t.data_ptr() % 16 == 0
        b, sq, h, d = q.shape
        rows = (b, h, -(-sq // 128) * 128)
        turns = extras.pop("dq_turns", torch.zeros(b, h, rows[2], dtype=torch.int32))
        assert turns.dtype == torch.int32
        assert turns.shape[:2] == (b, h)
        assert turns.shape[2] >= -(-sq // 64)
        assert not turns.any()
        turns += 1  # as a launch leaves it
        assert lse_rows.shape == delta_rows.shape == rows
        assert dq_sum.shape == (b, sq, h, d)
        assert {t.dtype for t in (lse, d_lse, lse_rows, delta_rows, dq_sum)} == {torch.float32}
        self.calls += 1
        ratio = h // k.shape[2]
        qd, kd, vd, g = (t.double().transpose(1, 2) for t in (q, k, v, d_out))
        kd, vd = (t.repeat_interleave(ratio, 1) for t in (kd, vd))
        scores, slope = modified(qd @ kd.mT * scale, self.causal, **extras)
        p = torch.exp(scores - lse.double().nan_to_num(neginf=0.0)[..., None])
        delta = (g * out.double().transpose(1, 2)).sum(-1) - d_lse.double()
        ds = p * (g @ vd.mT - delta[..., None]) * slope * scale
        delta_rows[:, :, :sq] = delta
        dq.copy_((ds @ kd).transpose(1, 2))
        for into, one in ((dk, ds.mT @ qd), (dv, p.mT @ g)):
            into.copy_(one.unflatten(1, (-1, ratio)).sum(2).transpose(1, 2))


def reference(
    q: Any,
    k: Any,
    v: Any,
    causal: bool,
    scale: float,
    window_left: int = 2**31 - 1,
    window_right: int = 2**31 - 1,
    softcap: float = 0.0,
    slopes: Any = None,
    sinks: Any = None,
) -> tuple[Any, Any]:
    """o (b, sq, h, dv) and lse (b, h, sq) in float64; causal aligned bottom-right."""
    ratio = q.shape[2] // max(1, k.shape[2])
    qd, kd, vd = (t.double().transpose(1, 2) for t in (q, k, v))
    kd, vd = (t.repeat_interleave(ratio, 1) for t in (kd, vd))
    s = qd @ kd.transpose(2, 3) * scale
    s, _ = modified(s, causal, window_left, window_right, softcap, slopes)
    lse = torch.logsumexp(s, -1)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.double()[None, :, None])
    p = torch.exp(s - lse.nan_to_num(neginf=0.0)[..., None])
    return (p @ vd).transpose(1, 2), lse


def modified(
    s: Any,
    causal: bool,
    window_left: int = 2**31 - 1,
    window_right: int = 2**31 - 1,
    softcap: float = 0.0,
    slopes: Any = None,
) -> tuple[Any, Any]:
    """Scores (batch, heads, queries, keys) capped, biased and masked; and how much they change with
    what they were."""
    sq, sk = s.shape[2:]
    behind = torch.arange(sk)[None] - torch.arange(sq)[:, None] - (sk - sq)
    slope = torch.ones_like(s)
    if softcap:
        share = torch.tanh(s / softcap)
        s, slope = softcap * share, 1 - share * share
    if slopes is not None:
        s = s - slopes.double()[:, :, None, None] * behind.abs()
    if causal:
        window_right = min(window_right, 0)
    hidden = (behind < -window_left) | (behind > window_right)
    return s.masked_fill(hidden, float("-inf")), slope


@contextmanager
def on_cpu(patch: pytest.MonkeyPatch, target: str = "sm_90a") -> Iterator[dict[Any, Any]]:
    """CPU tensors count as a device, kernels are references; yields those made, by problem."""
    made: dict[Any, Any] = {}

    def load(path: Any, _options: Any) -> Any:
        if path.kernel == "attention_backward":
            made[path] = Backward(causal=path.causal, features=path.features)
        else:
            dims = path.head_dim, path.head_dim_v
            made[path] = Reference(path.causal, path.features, dims)
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
