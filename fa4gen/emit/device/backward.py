"""Device functions of the attention backward that no target changes, and the kernels beside it.

Row arrays are (batch, heads, rows) in float32, with `rows` a multiple of the block: the LSE in log2
units, +inf for rows that do not exist or see no key (their probabilities are then exactly 0), and
delta = rowsum(O dO) - dLSE.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from fa4gen.emit.device.launch import LOG2_E

NO_KEYS = float("-inf")  # the LSE of a row that sees none
ROW_WARPS = 4  # rows of O that a CTA of `preprocess` works on at a time


def row_address(rows, batch, head, row):
    """Address of a row's value."""
    return (rows.iterator + rows.layout((batch, head, row))).raw_ptr()


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
    """Row arrays, and zeros for the sums of dQ; a warp takes a row, a CTA four neighbours."""
    block, head, batch = cute.arch.block_idx()
    lane = cute.arch.lane_idx()
    row = block * ROW_WARPS + cute.arch.warp_idx()
    bound = Float32(float("inf"))
    delta = Float32(0.0)
    if row < seqlen_q:
        for c in cutlass.range(lane, o.shape[3], 32, unroll=1):
            delta = delta + o[batch, row, head, c].to(Float32) * do[batch, row, head, c].to(Float32)
        for c in cutlass.range(lane, dq_sum.shape[3], 32, unroll=1):
            dq_sum[batch, row, head, c] = Float32(0.0)
    for d in (1, 2, 4, 8, 16):
        delta = delta + cute.arch.shuffle_sync_bfly(delta, offset=d)
    if lane == 0:
        if row < seqlen_q:
            value = lse[batch, head, row]
            bound = cutlass.select_(value == NO_KEYS, bound, value * LOG2_E)
            delta = delta - dlse[batch, head, row]
        lse_rows[batch, head, row] = bound
        delta_rows[batch, head, row] = delta


@cute.kernel
def postprocess(dq_sum: cute.Tensor, dq: cute.Tensor, softmax_scale: Float32, seqlen_q: Int32):
    """dQ = its sum, scaled and rounded; a warp takes a row."""
    block, head, batch = cute.arch.block_idx()
    row = block * ROW_WARPS + cute.arch.warp_idx()
    if row < seqlen_q:
        for c in cutlass.range(cute.arch.lane_idx(), dq.shape[3], 32, unroll=1):
            value = dq_sum[batch, row, head, c] * softmax_scale
            dq[batch, row, head, c] = value.to(dq.element_type)
