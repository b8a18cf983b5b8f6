"""Device functions of the Blackwell attention forward; plain functions, run at trace time.

One thread holds one row: `s` is a list of its scores, `m` and `total` its running maximum (of
unscaled scores) and sum. Tensor memory addresses are (lane << 16) + column; a warp reaches the 32
lanes of its place in its warpgroup.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.experimental import primitives as p

from .scores import cap_rate, with_sign_of, with_sink

NEG_INF = float("-inf")
LN2 = 0.6931471805599453
FRAGMENT = 32  # keys whose exponentials are computed and stored together
ROUND = 12582912.0  # 2^23 + 2^22: adding it leaves the integer part in the low bits
# minimax polynomials of 2^x on [0, 1) by degree, constant term first (FlashAttention-4, table of
# utils)
EXP2 = {
    1: (1.0, 0.922497093677520751953125),
    2: (1.0, 0.6657850742340087890625, 0.330107033252716064453125),
    3: (1.0, 0.695146143436431884765625, 0.227564394474029541015625, 0.077119089663028717041015625),
    4: (
        1.0,
        0.693042695522308349609375,
        0.2412912547588348388671875,
        0.052225358784198760986328125,
        0.013434938155114650726318359375,
    ),
    5: (
        1.0,
        0.693151414394378662109375,
        0.24016360938549041748046875,
        0.055802188813686370849609375,
        0.00901452265679836273193359375,
        0.00186810153536498546600341796875,
    ),
}


def load_row(address, columns):
    """A row of float32 from tensor memory, 32 columns a load; valid after tcgen05.wait::ld."""
    s = []
    for c in range(0, columns, 32):
        v = p.tcgen05_ld("32x32b", p.make_tmem_ptr(address + c, Float32), num=32)
        s += [v[j] for j in range(32)]
    return s


def scale_scores(s, scale):
    """Scores in natural units."""
    out = []
    for j in range(0, len(s), 2):
        out += cute.arch.mul_packed_f32x2((s[j], s[j + 1]), (scale, scale))
    return out


def cap_scores(s, cap, scale):
    """Scores in natural units, none larger than `cap`, either way. Four scores share a reciprocal:
    the multi-function unit is what this waits for. With a = e^-2|x|, tanh |x| is 2 / (1 + a) - 1,
    and sums of 1 to 2 have products of 1 to 16."""
    rate, twice, one = cap_rate(cap, scale), 2.0 * cap, Float32(1.0)
    out = []
    for j in range(0, len(s), 4):
        pairs = []
        for i in (j, j + 2):
            pair = cute.arch.mul_packed_f32x2((s[i], s[i + 1]), (rate, rate))
            powers = [cute.math.exp2(-cute.arch.fmax(x, -x), fastmath=True) for x in pair]
            pairs.append((pair, cute.arch.add_packed_f32x2(tuple(powers), (one, one))))
        (_, first), (_, second) = pairs
        both = cute.arch.mul_packed_f32x2(first, second)
        shared = cute.arch.rcp_approx(both[0] * both[1])
        inverse = (shared * both[1], shared * both[0])
        for (x, _), others in zip(pairs, (second, first), strict=True):
            of_pair = cute.arch.mul_packed_f32x2(inverse, others)
            made = cute.arch.fma_packed_f32x2((twice, twice), of_pair, (-cap, -cap))
            out += [with_sign_of(made[i], x[i]) for i in range(2)]
    return out


def bias_scores(s, slope, diagonal):
    """ALiBi: the row stands at column `diagonal`."""
    out, two = [], Float32(2.0)
    ahead = (Float32(diagonal), Float32(diagonal) - 1.0)
    for j in range(0, len(s), 2):
        taken = [slope * cute.arch.fmax(x, -x) for x in ahead]
        out += cute.arch.sub_packed_f32x2((s[j], s[j + 1]), tuple(taken))
        ahead = cute.arch.sub_packed_f32x2(ahead, (two, two))
    return out


def mask_length(s, left):
    """Keys at or beyond column `left` of the block do not exist."""
    return [cutlass.select_(left > j, s[j], Float32(NEG_INF)) for j in range(len(s))]


def mask_causal(s, left, diagonal):
    """As `mask_length`; and columns beyond `diagonal` are not seen."""
    limit = cutlass.min(left, diagonal + 1)
    return [cutlass.select_(limit > j, s[j], Float32(NEG_INF)) for j in range(len(s))]


def mask_window(s, left, diagonal, before, behind):
    """As `mask_length`; and columns from `before` before `diagonal` to `behind` behind it alone are
    seen."""
    first, limit = diagonal - before, cutlass.min(left, diagonal + behind + 1)
    return [
        cutlass.select_((first <= j) & (limit > j), s[j], Float32(NEG_INF)) for j in range(len(s))
    ]


def modify_scores(s, mod, query, key):
    """Each score by the user's function; `key`: index of the first column."""
    row = mod[0](query)
    return [mod[2](x, query, key + j, row, mod[1](key + j)) for j, x in enumerate(s)]


