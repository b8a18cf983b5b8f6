"""Device functions of the attention backward that no target changes, and the kernels beside it.

Row arrays are (batch, heads, rows) in float32, with `rows` a multiple of the block: the LSE in log2
units, +inf for rows that do not exist or see no key (their probabilities are then exactly 0), and
delta = rowsum(O dO) - dLSE.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.experimental import primitives as p

from fa4gen.emit.device.launch import LOG2_E

NO_KEYS = float("-inf")  # the LSE of a row that sees none
ROWS = (
    32  # that a CTA of `preprocess` or `postprocess` works on; row arrays have whole blocks of it
)
ROW_THREADS = 128
PIECE = 8  # elements that a lane takes at a time


def row_address(rows, batch, head, row):
    """Address of a row's value."""
    return (rows.iterator + rows.layout((batch, head, row))).raw_ptr()


def turn_address(turns, batch, head, block):
    """Address of the number of key tiles that have added to a block."""
    return (turns.iterator + turns.layout((batch, head, block))).raw_ptr().toint()


@cute.jit
def await_turn(turns: cute.Tensor, batch: Int32, head: Int32, block: Int32, rank: Int32):
    """Waits until `rank` key tiles have added to a block of dQ."""
    if p.elect_sync():
        p.inline_ptx(
            "{ .reg .pred ready; .reg .b32 seen; AGAIN: ld.acquire.gpu.global.b32 seen, [{$r0}]; "
            "setp.eq.u32 ready, seen, {$r1}; @!ready bra AGAIN; "
            "fence.proxy.async.global; }",
            read_only_args=[turn_address(turns, batch, head, block), rank],
        )


@cute.jit
def pass_turn(turns: cute.Tensor, batch: Int32, head: Int32, block: Int32):
    """What this tile has added is there: it is the next one's turn."""
    if p.elect_sync():
        p.inline_ptx(
            "{ fence.proxy.async.global; red.release.gpu.global.add.u32 [{$r0}], 1; }",
            read_only_args=[turn_address(turns, batch, head, block)],
        )


def lanes_of_row(width):
    """How many lanes share a row of `width` elements: a power of two, enough for all rows to have
    lanes at once."""
    lanes = ROW_THREADS // ROWS
    while lanes * PIECE < width:
        lanes = 2 * lanes
    return lanes


def piece(t, batch, row, head, column):
    """Address of a lane's elements of a row of a (batch, length, heads, width) tensor."""
    return (t.iterator + t.layout((batch, row, head, column))).raw_ptr()


def rows_of_lane(width):
    """(columns of this lane, its rows in a CTA's block) of rows of `width` elements."""
    lanes = lanes_of_row(width)
    thread, step = cute.arch.thread_idx()[0], ROW_THREADS // lanes
    return thread % lanes * PIECE, [thread // lanes + n * step for n in range(ROWS // step)]


@cute.kernel
def preprocess(
    o: cute.Tensor,
    do: cute.Tensor,
    lse: cute.Tensor,
    dlse: cute.Tensor,
    lse_rows: cute.Tensor,
    delta_rows: cute.Tensor,
    dq_sum: cute.Tensor,
    seqlen_q: Int32,
):
    """Row arrays, and zeros for the sums of dQ; a CTA takes `ROWS` neighbours of one head."""
    block, head, batch = cute.arch.block_idx()
    column, own = rows_of_lane(o.shape[3])
    lanes = lanes_of_row(o.shape[3])
    for n in cutlass.range_constexpr(len(own)):
        row = block * ROWS + own[n]
        delta = Float32(0.0)
        if row < seqlen_q and column < o.shape[3]:
            x = piece(o, batch, row, head, column).load(16, count=PIECE).to(Float32)
            y = piece(do, batch, row, head, column).load(16, count=PIECE).to(Float32)
            for i in cutlass.range_constexpr(PIECE):
                delta = delta + x[i] * y[i]
        for d in cutlass.range_constexpr(lanes.bit_length() - 1):
            delta = delta + cute.arch.shuffle_sync_bfly(delta, offset=1 << d)
        if column == 0:
            bound = Float32(float("inf"))
            if row < seqlen_q:
                value = lse[batch, head, row]
                bound = cutlass.select_(value == NO_KEYS, bound, value * LOG2_E)
                delta = delta - dlse[batch, head, row]
            lse_rows[batch, head, row] = bound
            delta_rows[batch, head, row] = delta
    column, own = rows_of_lane(dq_sum.shape[3])
    zeros = cutlass.Vector.from_elements([Float32(0.0)] * 4, Float32)
    for n in cutlass.range_constexpr(len(own)):
        row = block * ROWS + own[n]
        if row < seqlen_q and column < dq_sum.shape[3]:
            at = piece(dq_sum, batch, row, head, column)
            at.store(zeros, alignment=16)
            (at + 4).store(zeros, alignment=16)


@cute.kernel
def postprocess(dq_sum: cute.Tensor, dq: cute.Tensor, softmax_scale: Float32, seqlen_q: Int32):
    """dQ = its sum, scaled and rounded; a CTA takes `ROWS` neighbours of one head."""
    block, head, batch = cute.arch.block_idx()
    column, own = rows_of_lane(dq.shape[3])
    for n in cutlass.range_constexpr(len(own)):
        row = block * ROWS + own[n]
        if row < seqlen_q and column < dq.shape[3]:
            at = piece(dq_sum, batch, row, head, column)
            low, high = at.load(16, count=4), (at + 4).load(16, count=4)
            scaled = [half[i] * softmax_scale for half in (low, high) for i in range(4)]
            rounded = cutlass.Vector.from_elements(scaled, Float32).to(dq.element_type)
            piece(dq, batch, row, head, column).store(rounded, alignment=16)
