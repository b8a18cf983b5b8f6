"""Device functions of the Hopper attention backward; plain functions, run at trace time.

Accumulators are those of wgmma m64nNk16, their rows keys, their columns queries: element i of a
lane lies in row r or r + 8 as bit 1 of i says, in column 8 (i // 4) + 2 (lane % 4) + i % 2. `smem`
addresses point at 16-bit tiles in swizzled boxes of `width` columns, `rows` rows each; `row` is
this lane's first row (of two, 8 apart).
"""

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import BFloat16, Float32, Int32
from cutlass.experimental import primitives as p

from fa4gen.emit.device.scores import cap_rate, capped
from fa4gen.emit.device.sm90 import NEG_INF, as_a_operand


def tiled_product(dtype, warpgroups, columns, a_major, b_major, a_source):
    """One wgmma m64 for each of (rows, columns) warpgroups; accumulation in float32."""
    return sm90.make_trivial_tiled_mma(
        dtype, dtype, a_major, b_major, Float32, (*warpgroups, 1), (64, columns), a_source
    )


def mask_keys(acc, coord, left):
    """Keys at or beyond row `left` of the tile do not exist."""
    for i in range(cute.size(acc)):
        acc[i] = cutlass.select_(coord[i][0] < left, acc[i], Float32(NEG_INF))


def mask_keys_causal(acc, coord, left, diagonal):
    """As `mask_keys`; and the key of row c is seen by the queries from column c + `diagonal` on."""
    for i in range(cute.size(acc)):
        seen = (coord[i][0] < left) & (coord[i][1] >= coord[i][0] + diagonal)
        acc[i] = cutlass.select_(seen, acc[i], Float32(NEG_INF))


def mask_keys_window(acc, coord, left, diagonal, before, behind):
    """As `mask_keys`; and the key of row c is seen from column c + `diagonal` - `behind` to column
    c + `diagonal` + `before` alone."""
    for i in range(cute.size(acc)):
        place = coord[i][0] + diagonal
        seen = (coord[i][1] >= place - behind) & (coord[i][1] <= place + before)
        acc[i] = cutlass.select_((coord[i][0] < left) & seen, acc[i], Float32(NEG_INF))


def cap_scores_slope(acc, slope, cap, scale):
    """Scores in natural units, none larger than `cap`, either way; `slope`: derivatives,
    1 - tanh(score / cap)^2."""
    rate, inverse = cap_rate(cap, scale), cute.arch.rcp_approx(cap)
    for i in range(cute.size(acc)):
        acc[i] = capped(acc[i], cap, rate)
        share = acc[i] * inverse
        slope[i] = 1.0 - share * share


@cute.jit
def mask_keys_tail(acc: cute.Tensor, coord: cute.Tensor, left: Int32, keys: cutlass.Constexpr):
    """As `mask_keys`, where the tile has keys that do not exist."""
    if left < keys:
        mask_keys(acc, coord, left)


def modify_turned(acc, coord, mod, query, key):
    """Each score by the user's function; `query`, `key`: indices of the tile's first column and
    row."""
    for i, q, k, of_query, of_key in _elements_turned(acc, coord, mod, query, key):
        acc[i] = mod[2](acc[i], q, k, of_query, of_key)


def modify_turned_slope(acc, coord, mod, query, key, slope, first):
    """The same with a function that gives the derivative too: `slope` is that, or (not `first`) is
    multiplied by it."""
    for i, q, k, of_query, of_key in _elements_turned(acc, coord, mod, query, key):
        acc[i], change = mod[2](acc[i], q, k, of_query, of_key)
        slope[i] = change if first else slope[i] * change


def mask_turned(acc, coord, mod, query, key):
    """Hides what the user's function does not let through."""
    for i, q, k, of_query, of_key in _elements_turned(acc, coord, mod, query, key):
        acc[i] = cutlass.select_(mod[2](q, k, of_query, of_key), acc[i], Float32(NEG_INF))


def _elements_turned(acc, coord, mod, query, key):
    """Indices and shared values of each score of a lane: two keys, query by query."""
    keys = [key + coord[2 * r][0] for r in range(2)]
    of_keys = [mod[1](k) for k in keys]
    for n in range(0, cute.size(acc), 4):
        for j in range(2):
            q = query + coord[n + j][1]
            of_query = mod[0](q)
            for r in range(2):
                yield n + 2 * r + j, q, keys[r], of_query, of_keys[r]