def mask_scores(s, mod, query, key):
    """Hides what the user's function does not let through."""
    row, hidden = mod[0](query), Float32(NEG_INF)
    return [
        cutlass.select_(mod[2](query, key + j, row, mod[1](key + j)), x, hidden)
        for j, x in enumerate(s)
    ]


def row_max(s, old):
    """The running maximum: a tree over four accumulators, fused to three-input maxima."""
    m = [old, s[1], s[2], s[3]]
    m[0] = cute.arch.fmax(m[0], s[0])
    for i in range(4, len(s)):
        m[i % 4] = cute.arch.fmax(m[i % 4], s[i])
    return cute.arch.fmax(cute.arch.fmax(m[0], m[1]), cute.arch.fmax(m[2], m[3]))


def rescale_factor(m, m_new, scale_log2, threshold):
    """(maximum to use, factor of what was summed so far, -maximum * scale).

    The maximum stays where it grew by at most `threshold` (log2 units): sums and O then share the
    old reference, and normalisation at the end is exact all the same. 0 is the classical algorithm.
    """
    safe = cutlass.select_(m_new == NEG_INF, Float32(0.0), m_new)  # a row without keys so far
    drop = (m - safe) * scale_log2
    if threshold == 0:
        return m_new, cute.math.exp2(drop, fastmath=True), -safe * scale_log2
    keep = drop >= -float(threshold)
    used = cutlass.select_(keep, m, safe)
    factor = cutlass.select_(keep, Float32(1.0), cute.math.exp2(drop, fastmath=True))
    return cutlass.select_(keep, m, m_new), factor, -used * scale_log2


def exp2_polynomial(x, y, degree):
    """2**x, 2**y on FMA units: clamp, split off the integer part, Horner, add it to the
    exponent."""
    x, y = cute.arch.fmax(x, -127.0), cute.arch.fmax(y, -127.0)
    magic = (Float32(ROUND), Float32(ROUND))
    r = cute.arch.add_packed_f32x2((x, y), magic, rnd="rm")
    f = cute.arch.sub_packed_f32x2((x, y), cute.arch.sub_packed_f32x2(r, magic))
    coefficients = EXP2[degree]
    acc = (Float32(coefficients[-1]), Float32(coefficients[-1]))
    for c in coefficients[-2::-1]:
        acc = cute.arch.fma_packed_f32x2(acc, f, (Float32(c), Float32(c)))
    bits = [acc[i].bitcast(Int32) + (r[i].bitcast(Int32) << 23) for i in range(2)]
    return bits[0].bitcast(Float32), bits[1].bitcast(Float32)


def pack(pairs, dtype):
    """Pairs of float32, rounded to 16 bits and packed two to a word."""
    flat = [e for pair in pairs for e in pair]
    return cutlass.Vector.from_elements(flat, Float32).to(dtype).bitcast(Int32)


