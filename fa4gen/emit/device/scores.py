"""Arithmetic of one score; plain functions, run at trace time."""

import cutlass.cute as cute
from cutlass import Float32, Int32

from .launch import LOG2_E

LEAST = -1e30  # of a row with neither keys nor a sink


def capped(score, cap, rate):
    """cap * tanh(score / cap), where `rate` is `cap_rate`: to 3e-7 of the cap. The hardware's
    tanh.approx is off by 5e-4 of it (PTX ISA, tanh)."""
    power = cute.math.exp2(score * rate, fastmath=True)
    return cap - 2.0 * cap * cute.arch.rcp_approx(power + 1.0)


def cap_rate(cap, scale):
    """What `capped` needs of a cap, once, for scores that are still to be multiplied by `scale`."""
    return 2.0 * LOG2_E * scale * cute.arch.rcp_approx(cap)


def inverses_of_four(a, b, c, d):
    """Reciprocals by one approximation, of numbers whose product a float holds."""
    ab, cd = a * b, c * d
    shared = cute.arch.rcp_approx(ab * cd)
    of_ab, of_cd = shared * cd, shared * ab
    return of_ab * b, of_ab * a, of_cd * d, of_cd * c


def with_sign_of(magnitude, x):
    """`magnitude`, which has no sign, with that of `x`."""
    return (magnitude.bitcast(Int32) | (x.bitcast(Int32) & Int32(-(2**31)))).bitcast(Float32)


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
