"""Device functions of the Hopper attention forward; plain functions, run at trace time.

Accumulators are those of wgmma m64nNk16: of 32 lanes, four share a row; element i of a lane lies in
row r or r + 8 as bit 1 of i says. `m`, `total`: running maximum (of unscaled scores) and this
lane's share of the row's sum, two values each.
"""

import cutlass
import cutlass.cute as cute
import cutlass.utils.hopper_helpers as sm90
from cutlass import Float32, Int32
from cutlass.cute.nvgpu import OperandMajorMode, warpgroup

from .scores import biased, cap_rate, inverses_of_four, with_sign_of, with_sink

NEG_INF = float("-inf")
LN2 = 0.6931471805599453


def as_a_operand(t):
    """View an m64 accumulator ((2,2,N/8),M,N') as A fragments ((2,2,2),M,N/16): the same
    registers."""
    d = cute.logical_divide(t.layout, ((None, None, 2), None, None))
    shape = (
        (d.shape[0][0], d.shape[0][1], d.shape[0][2][0]),
        d.shape[1],
        (d.shape[0][2][1], d.shape[2]),
    )
    stride = (
        (d.stride[0][0], d.stride[0][1], d.stride[0][2][0]),
        d.stride[1],
        (d.stride[0][2][1], d.stride[2]),
    )
    return cute.make_tensor(t.iterator, cute.make_layout(shape, stride=stride))


def scale_scores(acc, scale):
    """Scores in natural units."""
    for i in range(cute.size(acc)):
        acc[i] = acc[i] * scale


def cap_scores(acc, cap, scale):
    """Scores in natural units, none larger than `cap`, either way. Four scores of a row share a
    reciprocal: the multi-function unit is what this waits for. With a = e^-2|x|, tanh |x| is
    2 / (1 + a) - 1, and sums of 1 to 2 have products of 1 to 16."""
    rate, twice = cap_rate(cap, scale), 2.0 * cap
    for i in range(0, cute.size(acc), 8):  # of two rows by turns, as bit 1 says
        for idx in ((i, i + 1, i + 4, i + 5), (i + 2, i + 3, i + 6, i + 7)):
            powers = [acc[j] * rate for j in idx]
            sums = [1.0 + cute.math.exp2(-cute.arch.fmax(x, -x), fastmath=True) for x in powers]
            for j, x, inverse in zip(idx, powers, inverses_of_four(*sums), strict=True):
                acc[j] = with_sign_of(twice * inverse - cap, x)


