"""The kernel that joins the outputs of splits; it is the same on every target."""

import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32

from fa4gen.emit.device.launch import LOG2_E

COMBINED_ROWS = 4  # rows that a CTA works on at a time, a warp each


@cute.kernel
def combine(
    o_partial: cute.Tensor,
    lse_partial: cute.Tensor,
    o: cute.Tensor,
    lse: cute.Tensor,
    splits: Int32,
):
    """O and LSE of each row from those of its splits, weighed by exp(LSE of the split - LSE)."""
    block, head, batch = cute.arch.block_idx()
    row = block * COMBINED_ROWS + cute.arch.warp_idx()
    lane = cute.arch.lane_idx()
    batches, rows, _, width = o.shape
    if row < rows:
        top = Float32(float("-inf"))
        for s in cutlass.range(splits, unroll=1):
            top = cute.arch.fmax(top, lse_partial[s * batches + batch, head, row])
        safe = cutlass.select_(top == float("-inf"), Float32(0.0), top)  # a row without keys
        total = Float32(0.0)
        for s in cutlass.range(splits, unroll=1):
            behind = lse_partial[s * batches + batch, head, row] - safe
            total = total + cute.math.exp2(behind * LOG2_E, fastmath=True)
        inverse = cutlass.select_(total == 0.0, Float32(0.0), 1.0 / total)
        for c in cutlass.range(lane, width, 32, unroll=1):
            value = Float32(0.0)
            for s in cutlass.range(splits, unroll=1):
                behind = lse_partial[s * batches + batch, head, row] - safe
                weight = cute.math.exp2(behind * LOG2_E, fastmath=True) * inverse
                value = value + weight * o_partial[s * batches + batch, row, head, c]
            o[batch, row, head, c] = value.to(o.element_type)
        if lane == 0:
            lse[batch, head, row] = safe + cute.math.log(total)
