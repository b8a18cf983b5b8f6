"""Host-side pieces of a kernel's launch function, and ring arithmetic."""

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as cuda
from cutlass import Int32, Int64
from cutlass.cute.runtime import make_fake_tensor

LOG2_E = 1.4426950408889634
LONG = 2**30  # rows: more than any sequence of keys with bounds of its own
L2_BYTES = 50 * 1024 * 1024  # of K and V that stay in L2 while their queries are worked through


def tensor_map(t, rows, cols, swizzle):
    """TMA descriptor of a (batch, length, heads, width) tensor: boxes of rows x cols elements."""
    return cuda.create_tensor_map_tiled_from_view(
        t, box_dims=(1, rows, 1, cols), stride_order=(3, 1, 2, 0), swizzle=swizzle
    )


def packed_map(t, pack, queries, cols, swizzle):
    """The same with groups of `pack` heads: TMA dimensions (column, head of the group, row, group,
    batch); a box holds `queries` rows of each head of a group."""
    batch, length, heads, width = t.shape
    by_batch, by_row, by_head, _ = t.stride
    view = cute.make_tensor(
        t.iterator,
        cute.make_layout(
            (batch, length, heads // pack, pack, width),
            stride=(by_batch, by_row, pack * by_head, by_head, 1),
        ),
    )
    return cuda.create_tensor_map_tiled_from_view(
        view, box_dims=(1, queries, 1, pack, cols), stride_order=(4, 3, 1, 2, 0), swizzle=swizzle
    )


def ending_map(t, rows, cols, swizzle):
    """For stores to sequences, in a batch of one, that end before the tensor does: TMA dimensions
    (column, row, head, end), where `end` steps by rows too.

    With S rows in the tensor, row i of a sequence that ends before row `end` and has n rows is at
    (S - n + i, end): what lies behind the sequence is outside of the first S rows, and so not
    written. The base is S rows before the tensor to make up for it. Loads take no such descriptor:
    on an H200 they fault where the base lies in no allocation (seen), which stores do not
    (Dao-AILab/quack, AI/ragged_tma_ptr_shift_finding.md).
    """
    _, length, heads, width = t.shape
    _, by_row, by_head, _ = t.stride
    view = cute.make_tensor(
        t.iterator - length * by_row,
        cute.make_layout((length + 1, length, heads, width), stride=(by_row, by_row, by_head, 1)),
    )
    return cuda.create_tensor_map_tiled_from_view(
        view, box_dims=(1, rows, 1, cols), stride_order=(3, 1, 2, 0), swizzle=swizzle
    )


def packed_ending_map(t, pack, queries, cols, swizzle):
    """The same for groups of heads: TMA dimensions (column, head of the group, row, group, end)."""
    _, length, heads, width = t.shape
    _, by_row, by_head, _ = t.stride
    view = cute.make_tensor(
        t.iterator - length * by_row,
        cute.make_layout(
            (length + 1, length, heads // pack, pack, width),
            stride=(by_row, by_row, pack * by_head, by_head, 1),
        ),
    )
    return cuda.create_tensor_map_tiled_from_view(
        view, box_dims=(1, queries, 1, pack, cols), stride_order=(4, 3, 1, 2, 0), swizzle=swizzle
    )


def ended_map(t, rows, cols, swizzle):
    """For loads from sequences that end before the tensor does: TMA dimensions (column, row, head,
    end, LONG). Row i of n is at (LONG - n + i, end, LONG): what lies behind comes as zeros.

    The last dimension takes back the LONG rows: LONG steps of 2^34 elements are 0 modulo 2^64 bytes
    (as in triton_kernels' ragged descriptors). Rows of all batches count as one long sequence.
    """
    _, _, heads, width = t.shape
    _, by_row, by_head, _ = t.stride
    view = cute.make_tensor(
        t.iterator,
        cute.make_layout(
            (LONG + 1, 2 * LONG - 1, LONG, heads, width),
            stride=(2**34 - by_row, by_row, by_row, by_head, 1),
        ),
    )
    return cuda.create_tensor_map_tiled_from_view(
        view, box_dims=(1, 1, rows, 1, cols), stride_order=(4, 2, 3, 1, 0), swizzle=swizzle
    )


@cute.jit
def packed_heads(ratio: Int32, rows: cutlass.Constexpr):
    """How many of the heads that share a KV head go into a tile of `rows` rows: a divisor."""
    pack = cutlass.min(ratio, Int32(rows))
    while ratio % pack != 0:
        pack = pack - 1
    return pack


@cute.jit
def l2_section(seqlen_k: Int32, heads_kv: Int32, ratio: Int32, row_bytes: cutlass.Constexpr):
    """Query heads that work at the same time: those of as many KV heads as fit in L2, a divisor of
    all."""
    head_bytes = cutlass.max(Int64(seqlen_k) * row_bytes, Int64(1))
    fit = cutlass.max(Int64(L2_BYTES) // head_bytes, Int64(1))
    width = cutlass.min(heads_kv, Int32(fit))
    while heads_kv % width != 0:
        width = width - 1
    return width * ratio


def open_tensor(dtype, rank):
    """A tensor to compile for, of any shape and strides."""
    shape = tuple(cute.sym_int() for _ in range(rank))
    return make_fake_tensor(dtype, shape, tuple(cute.sym_int64() for _ in range(rank)))


def next_slot(slot, phase, stages):
    """The next place in a ring, without a branch."""
    slot = slot + 1
    wrapped = Int32(slot == stages)
    return slot - wrapped * stages, phase ^ wrapped
