"""Arithmetic against slow formulas of its own: Python integers, and numpy in higher precision."""

import math
import struct
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from fa4gen.emulator.report import Report

EDGES = (0, 1, 2, 31, 32, 33, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 1.5, 3.0, 1e-45, -1e-45, 1e-40, 1.17549435e-38, 3.4e38, -3.4e38,
    math.inf, -math.inf, math.nan, 0.1, 2.0**24 + 1, 1e-20, -7.25, 127.0, -126.5, 0.999999,
)  # fmt: skip
M32, M64 = 2**32 - 1, 2**64 - 1


def words(count: int = 224, seed: int = 1) -> list[int]:
    """Edge values in all pairings, then random ones."""
    random = np.random.default_rng(seed)
    return [*EDGES, *(int(x) for x in random.integers(0, 2**32, count, dtype=np.uint32))]


def float_bits(seed: int, count: int = 202) -> np.ndarray:
    random = np.random.default_rng(seed)
    made = random.normal(size=count) * 10.0 ** random.integers(-6, 7, count)
    return np.concatenate([np.array(FLOATS), made]).astype(np.float32).view(np.uint32)


def quotient(a: int, b: int) -> int:
    """Truncated; a division by zero gives all ones."""
    return math.trunc(Fraction(a, b)) if b else M32


def field(a: int, at: int, size: int) -> int:
    """A signed field: its top bit, no higher than bit 31, fills what is beyond it."""
    if not size:
        return 0
    top = min(at + size - 1, 31)
    kept = max(top - at + 1, 0)
    value = a >> at & ((1 << kept) - 1)
    return value - (1 << kept) if a >> top & 1 else value


def permuted(both: int, selector: int) -> int:
    """Bytes of a word pair, or their signs, by nibbles."""
    made = 0
    for i in range(4):
        nibble = selector >> 4 * i & 15
        byte = both >> 8 * (nibble & 7) & 255
        made |= ((255 if byte & 128 else 0) if nibble & 8 else byte) << 8 * i
    return made


def of(formula: Callable[..., int], *values: int) -> int:
    return formula(*[int(v) for v in values][: formula.__code__.co_argcount])