def bias_scores(acc, slopes, coord, diagonal):
    """ALiBi: row r stands at column r + `diagonal`, and has a slope of its own."""
    for r in range(2):
        idx = [i for i in range(cute.size(acc)) if (i // 2) % 2 == r]
        row, column = coord[idx[0]]
        ahead = Float32(row + diagonal - column)
        for i in idx:  # a lane has two of eight columns
            acc[i] = biased(acc[i], slopes[r], ahead - float(8 * (i // 4) + i % 2))


def bias_scores_alike(acc, slopes, coord, diagonal):
    """The same for rows of one head, 8 apart: a lane's second row stands to a column as its first
    does to the one 8 before, so that they share what is taken off."""
    row, column = coord[0]
    ahead, taken = Float32(row + diagonal - column), {}
    for i in range(cute.size(acc)):
        on = 8 * ((i // 2) % 2 - i // 4) - i % 2
        if on not in taken:
            distance = ahead + float(on)
            taken[on] = slopes[0] * cute.arch.fmax(distance, -distance)
        acc[i] = acc[i] - taken[on]


def join_sinks(acc, m, total, sinks, scale_log2):
    """A sink joins the sum of each row; each of a row's four lanes has a share of it."""
    factors = []
    for r in range(2):
        m[r], factor, extra = with_sink(m[r], sinks[r], scale_log2)
        total[r] = total[r] * factor + 0.25 * extra
        factors.append(factor)
    rescale(acc, factors)


def mask_length(acc, coord, left):
    """Keys at or beyond column `left` of the block do not exist."""
    for i in range(cute.size(acc)):
        acc[i] = cutlass.select_(coord[i][1] < left, acc[i], Float32(NEG_INF))


def mask_causal(acc, coord, left, diagonal):
    """As `mask_length`; and row r sees columns up to r + `diagonal` alone."""
    for r in range(2):
        idx = [i for i in range(cute.size(acc)) if (i // 2) % 2 == r]
        limit = cutlass.min(left, coord[idx[0]][0] + diagonal + 1)
        for i in idx:
            acc[i] = cutlass.select_(coord[i][1] < limit, acc[i], Float32(NEG_INF))


def mask_window(acc, coord, left, diagonal, before, behind):
    """As `mask_length`; and row r sees columns r + `diagonal` - `before` … r + `diagonal` +
    `behind` alone."""
    for r in range(2):
        idx = [i for i in range(cute.size(acc)) if (i // 2) % 2 == r]
        centre = coord[idx[0]][0] + diagonal
        first, limit = centre - before, cutlass.min(left, centre + behind + 1)
        for i in idx:
            seen = (coord[i][1] >= first) & (coord[i][1] < limit)
            acc[i] = cutlass.select_(seen, acc[i], Float32(NEG_INF))


@cute.jit
def mask_tail(acc: cute.Tensor, coord: cute.Tensor, left: Int32, keys: cutlass.Constexpr):
    """As `mask_length`, where the block has keys that do not exist."""
    if left < keys:
        mask_length(acc, coord, left)


def modify_scores(acc, coord, mod, query, key):
    """Each score by the user's function; `query`, `key`: indices of the tile's first row and
    column."""
    for i, q, k, row, column in _elements(acc, coord, mod, query, key):
        acc[i] = mod[2](acc[i], q, k, row, column)


def mask_scores(acc, coord, mod, query, key, on):
    """Hides what the user's function does not let through, if `on`."""
    for i, q, k, row, column in _elements(acc, coord, mod, query, key):
        seen = mod[2](q, k, row, column)
        if on is not True:
            seen = seen | (on == False)  # noqa: E712 - a value of the kernel
        acc[i] = cutlass.select_(seen, acc[i], Float32(NEG_INF))


def _elements(acc, coord, mod, query, key):
    """Indices and shared values of each score of a lane: two rows, column by column."""
    rows = [query + coord[2 * r][0] for r in range(2)]
    shared = [mod[0](q) for q in rows]
    for n in range(0, cute.size(acc), 4):
        for j in range(2):
            k = key + coord[n + j][1]
            column = mod[1](k)
            for r in range(2):
                yield n + 2 * r + j, rows[r], k, shared[r], column


def online_softmax(acc, m, total, scale_log2, first):
    """Replaces scores by exponentials, moves maxima and sums; returns the factors of O's rows."""
    scales = []
    for r in range(2):
        idx = [i for i in range(cute.size(acc)) if (i // 2) % 2 == r]
        mx = acc[idx[0]] if first else cute.arch.fmax(acc[idx[0]], m[r])
        for i in idx[1:]:
            mx = cute.arch.fmax(mx, acc[i])
        for d in (1, 2):
            mx = cute.arch.fmax(mx, cute.arch.shuffle_sync_bfly(mx, offset=d))
        safe = cutlass.select_(mx == NEG_INF, Float32(0.0), mx)  # a row without keys so far
        bias = safe * scale_log2
        # an unchanged maximum must give exactly 1: of two products, one rounded, ptxas makes an
        # FFMA whose residue compounds, to 6e-3 of the LSE at 4M keys (measured, H200)
        moved = Float32(0.0) if first else (m[r] - safe) * scale_log2
        scale = Float32(1.0) if first else cute.math.exp2(moved, fastmath=True)
        s = Float32(0.0) if first else total[r] * scale
        for i in idx:
            acc[i] = cute.math.exp2(acc[i] * scale_log2 - bias, fastmath=True)
            s = s + acc[i]
        m[r], total[r] = mx, s
        scales.append(scale)
    return scales


def convert(acc, fragment, dtype):
    """Rounds the exponentials into the A operand of the next product."""
    src = as_a_operand(acc)
    for i in range(0, cute.size(src), 2):
        v = cutlass.Vector.from_elements([src[i], src[i + 1]], Float32).to(dtype)
        fragment[i], fragment[i + 1] = v[0], v[1]


def rescale(acc, scales):
    """Multiplies the rows of O by their factors."""
    for j in range(cute.size(acc)):
        acc[j] = acc[j] * scales[(j // 2) % 2]


def clear(acc):
    """O is empty."""
    acc.fill(0.0)


@cute.jit
def write_lse(lse: cute.Tensor, first, second, batch, head, row, seqlen_q):
    """One of the four lanes of a row writes its LSE; `row` is this lane's first of two rows."""
    if cute.arch.lane_idx() % 4 == 0:
        if row < seqlen_q:
            lse[batch, head, row] = first
        if row + 8 < seqlen_q:
            lse[batch, head, row + 8] = second


def own_rows(head, row):
    """(head, query) of a lane's two rows, in one line."""
    return head, row, head, row + 8


def packed_rows(group, pack, queries, by_pack, q_row, row, seqlen_q):
    """The same where `pack` heads share a tile whose first query is `q_row`; `row`: this lane's
    first in it. Rows behind the tile's `queries` queries are none, and get `seqlen_q`."""
    places = []
    for r in range(2):
        query, head = divmod(row + 8 * r, by_pack)
        places.append(group * pack + head)
        places.append(cutlass.select_(query < queries, q_row + query, seqlen_q))
    return tuple(places)


@cute.jit
def write_lse_of(
    lse: cute.Tensor, first, second, batch, head_0, row_0, head_1, row_1, seqlen_q: Int32
):
    """`write_lse` for two rows of any heads."""
    if cute.arch.lane_idx() % 4 == 0:
        if row_0 < seqlen_q:
            lse[batch, head_0, row_0] = first
        if row_1 < seqlen_q:
            lse[batch, head_1, row_1] = second


@cute.jit
def store_rows(
    acc: cute.Tensor,
    out: cute.Tensor,
    batch,
    head_0,
    row_0,
    head_1,
    row_1,
    seqlen_q: Int32,
    columns: cutlass.Constexpr,
):
    """A lane's two rows of O to global memory in float32: two of eight columns each."""
    for r in cutlass.range_constexpr(2):
        head, row = ((head_0, row_0), (head_1, row_1))[r]
        if row < seqlen_q:
            column = cute.arch.lane_idx() % 4 * 2
            start = (out.iterator + out.layout((batch, row, head, column))).raw_ptr()
            for c in cutlass.range_constexpr(columns // 8):
                pair = [acc[4 * c + 2 * r], acc[4 * c + 2 * r + 1]]
                (start + 8 * c).store(cutlass.Vector.from_elements(pair, Float32), alignment=8)


def normalise(acc, m, total, scale_log2):
    """O over its row sums, in place; returns the rows' LSE (natural)."""
    lse = []
    for r in range(2):
        for d in (1, 2):
            total[r] = total[r] + cute.arch.shuffle_sync_bfly(total[r], offset=d)
        empty = total[r] == 0.0
        inverse = cutlass.select_(empty, Float32(1.0), cute.arch.rcp_approx(total[r]))
        for i in range(cute.size(acc)):
            if (i // 2) % 2 == r:
                acc[i] = acc[i] * inverse
        value = (m[r] * scale_log2 + cute.math.log2(total[r], fastmath=True)) * LN2
        lse.append(cutlass.select_(empty, Float32(NEG_INF), value))
    return lse


def packed_coord(coord, first, row, by_pack):
    """(query, column) of each element; `row`: this lane's first in a tile whose first query is
    `first`, rows of `pack` heads side by side."""
    places = [first + divmod(row + 8 * r, by_pack)[0] for r in range(2)]
    return [(places[(i // 2) % 2], coord[i][1]) for i in range(cute.size(coord))]


def heads_of_rows(first, row, by_pack):
    """The heads of a lane's two rows, `row` and the one 8 behind it, in a group from `first` on."""
    return [first + divmod(row + 8 * r, by_pack)[1] for r in range(2)]


def smem_tile(smem, dtype, shape, swizzle):
    """A K-major tile (or ring of tiles), aligned to 1024 bytes."""
    atom = warpgroup.make_smem_layout_atom(swizzle, dtype)
    layout = cute.tile_to_shape(atom, shape, tuple(range(len(shape))))
    return smem.allocate_tensor(dtype, layout.outer, 1024, swizzle=layout.inner)


def transposed(t, rows, cols, stages):
    """V as the B operand of PV: (value dim, keys, stage)."""
    return cute.composition(t, cute.make_ordered_layout((rows, cols, stages), order=(1, 0, 2)))


def tiled_mma(dtype, warpgroups, columns, b_major, a_source):
    """One wgmma m64 for each warpgroup, stacked in rows; A is K-major, accumulation in float32."""
    return sm90.make_trivial_tiled_mma(
        dtype,
        dtype,
        OperandMajorMode.K,
        b_major,
        Float32,
        (warpgroups, 1, 1),
        (64, columns),
        a_source,
    )


def store_o(acc, m, total, scale_log2, dtype, smem, smem_rows, row_in_tile, columns, width):
    """O over its row sums into swizzled boxes of `width` columns; returns the rows' LSE (natural).

    `row_in_tile`: this lane's first row (of two, 8 apart) in a tile of `smem_rows` rows.
    """
    chunks = width // 8  # of 16 bytes in a row of a box
    lse = []
    lane = cute.arch.lane_idx()
    for r in range(2):
        for d in (1, 2):
            total[r] = total[r] + cute.arch.shuffle_sync_bfly(total[r], offset=d)
        empty = total[r] == 0.0
        inverse = cutlass.select_(empty, Float32(1.0), cute.arch.rcp_approx(total[r]))
        row = row_in_tile + 8 * r
        for c in range(columns // 8):  # this lane holds two of eight columns
            pair = [acc[4 * c + 2 * r] * inverse, acc[4 * c + 2 * r + 1] * inverse]
            v = cutlass.Vector.from_elements(pair, Float32).to(dtype)
            chunk = (c % chunks) ^ ((row // (8 // chunks)) % chunks)
            offset = (c // chunks) * smem_rows * width + row * width + chunk * 8 + (lane % 4) * 2
            (smem + offset).store(v, alignment=4)
        value = (m[r] * scale_log2 + cute.math.log2(total[r], fastmath=True)) * LN2
        lse.append(cutlass.select_(empty, Float32(NEG_INF), value))
    return lse
