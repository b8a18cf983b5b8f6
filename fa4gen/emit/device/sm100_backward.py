"""Device functions of the Blackwell attention backward; plain functions, run at trace time.

Scores are transposed: one thread holds one key, and a part of a block's queries as its columns: `s`
is a list of scores, probabilities and their gradients are pairs of neighbours. Tensor memory
addresses are (lane << 16) + column; a warp reaches the 32 lanes of its place in its warpgroup.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.experimental import primitives as p

from fa4gen.emit.device.scores import cap_rate, capped
from fa4gen.emit.device.sm100 import NEG_INF, pack

GRADIENTS = 32  # columns of dP that a thread holds at a time, beside all its probabilities
SUM_COLUMNS = 32  # of a box of float32: one swizzled row of 128 bytes


def mask_queries(s, first):
    """Queries before column `first` do not see this thread's key."""
    return [cutlass.select_(first <= j, s[j], Float32(NEG_INF)) for j in range(len(s))]


def mask_queries_window(s, first, last):
    """Queries before column `first` and behind column `last` do not see this thread's key."""
    return [
        cutlass.select_((first <= j) & (last >= j), s[j], Float32(NEG_INF)) for j in range(len(s))
    ]


def cap_scores_slope(s, cap, scale):
    """(scores in natural units, of which none is larger than `cap`, either way; their derivatives,
    1 - tanh(score / cap)^2)."""
    rate, inverse = cap_rate(cap, scale), cute.arch.rcp_approx(cap)
    found = [capped(x, cap, rate) for x in s]
    return found, [1.0 - (x * inverse) * (x * inverse) for x in found]


def modify_turned(s, mod, query, key):
    """Each score by the user's function; `query`: index of the first column."""
    return [mod[2](*_of_query(mod, x, query + j, key)) for j, x in enumerate(s)]


def modify_turned_slope(s, mod, query, key, slope, first):
    """(the same with a function that gives the derivative too; that, times `slope` if not
    `first`)."""
    made = [mod[2](*_of_query(mod, x, query + j, key)) for j, x in enumerate(s)]
    changes = [m[1] for m in made]
    if not first:
        changes = [c * x for c, x in zip(changes, slope, strict=True)]
    return [m[0] for m in made], changes


def _of_query(mod, score, q, key):
    return score, q, key, mod[0](q), mod[1](key)


def mask_turned(s, mod, query, key):
    """Hides what the user's function does not let through."""
    out = []
    for j, x in enumerate(s):
        seen = mod[2](*_of_query(mod, x, query + j, key)[1:])
        out.append(cutlass.select_(seen, x, Float32(NEG_INF)))
    return out


def with_slopes(pairs, slope):
    """Probabilities times the derivative of their scores, for the gradient; 0 where they are 0."""
    out = []
    for n, pair in enumerate(pairs):
        made = [
            cutlass.select_(e == 0.0, Float32(0.0), e * slope[2 * n + i])
            for i, e in enumerate(pair)
        ]
        out.append((made[0], made[1]))
    return out


def probabilities_of_rows(s, lse, scale_log2):
    """As `probabilities`; rows with an LSE of +inf have none, whatever their scores are."""
    out = []
    for n, pair in enumerate(probabilities(s, lse, scale_log2)):
        bound = (lse + 2 * n).load(count=2, alignment=8)
        made = [cutlass.select_(bound[i] == -NEG_INF, Float32(0.0), e) for i, e in enumerate(pair)]
        out.append((made[0], made[1]))
    return out


def probabilities(s, lse, scale_log2):
    """exp2(score - LSE), as pairs; the LSE of each query in shared memory."""
    out = []
    for j in range(0, len(s), 4):
        bound = (lse + j).load(count=4, alignment=16)
        for i in (0, 2):
            scale, less = (scale_log2, scale_log2), (-bound[i], -bound[i + 1])
            x, y = cute.arch.fma_packed_f32x2((s[j + i], s[j + i + 1]), scale, less)
            out.append((cute.math.exp2(x, fastmath=True), cute.math.exp2(y, fastmath=True)))
    return out


def store_p(pairs, address, dtype):
    """P, rounded and packed, in tensor memory."""
    p.tcgen05_st("32x32b", p.make_tmem_ptr(address, Int32), pack(pairs, dtype))