def exp2_part(s, scale_log2, bias, first, keys, polynomial, degree, address, dtype):
    """Exponentials of keys `first` … `first + keys`, also stored as packed P; returns their pairs.

    `polynomial`: indices of the row's pairs that go to the FMA units instead of MUFU.
    """
    out = []
    for start in range(first, first + keys, FRAGMENT):
        width = min(FRAGMENT, first + keys - start)
        part = []
        for j in range(start, start + width, 2):
            scale = (scale_log2, scale_log2)
            x, y = cute.arch.fma_packed_f32x2((s[j], s[j + 1]), scale, (bias, bias))
            if j // 2 in polynomial:
                part.append(exp2_polynomial(x, y, degree))
            else:
                part.append((cute.math.exp2(x, fastmath=True), cute.math.exp2(y, fastmath=True)))
        p.tcgen05_st("32x32b", p.make_tmem_ptr(address + start // 2, Int32), pack(part, dtype))
        out += part
    return out


def row_sum(total, factor, pairs):
    """The running sum with this block's exponentials, added up first by four accumulators."""
    parts = list(pairs[:4])
    for j in range(4, len(pairs)):
        parts[j % 4] = cute.arch.add_packed_f32x2(parts[j % 4], pairs[j])
    a = cute.arch.add_packed_f32x2(parts[0], parts[1])
    a = cute.arch.add_packed_f32x2(a, cute.arch.add_packed_f32x2(parts[2], parts[3]))
    return total * factor + (a[0] + a[1])


def join_sink(total, m, sink, scale_log2):
    """(what O is divided by, row sum, row maximum) with the head's sink among the row's scores."""
    m, factor, extra = with_sink(m, sink, scale_log2)
    total = total * factor + extra
    over = total * cute.arch.rcp_approx(factor)  # infinite where the sink leaves nothing to others
    return cutlass.select_(total == 0.0, Float32(0.0), over), total, m


def write_scale(stats, index, factor):
    """The factor of O, for the role that rescales."""
    stats[index] = factor


def write_final(stats, index, rows, total, m):
    """Row sum and maximum, for the role that normalises."""
    stats[index] = total
    stats[index + rows] = m


def read_scale(stats, index):
    """The factor that `write_scale` left."""
    return stats[index]


def read_final(stats, index, rows):
    """(row sum, row maximum) that `write_final` left."""
    return stats[index], stats[index + rows]


def scale_columns(address, factor, columns):
    """Multiplies a row of O in tensor memory; stored after tcgen05.wait::st."""
    for c in range(0, columns, 16):
        pointer = p.make_tmem_ptr(address + c, Float32)
        v = p.tcgen05_ld("32x32b", pointer, num=16)
        p.tcgen05_wait("load")
        out = []
        for j in range(0, 16, 2):
            out += cute.arch.mul_packed_f32x2((v[j], v[j + 1]), (factor, factor))
        p.tcgen05_st("32x32b", pointer, cutlass.Vector.from_elements(out, Float32))


@cute.jit
def scale_columns_if_moved(address: Int32, factor: Float32, columns: cutlass.Constexpr):
    """`scale_columns` where any row of the warp has moved its maximum."""
    if cute.arch.vote_any_sync(factor < 1.0):
        scale_columns(address, factor, columns)


def store_o(address, total, columns, dtype, smem, row, box_rows, width):
    """O over its row sum into swizzled boxes of `width` columns at `smem` (elements of `dtype`)."""
    chunks = width // 8  # of 16 bytes in a row of a box
    inverse = cutlass.select_(total == 0.0, Float32(1.0), cute.arch.rcp_approx(total))
    for c in range(columns // 16):
        v = p.tcgen05_ld("32x32b", p.make_tmem_ptr(address + 16 * c, Float32), num=16)
        p.tcgen05_wait("load")
        for h in range(2):
            n = 2 * c + h
            chunk = (n % chunks) ^ ((row // (8 // chunks)) % chunks)
            offset = ((n // chunks) * box_rows + row) * width + chunk * 8
            eight = cutlass.Vector.from_elements(
                [v[8 * h + j] * inverse for j in range(8)], Float32
            )
            (smem + offset).store(eight.to(dtype), alignment=16)


@cute.jit
def store_row(
    address: Int32,
    total: Float32,
    out: cute.Tensor,
    batch: Int32,
    head: Int32,
    row: Int32,
    seqlen_q: Int32,
    columns: cutlass.Constexpr,
):
    """A row of O over its sum to global memory, in float32; loads are of whole warps."""
    inverse = cutlass.select_(total == 0.0, Float32(1.0), cute.arch.rcp_approx(total))
    place = cutlass.min(row, seqlen_q - 1)
    start = (out.iterator + out.layout((batch, place, head, 0))).raw_ptr()
    for c in cutlass.range_constexpr(0, columns, 8):
        v = p.tcgen05_ld("32x32b", p.make_tmem_ptr(address + c, Float32), num=8)
        p.tcgen05_wait("load")
        if row < seqlen_q:
            for h in cutlass.range_constexpr(0, 8, 4):
                four = [v[h + j] * inverse for j in range(4)]
                (start + c + h).store(cutlass.Vector.from_elements(four, Float32), alignment=16)


@cute.jit
def write_lse(
    lse: cute.Tensor,
    total: Float32,
    m: Float32,
    scale_log2: Float32,
    batch: Int32,
    head: Int32,
    row: Int32,
    seqlen_q: Int32,
):
    """The natural logarithm of a row's sum of exponentials; -inf for a row without keys."""
    value = (m * scale_log2 + cute.math.log2(total, fastmath=True)) * LN2
    if row < seqlen_q:
        lse[batch, head, row] = cutlass.select_(total == 0.0, Float32(NEG_INF), value)


@cute.jit
def read_launch(said: cutlass.Int128):
    """(x, y, z, 1) of the CTA whose place this one takes, by the hardware's answer; or (0, 0, 0, 0)
    where none is left: then it names no place."""
    x, y, z = Int32(0), Int32(0), Int32(0)
    more = Int32(p.clusterlaunchcontrol_query_cancel("is_canceled", said))
    if more != 0:
        x = p.clusterlaunchcontrol_query_cancel("get_first_cta_id_x", said)
        y = p.clusterlaunchcontrol_query_cancel("get_first_cta_id_y", said)
        z = p.clusterlaunchcontrol_query_cancel("get_first_cta_id_z", said)
    return x, y, z, more


def read_launch_lpt(said, m_blocks, section, by_sections):
    """The same as a tile in the order of `tile_lpt`."""
    x, y, z, more = read_launch(said)
    batch, s = divmod(z, by_sections)
    return m_blocks - 1 - y, s * section + x, batch, more
