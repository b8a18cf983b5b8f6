"""Recognising calls: all that decides about several tensors, compared in one call into torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._dynamo.guards import TensorGuards


def fits_of(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A function of as many tensors: whether they are like these.

    That is: of the same Python types, dtypes, devices, shapes, strides and need of a gradient,
    under the same dispatch keys (autocast, inference mode, functorch's transforms). These are the
    guards of compiled graphs, 0.7 us for five tensors where reading the properties takes 2.5 us
    (measured with `bench/host_time.py`, 2026-12-01). Data pointers and modes on torch's stack
    (FakeTensorMode) are not compared.
    """
    sizes: Any = [list(t.shape) for t in tensors]
    strides: Any = [list(t.stride()) for t in tensors]
    guards = TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
    fits: Callable[..., bool] = guards.check
    return fits