def score_gradients(pairs, address, delta, target, from_last, smem, row, box_rows, width, dtype):
    """dS = P (dP - delta): dP from tensor memory at `address`, dS packed to `target`, and to row
    `row` of swizzled boxes of `width` columns in shared memory. `from_last`: dS lies over the upper
    half of dP, whose columns are read before."""
    columns = 2 * len(pairs)
    parts = range(0, columns, GRADIENTS)
    for first in parts[::-1] if from_last else parts:
        count = min(GRADIENTS, columns - first)
        dp = p.tcgen05_ld("32x32b", p.make_tmem_ptr(address + first, Float32), num=count)
        p.tcgen05_wait("load")
        ds = []
        for j in range(0, count, 4):
            mean = (delta + first + j).load(count=4, alignment=16)
            for i in (0, 2):
                less = (mean[i], mean[i + 1])
                d = cute.arch.sub_packed_f32x2((dp[j + i], dp[j + i + 1]), less)
                ds.append(cute.arch.mul_packed_f32x2(pairs[(first + j + i) // 2], d))
        words = pack(ds, dtype)
        p.tcgen05_st("32x32b", p.make_tmem_ptr(target + first // 2, Int32), words)
        for j in range(0, count, 8):
            eight = cutlass.Vector.from_elements([words[j // 2 + i] for i in range(4)], Int32)
            place = swizzled(row, first + j, box_rows, width)
            (smem + place).store(eight.bitcast(dtype), alignment=16)


def reduce_tile(v, smem, boxes, tensor_map, row, head, batch):
    """Adds rows of float32 to global memory, each warp its own 32.

    `smem`: this warp's boxes of 32 x 32 float32, in turn; `boxes`: how many of them. They are in
    use when the function returns (`finish_sums`).
    """
    lane = cute.arch.lane_idx()
    count = len(v) // SUM_COLUMNS
    for n in range(count):
        box = smem + n % boxes * (32 * SUM_COLUMNS)
        cute.arch.cp_async_bulk_wait_group(younger_groups(n, count, boxes), read=True)
        cute.arch.sync_warp()
        for c in range(8):  # chunks of 16 bytes
            at = n * SUM_COLUMNS + 4 * c
            four = cutlass.Vector.from_elements([v[at + i] for i in range(4)], Float32)
            (box + lane * SUM_COLUMNS + (c ^ (lane % 8)) * 4).store(four, alignment=16)
        p.fence_proxy("async_shared", space=p.SharedSpace.shared_cta)
        cute.arch.sync_warp()
        add_box(tensor_map, box, n * SUM_COLUMNS, row, head, batch)


def younger_groups(n, count, boxes):
    """Groups since the last use of the box that part `n` of `count` takes: those may be running."""
    if n >= boxes:
        return boxes - 1
    last = max(m for m in range(count) if m % boxes == n)  # in the block before
    return count - 1 - last + n


@cute.jit
def add_box(tensor_map, box, column: cutlass.Constexpr, row: Int32, head: Int32, batch: Int32):
    """One elected lane adds a box to global memory, as a bulk group of its own."""
    if p.elect_sync():
        place = [column, row, head, batch]
        p.cp_async_bulk_tensor_reduce(tensor_map.get_ptr(), box, "add", place)
    cute.arch.cp_async_bulk_commit_group()


def finish_sums():
    """Until all boxes have been read."""
    cute.arch.cp_async_bulk_wait_group(0, read=True)


def store_gradient(address, scale, first, columns, total, dtype, smem, row, box_rows, width):
    """Part of a row of an accumulator of `total` columns, scaled and rounded, into swizzled boxes:
    `columns` columns from `first` on, zeros for those that the accumulator does not have."""
    for c in range(0, columns, 16):
        place = (
            smem + swizzled(row, c, box_rows, width),
            smem + swizzled(row, c + 8, box_rows, width),
        )
        if total % (2 * columns):
            store_sixteen_inside(address + first + c, first + c, total, scale, dtype, *place)
        else:
            store_sixteen(address + first + c, scale, dtype, *place)


def store_sixteen(address, scale, dtype, low, high):
    """Sixteen columns of a row, scaled and rounded, to two places of eight."""
    v = p.tcgen05_ld("32x32b", p.make_tmem_ptr(address, Float32), num=16)
    p.tcgen05_wait("load")
    for c, place in ((0, low), (8, high)):
        eight = cutlass.Vector.from_elements([v[c + j] * scale for j in range(8)], Float32)
        place.store(eight.to(dtype), alignment=16)


@cute.jit
def store_sixteen_inside(
    address: Int32,
    column: Int32,
    total: cutlass.Constexpr,
    scale: Float32,
    dtype: cutlass.Constexpr,
    low,
    high,
):
    """`store_sixteen`, or zeros where the accumulator has no such columns."""
    if column < total:
        store_sixteen(address, scale, dtype, low, high)
    else:
        zeros = cutlass.Vector.from_elements([Float32(0.0)] * 8, Float32).to(dtype)
        low.store(zeros, alignment=16)
        high.store(zeros, alignment=16)


def swizzled(row, column, box_rows, width):
    """Place of eight elements from `column` on, in boxes of `width` columns."""
    chunks = width // 8  # of 16 bytes in a row of a box
    chunk = (column // 8 % chunks) ^ ((row // (8 // chunks)) % chunks)
    return ((column // width) * box_rows + row) * width + chunk * 8
