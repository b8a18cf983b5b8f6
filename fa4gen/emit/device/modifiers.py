"""Arithmetic of users' score and mask functions; plain functions, run at trace time.

Whole numbers divide as in Python, downwards. Indices of captured tensors count from the end where
they are negative, and stay inside of the tensor whatever they are.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

LOG2_E_2 = 2.8853900817779268  # 2 / ln 2


def divide(a, b):
    """a / b, to two units in the last place."""
    return a * cute.arch.rcp_approx(b)


def floor_mod(a, b):
    """What whole-number division leaves; of the sign of b."""
    return a - a // b * b


def absolute(a):
    """|a| of a float."""
    return cute.arch.fmax(a, -a)


def tanh(a):
    """1 - 2 / (1 + e^2a), to 2e-7: the hardware's tanh.approx is off by 5e-4 (PTX ISA, tanh)."""
    e = cute.math.exp2(a * LOG2_E_2, fastmath=True)
    return 1.0 - cute.arch.rcp_approx(0.5 * e + 0.5)


def bounded(index, size, kind):
    """An index that may be of any sign, inside of the tensor; `kind`: its type."""
    return within(cutlass.select_(index < 0, index + size, index), size, kind)


def within(index, size, kind):
    """An index that is not negative, inside of the tensor."""
    return cutlass.max(cutlass.min(kind(index), kind(size - 1)), kind(0))


def number_of(truth):
    """0 or 1."""
    return Int32(cutlass.select_(truth, Int32(1), Int32(0)))


def float_of(truth):
    """0.0 or 1.0."""
    return Float32(cutlass.select_(truth, Float32(1.0), Float32(0.0)))