def signed(x: int, bits: int) -> int:
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def apply(
    execute, body: str, a: np.ndarray, b: np.ndarray, c: np.ndarray, out: str = "%r9"
) -> np.ndarray:
    """Runs `%r9 = f(%r6, %r7, %r8)` over arrays of 32-bit words, 32 a CTA."""
    n = len(a)
    a, b, c = (np.resize(x, (n + 31) // 32 * 32).astype(np.uint32) for x in (a, b, c))
    made = np.zeros_like(a)
    text = (
        "mov.u32 %r2, %ctaid.x; shl.b32 %r3, %r2, 5; add.s32 %r3, %r3, %r1;\n"
        "mul.wide.u32 %rd10, %r3, 4;\n"
        + "".join(
            f"add.s64 %rd{11 + k}, %rd{k}, %rd10; ld.global.b32 %r{6 + k}, [%rd{11 + k}];\n"
            for k in range(3)
        )
        + f"{body}\nadd.s64 %rd15, %rd3, %rd10; st.global.b32 [%rd15], {out};"
    )
    report = execute(text, a, b, c, made, grid=(len(a) // 32, 1, 1))
    assert not report.faulty, report
    return made[:n]


# of as many of a, b, c as the operation reads
INTEGERS: dict[str, Callable[..., int]] = {
    "add.s32 %r9, %r6, %r7;": lambda a, b: a + b,
    "sub.s32 %r9, %r6, %r7;": lambda a, b: a - b,
    "mul.lo.s32 %r9, %r6, %r7;": lambda a, b: a * b,
    "mul.hi.s32 %r9, %r6, %r7;": lambda a, b: signed(a, 32) * signed(b, 32) >> 32,
    "mul.hi.u32 %r9, %r6, %r7;": lambda a, b: a * b >> 32,
    "mad.lo.s32 %r9, %r6, %r7, %r8;": lambda a, b, c: a * b + c,
    "div.s32 %r9, %r6, %r7;": lambda a, b: quotient(signed(a, 32), signed(b, 32)),
    "div.u32 %r9, %r6, %r7;": lambda a, b: a // b if b else M32,
    "rem.u32 %r9, %r6, %r7;": lambda a, b: a % b if b else a,
    "min.s32 %r9, %r6, %r7;": lambda a, b: min(signed(a, 32), signed(b, 32)),
    "max.s32 %r9, %r6, %r7;": lambda a, b: max(signed(a, 32), signed(b, 32)),
    "max.u32 %r9, %r6, %r7;": lambda a, b: max(a, b),
    "min.relu.s32 %r9, %r6, %r7;": lambda a, b: max(0, min(signed(a, 32), signed(b, 32))),
    "neg.s32 %r9, %r6;": lambda a: -a,
    "abs.s32 %r9, %r6;": lambda a: abs(signed(a, 32)),
    "not.b32 %r9, %r6;": lambda a: ~a,
    "xor.b32 %r9, %r6, %r7;": lambda a, b: a ^ b,
    "shl.b32 %r9, %r6, %r7;": lambda a, b: a << b if b < 32 else 0,
    "shr.u32 %r9, %r6, %r7;": lambda a, b: a >> b if b < 32 else 0,
    "shr.s32 %r9, %r6, %r7;": lambda a, b: signed(a, 32) >> min(b, 31),
    "shf.l.wrap.b32 %r9, %r6, %r7, %r8;": lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32,
    "shf.r.clamp.b32 %r9, %r6, %r7, %r8;": lambda a, b, c: (b << 32 | a) >> min(c, 32),
    "popc.b32 %r9, %r6;": lambda a: a.bit_count(),
    "clz.b32 %r9, %r6;": lambda a: 32 - a.bit_length(),
    "brev.b32 %r9, %r6;": lambda a: int(f"{a:032b}"[::-1], 2),
    "bfind.u32 %r9, %r6;": lambda a: a.bit_length() - 1,
    "lop3.b32 %r9, %r6, %r7, %r8, 0xE8;": lambda a, b, c: (a & b) | (a & c) | (b & c),
    "mul.wide.s16 %r9, %r6, %r7;": lambda a, b: signed(a, 16) * signed(b, 16),
    "dp4a.u32.s32 %r9, %r6, %r7, %r8;": lambda a, b, c: (
        c + sum((a >> 8 * k & 255) * signed(b >> 8 * k, 8) for k in range(4))
    ),
    "dp2a.lo.u32.s32 %r9, %r6, %r7, %r8;": lambda a, b, c: (
        c + (a & 0xFFFF) * signed(b, 8) + (a >> 16) * signed(b >> 8, 8)
    ),
    "bfe.u32 %r9, %r6, 5, 9;": lambda a: a >> 5 & 511,
    "bfe.s32 %r9, %r6, 20, 20;": lambda a: signed(a, 32) >> 20,
    "bfe.u32 %r9, %r6, %r7, %r8;": lambda a, b, c: a >> (b & 255) & ((1 << (c & 255)) - 1),
    "bfe.s32 %r9, %r6, %r7, %r8;": lambda a, b, c: field(a, b & 255, c & 255),
    "prmt.b32 %r9, %r6, %r7, %r8;": lambda a, b, c: permuted(b << 32 | a, c),
    "bfi.b32 %r9, %r6, %r7, 7, 11;": lambda a, b: (b & ~(2047 << 7)) | (a & 2047) << 7,
    "cvt.s32.s8 %r9, %r6;": lambda a: signed(a, 8),
    "cvt.u32.u16 %r9, %r6;": lambda a: a & 0xFFFF,
}  # fmt: skip


@pytest.mark.parametrize("text", INTEGERS)
def test_integer_operations_agree_with_python(execute, text: str) -> None:
    a, b, c = (np.array(words(seed=s), dtype=np.uint32) for s in (1, 2, 3))
    b[:12], b[12:40] = np.roll(b[:12], 5), b[12:40] & 63
    c[20:60] &= 63
    got = apply(execute, text, a, b, c)
    want = [of(INTEGERS[text], x, y, z) & M32 for x, y, z in zip(a, b, c, strict=True)]
    assert [int(x) for x in got] == want


def rounded(x: Fraction, toward: int) -> float:
    """A finite fraction as f32: to nearest even (0), down (-1) or up (1), by its neighbours."""
    near = np.float32(float(x))  # at most one step away
    steps = [np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))]
    finite = [s for s in steps if np.isfinite(s)]
    if toward < 0:
        return float(max(s for s in finite if Fraction(float(s)) <= x))
    if toward > 0:
        return float(min(s for s in finite if Fraction(float(s)) >= x))
    best = min(abs(Fraction(float(s)) - x) for s in finite)
    ties = [s for s in finite if abs(Fraction(float(s)) - x) == best]
    return float(min(ties, key=lambda s: int(np.float32(s).view(np.uint32)) & 1))


EXACT: dict[str, tuple[Callable[..., Fraction], int]] = {
    "add.rn.f32 %r9, %r6, %r7;": (lambda a, b: a + b, 0),
    "add.rm.f32 %r9, %r6, %r7;": (lambda a, b: a + b, -1),
    "add.rp.f32 %r9, %r6, %r7;": (lambda a, b: a + b, 1),
    "sub.f32 %r9, %r6, %r7;": (lambda a, b: a - b, 0),
    "mul.rn.f32 %r9, %r6, %r7;": (lambda a, b: a * b, 0),
    "mul.rm.f32 %r9, %r6, %r7;": (lambda a, b: a * b, -1),
    "fma.rn.f32 %r9, %r6, %r7, %r8;": (lambda a, b, c: a * b + c, 0),
}


@pytest.mark.parametrize("text", EXACT)
def test_single_precision_rounds_once(execute, text: str) -> None:
    formula, toward = EXACT[text]
    a, b, c = (float_bits(s) for s in (4, 5, 6))
    b[: len(FLOATS)] = np.roll(b[: len(FLOATS)], 3)
    got = apply(execute, text, a, b, c).view(np.float32)
    checked = 0
    for x, y, z, g in zip(*(v.view(np.float32) for v in (a, b, c)), got, strict=True):
        if not all(map(math.isfinite, (x, y, z))):
            continue
        exact = formula(*[Fraction(float(v)) for v in (x, y, z)][: formula.__code__.co_argcount])
        if exact == 0 or abs(exact) > Fraction(3.4e38):
            continue
        checked += 1
        assert float(g) == rounded(exact, toward), (x, y, z)
    assert checked > 100


def test_packed_lanes_are_two_scalars_and_round_down_on_demand(execute) -> None:
    pair = (
        "mov.b64 %rd20, {{%r6, %r7}}; mov.b64 %rd21, {{%r7, %r6}}; mov.b64 %rd22, {{%r8, %r8}};\n"
        "{op} %rd23, {sources};\nmov.b64 {{%r9, %r10}}, %rd23;"
    )
    a, b, c = (float_bits(s) for s in (7, 8, 9))
    for op, sources, scalar in (
        ("add.rm.f32x2", "%rd20, %rd21", "add.rm.f32 {0}, {1}, {2};"),
        ("fma.rn.f32x2", "%rd20, %rd21, %rd22", "fma.rn.f32 {0}, {1}, {2}, %r8;"),
        ("mul.f32x2", "%rd20, %rd21", "mul.f32 {0}, {1}, {2};"),
    ):
        body = pair.format(op=op, sources=sources)
        low = apply(execute, body, a, b, c)
        high = apply(execute, body, a, b, c, out="%r10")
        assert (low == apply(execute, scalar.format("%r9", "%r6", "%r7"), a, b, c)).all()
        assert (high == apply(execute, scalar.format("%r9", "%r7", "%r6"), a, b, c)).all()


def test_floor_by_magic_number_is_a_floor(execute) -> None:
    x = np.concatenate([np.linspace(-126, 126, 1001), [-1e-30, 1e-30]]).astype(np.float32)
    body = "add.rm.f32 %r10, %r6, 0f4B400000; sub.f32 %r9, %r10, 0f4B400000;"  # 2^23 + 2^22
    got = apply(execute, body, x.view(np.uint32), x.view(np.uint32), x.view(np.uint32))
    assert (got.view(np.float32) == np.floor(x)).all()


def test_max_drops_nan_orders_zeros_and_takes_three(execute) -> None:
    nan, inf = math.nan, math.inf
    a = np.array([nan, 1, nan, -0.0, 0.0, -inf, 2], np.float32).view(np.uint32)
    b = np.array([2, nan, nan, 0.0, -0.0, -3, 1], np.float32).view(np.uint32)
    c = np.array([1, 0, nan, -1, -1, nan, 5], np.float32).view(np.uint32)
    two = apply(execute, "max.f32 %r9, %r6, %r7;", a, b, c).view(np.float32)
    assert two.tolist()[:2] == [2, 1]
    assert math.isnan(two[2])
    assert [math.copysign(1, z) for z in two[3:5]] == [1, 1]
    assert two[5] == -3
    three = apply(execute, "max.f32 %r9, %r6, %r7, %r8;", a, b, c).view(np.float32)
    assert three[0] == 2
    assert three[6] == 5
    assert math.isnan(three[2])
    spread = apply(execute, "max.NaN.f32 %r9, %r6, %r7;", a, b, c).view(np.float32)
    assert np.isnan(spread[:3]).all()


def test_comparisons_are_ordered_unless_they_say_otherwise(execute) -> None:
    values = np.array([1, 2, math.nan, math.inf, -0.0, 0.0], np.float32)
    a, b = np.repeat(values, 6), np.tile(values, 6)
    for name, relation in (
        ("eq", "=="),
        ("ne", "!="),
        ("lt", "<"),
        ("le", "<="),
        ("gt", ">"),
        ("ge", ">="),
    ):
        for unordered in (False, True):
            body = f"setp.{name}{'u' * unordered}.f32 %p1, %r6, %r7; selp.b32 %r9, 1, 0, %p1;"
            got = apply(execute, body, a.view(np.uint32), b.view(np.uint32), a.view(np.uint32))
            for x, y, g in zip(a, b, got, strict=True):
                nan = math.isnan(x) or math.isnan(y)
                want = (
                    unordered
                    if nan
                    else eval(
                        f"{x!r} {relation} {y!r}".replace("np.float32", ""), {"inf": math.inf}
                    )
                )
                assert bool(g) == want, (name, x, y)


@pytest.mark.parametrize(
    ("text", "formula", "ulps"),
    [
        ("ex2.approx.ftz.f32 %r9, %r6;", np.exp2, 1),
        ("rcp.approx.ftz.f32 %r9, %r6;", np.reciprocal, 1),
        ("lg2.approx.ftz.f32 %r9, %r6;", np.log2, 1),
        ("rsqrt.approx.ftz.f32 %r9, %r6;", lambda x: 1 / np.sqrt(x), 1),
        ("tanh.approx.f32 %r9, %r6;", np.tanh, 1),
    ],
)
def test_approximate_functions_are_within_an_ulp_of_double(execute, text, formula, ulps) -> None:
    random = np.random.default_rng(3)
    x = np.concatenate([random.uniform(-126, 127, 500), random.normal(size=500), [0.0, -0.0]])
    x = x.astype(np.float32)
    got = apply(execute, text, x.view(np.uint32), x.view(np.uint32), x.view(np.uint32)).view(
        np.float32
    )
    with np.errstate(all="ignore"):
        want = formula(x.astype(np.float64))
    for g, w in zip(got, want, strict=True):
        if math.isnan(w):
            assert math.isnan(g)
        elif math.isinf(w) or w == 0:
            assert g == w
        else:
            assert abs(float(g) - w) <= ulps * float(np.spacing(np.float32(abs(w))))


def test_approximations_at_the_edges(execute) -> None:
    x = np.array([-math.inf, math.inf, math.nan, 1e-40, -1e-40, -127, -150, 128], np.float32)
    bits = x.view(np.uint32)
    ex2 = apply(execute, "ex2.approx.ftz.f32 %r9, %r6;", bits, bits, bits).view(np.float32)
    assert ex2[[0, 1, 3, 4, 5, 6, 7]].tolist() == [0, math.inf, 1, 1, 0, 0, math.inf]
    assert math.isnan(ex2[2])
    lg2 = apply(execute, "lg2.approx.ftz.f32 %r9, %r6;", bits, bits, bits).view(np.float32)
    assert lg2[[1, 3, 4]].tolist() == [math.inf, -math.inf, -math.inf]
    assert np.isnan(lg2[[0, 2, 5]]).all()


def bf16(x: float) -> int:
    """Round to nearest even by exact neighbours."""
    if math.isnan(x):
        return 0x7FFF
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    if math.isinf(x):
        return int(bits >> 16)
    low = bits >> 16
    rest, half = bits & 0xFFFF, 0x8000
    return int(low + (rest > half or (rest == half and low & 1)))


def test_bf16_packing_puts_the_first_operand_high(execute) -> None:
    a, b = float_bits(10), float_bits(11)
    got = apply(execute, "cvt.rn.bf16x2.f32 %r9, %r6, %r7;", a, b, a)
    for x, y, g in zip(a.view(np.float32), b.view(np.float32), got, strict=True):
        assert int(g) == bf16(float(x)) << 16 | bf16(float(y))


def test_f16_packing_agrees_with_numpy(execute) -> None:
    a, b = float_bits(12), float_bits(13)
    got = apply(execute, "cvt.rn.f16x2.f32 %r9, %r6, %r7;", a, b, a)
    with np.errstate(all="ignore"):
        high, low = (v.view(np.float32).astype(np.float16) for v in (a, b))
    for x, y, g in zip(high, low, got, strict=True):
        for want, bits in ((x, int(g) >> 16), (y, int(g) & 0xFFFF)):
            if np.isnan(want):
                assert bits == 0x7FFF
            else:
                assert bits == int(want.view(np.uint16))


def test_e4m3_saturates_and_comes_back(execute) -> None:
    torch = pytest.importorskip("torch")
    x = np.concatenate([np.linspace(-500, 500, 203), [1e-3, 0.002, 2**-9, 0.0]]).astype(np.float32)
    body = "cvt.rn.satfinite.e4m3x2.f32 %h1, %r6, %r6; cvt.u32.u16 %r9, %h1;"
    got = apply(execute, body, x.view(np.uint32), x.view(np.uint32), x.view(np.uint32))
    want = torch.tensor(x).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert ((got & 255) == want).all()
    assert ((got >> 8) == want).all()


def test_conversions_between_float_and_integer(execute) -> None:
    x = np.array([1.5, 2.5, -1.5, -0.5, 3e9, -3e9, math.nan, 1e-40], np.float32).view(np.uint32)
    to = {
        "cvt.rni.s32.f32": [2, 2, -2, 0, 2**31 - 1, -(2**31), 0, 0],
        "cvt.rzi.s32.f32": [1, 2, -1, 0, 2**31 - 1, -(2**31), 0, 0],
        "cvt.rmi.s32.f32": [1, 2, -2, -1, 2**31 - 1, -(2**31), 0, 0],
        "cvt.rpi.u32.f32": [2, 3, 0, 0, 3000000000, 0, 0, 1],
    }
    for op, want in to.items():
        got = apply(execute, f"{op} %r9, %r6;", x, x, x)
        assert [int(g) for g in got] == [w & M32 for w in want], op
    n = np.array([16777217, 0xFFFFFFFF, 0x80000000, 7], np.uint32)
    down = apply(execute, "cvt.rz.f32.u32 %r9, %r6;", n, n, n).view(np.float32)
    assert down.tolist() == [16777216, 4294967040, 2147483648, 7]
    near = apply(execute, "cvt.rn.f32.s32 %r9, %r6;", n, n, n).view(np.float32)
    assert near.tolist() == [16777216, -1, -2147483648, 7]


@pytest.mark.parametrize(
    ("opcode", "name", "bound"),
    [
        ("ex2.approx.ftz.f32", "ex2", lambda x: 2.0**-22 * 2.0**x),
        ("rcp.approx.ftz.f32", "rcp", lambda x: 2.0**-23 / x),
        ("lg2.approx.ftz.f32", "lg2", lambda x: 2.0**-22 * max(1.0, abs(math.log2(x)))),
    ],
)
def test_an_approximation_is_displaced_within_its_bound(
    execute: Callable[..., Report], opcode: str, name: str, bound: Callable[[float], float]
) -> None:
    """By name alone, alike for the same operand, both ways, and another way by another seed."""
    x = np.linspace(0.25, 5.0, 32, dtype=np.float32)
    x[1] = x[0]
    body = f"""
    mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd0, %rd2; add.s64 %rd4, %rd1, %rd2;
    ld.global.b32 %r2, [%rd3]; {opcode} %r3, %r2; st.global.b32 [%rd4], %r3;
    """

    def run(perturb: tuple[str, ...], seed: int = 0) -> np.ndarray:
        out = np.zeros(32, np.float32)
        execute(body, x, out, perturb=perturb, seed=seed)
        return out.astype(np.float64)

    plain, moved = run(()), run((name,))
    off = moved - plain
    assert np.array_equal(run(("wgmma",)), plain)
    assert np.array_equal(run((name,)), moved)
    assert not np.array_equal(run((name,), seed=1), moved)
    assert off[0] == off[1]
    assert (off > 0).any()
    assert (off < 0).any()
    limits = np.array([bound(float(v)) for v in x]) + np.spacing(np.abs(plain).astype(np.float32))
    assert (np.abs(off) <= limits).all()
