"""Arithmetic of one score; plain functions, run at trace time."""

import cutlass.cute as cute
from cutlass import Float32

from .launch import LOG2_E


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


def at_sink(sink, scale_log2):
    """The running maximum of a row that holds nothing but a sink: its logit, unscaled."""
    return sink * (LOG2_E * cute.arch.rcp_approx(Float32(scale_log2)))
