"""Recognising calls: all that decides about several tensors, compared in one call into torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards


def fits_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function of as many tensors, q, k, v and maybe out and lse: whether they are like these.

    That is: of the same Python types, dtypes, devices, strides and need of a gradient, of the same
    batch, lengths and heads by q and k, under the same dispatch keys (autocast, inference mode,
    functorch's transforms), and no two of them one object. These are the guards of compiled graphs,
    0.5 us for five tensors where reading the properties takes 2.5 us (`bench/host_time.py`).

    The sizes of the others follow from these, and the kernel's host code insists on them itself, as
    on head dims, on last strides of 1 and on aligned pointers: a ValueError before the launch
    (tests/runtime/test_host_code.py). Modes on torch's stack (FakeTensorMode) are not compared.
    """
    q, k, *others = (t.shape for t in tensors)
    sizes: Any = [[*q[:3], None], [None, *k[1:3], None], *[[None] * len(o) for o in others]]
    strides: Any = [[*t.stride()[:-1], None] for t in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    fits: Callable[..., bool] = guards.check
    return fits