def probabilities(acc, lse, scale_log2):
    """Replaces scores by exp2(score - LSE), query by query."""
    column = 2 * (cute.arch.lane_idx() % 4)
    for j in range(cute.size(acc) // 4):
        bound = (lse + 8 * j + column).load(8, count=2)
        for i in range(4 * j, 4 * j + 4):
            acc[i] = cute.math.exp2(acc[i] * scale_log2 - bound[i % 2], fastmath=True)


def probabilities_of_rows(acc, lse, scale_log2):
    """As `probabilities`; rows with an LSE of +inf have none, whatever their scores are."""
    column = 2 * (cute.arch.lane_idx() % 4)
    for j in range(cute.size(acc) // 4):
        bound = (lse + 8 * j + column).load(8, count=2)
        for i in range(4 * j, 4 * j + 4):
            power = cute.math.exp2(acc[i] * scale_log2 - bound[i % 2], fastmath=True)
            acc[i] = cutlass.select_(bound[i % 2] == -NEG_INF, Float32(0.0), power)


def score_gradients(acc, probs, delta):
    """Replaces dP by dS = P (dP - delta), query by query."""
    column = 2 * (cute.arch.lane_idx() % 4)
    for j in range(cute.size(acc) // 4):
        mean = (delta + 8 * j + column).load(8, count=2)
        for i in range(4 * j, 4 * j + 4):
            acc[i] = probs[i] * (acc[i] - mean[i % 2])


def score_gradients_slope(acc, probs, delta, slope):
    """As `score_gradients`, times the derivative of each score by what it was before; where a
    probability is 0, whatever that is."""
    score_gradients(acc, probs, delta)
    for i in range(cute.size(acc)):
        acc[i] = cutlass.select_(probs[i] == 0.0, Float32(0.0), acc[i] * slope[i])


def round_pairs(acc, fragment):
    """Rounds an accumulator into an A operand, by instructions that the compiler leaves in place.

    An ordinary conversion it may move behind the fence of the product that takes the operand.
    """
    src, words = as_a_operand(acc), cute.recast_tensor(fragment, Int32)
    kind = "bf16x2" if fragment.element_type is BFloat16 else "f16x2"
    for i in range(cute.size(words)):
        words[i] = p.inline_ptx(
            f"cvt.rn.{kind}.f32 {{$w0}}, {{$r1}}, {{$r0}};",
            write_only_types=[Int32],
            read_only_args=[src[2 * i], src[2 * i + 1]],
        )


def swizzled(row, column, rows, width):
    """Place of an element in boxes of `width` columns; `column` is a multiple of 8."""
    chunks = width // 8  # of 16 bytes in a row of a box
    chunk = (column // 8 % chunks) ^ ((row // (8 // chunks)) % chunks)
    return (column // width) * rows * width + row * width + chunk * 8


def share_tile(fragment, smem, rows, warp_row, columns, width):
    """Writes 16 rows of an A fragment, from `warp_row` on, into shared memory."""
    lane, words = cute.arch.lane_idx(), cute.recast_tensor(fragment, Int32)
    row = warp_row + lane % 16  # each lane names a row of one of four 8 x 8 matrices
    chunks = width // 8  # of 16 bytes in a row of a box
    turn = (row // (8 // chunks)) % chunks
    for n in range(columns // 16):
        chunk = ((2 * n) % chunks + lane // 16) ^ turn
        place = (16 * n // width) * rows * width + row * width + chunk * 8
        p.stmatrix(smem + place, [words[4 * n + k] for k in range(4)], p.MMALayout.ROW)


def store_gradient(acc, scale, dtype, smem, rows, row, columns, width):
    """Writes an accumulator, scaled and rounded, into shared memory."""
    inside = 2 * (cute.arch.lane_idx() % 4)
    for r in range(2):
        for j in range(columns // 8):
            i = 4 * j + 2 * r
            pair = cutlass.Vector.from_elements([acc[i] * scale, acc[i + 1] * scale], Float32)
            place = swizzled(row + 8 * r, 8 * j, rows, width) + inside
            (smem + place).store(pair.to(dtype), alignment=4)


def stage_sum(acc, smem, rows, width):
    """Writes an accumulator as float32 into swizzled boxes of `width` columns."""
    chunks = width // 4  # of 16 bytes in a row of a box
    lane = cute.arch.lane_idx()
    row = (cute.arch.warp_idx() % 4) * 16 + lane // 4
    turn = (row // (8 // chunks)) % chunks
    for r in range(2):
        for j in range(cute.size(acc) // 4):
            chunk = ((8 * j % width) // 4 + (lane % 4) // 2) ^ turn
            i = 4 * j + 2 * r
            pair = cutlass.Vector.from_elements([acc[i], acc[i + 1]], Float32)
            place = (8 * j // width) * rows * width + (row + 8 * r) * width + 4 * chunk
            (smem + place + 2 * (lane % 2)).store(pair, alignment=8)
