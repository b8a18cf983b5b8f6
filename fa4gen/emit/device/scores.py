"""Arithmetic of one score; plain functions, run at trace time."""

import cutlass.cute as cute
from cutlass import Float32

from .launch import LOG2_E

LEAST = -1e30  # of a row with neither keys nor a sink


def capped(score, cap, rate):
    """cap * tanh(score / cap), where `rate` is 2 log2(e) / cap: to 3e-7 of the cap. The hardware's
    tanh.approx is off by 5e-4 of it (PTX ISA, tanh)."""
    power = cute.math.exp2(score * rate, fastmath=True)
    return cap - 2.0 * cap * cute.arch.rcp_approx(power + 1.0)


def cap_rate(cap):
    """What `capped` needs of a cap, once."""
    return 2.0 * LOG2_E * cute.arch.rcp_approx(cap)


def biased(score, slope, distance):
    """A score less `slope` for each key between it and the query's own place."""
    return score - slope * cute.arch.fmax(distance, -distance)


def with_sink(m, sink, scale_log2):
    """(maximum of a row and of its sink, factors of the row's sum and of the sink's 1), for `m` in
    units of 1 / `scale_log2`; the sum then has `m` as its reference, so that nothing overflows."""
    row, extra = m * scale_log2, sink * LOG2_E
    top = cute.arch.fmax(cute.arch.fmax(row, extra), Float32(LEAST))
    unscaled = top * cute.arch.rcp_approx(Float32(scale_log2))
    return (
        unscaled,
        cute.math.exp2(row - top, fastmath=True),
        cute.math.exp2(extra - top, fastmath=True),
    )
