"""Device functions that find a CTA's tile and its KV blocks; plain functions, run at trace time.

Lengths are Int32 values. `rows`, `block` are Python integers: rows of a CTA tile, keys of a KV
block. Every tile has at least one block: where no key is visible, that block is wholly masked.
"""

import cutlass
import cutlass.cute as cute
from cutlass import Int32


def kv_blocks(seqlen_k, block):
    """KV blocks of a full-attention tile."""
    return cutlass.max((seqlen_k + block - 1) // block, Int32(1))


def kv_blocks_causal(seqlen_q, seqlen_k, m_block, rows, block):
    """KV blocks that the last row of a tile sees; causal is aligned bottom-right."""
    last = (m_block + 1) * rows + seqlen_k - seqlen_q
    keys = cutlass.min(seqlen_k, last)
    return cutlass.max((keys + block - 1) // block, Int32(1))


def masked_blocks_causal(seqlen_q, seqlen_k, row, n_blocks, block):
    """Blocks, counted from the last, that some row from `row` on does not see whole (at least
    one)."""
    seen_by_all = cutlass.min(seqlen_k, row + 1 + seqlen_k - seqlen_q)
    whole = cutlass.max(seen_by_all, Int32(0)) // block
    return cutlass.max(n_blocks - whole, Int32(1))


def kv_blocks_window(seqlen_q, seqlen_k, m_block, rows, block, left, right):
    """(first, count) of the KV blocks that rows of a tile see: row i the keys i + d - left …
    i + d + right, where d = seqlen_k - seqlen_q."""
    row, shift = m_block * rows, seqlen_k - seqlen_q
    begin = cutlass.max(cutlass.min(row + shift - left, seqlen_k - 1), Int32(0))
    end = cutlass.min(cutlass.min(row + rows, seqlen_q) + shift + right, seqlen_k)
    first = begin // block
    return first, cutlass.max((end + block - 1) // block - first, Int32(1))


def masked_blocks_window(seqlen_q, seqlen_k, row, rows, first_block, n_blocks, block, left, right):
    """Of the blocks that a tile visits, last first: (how many come before those that each of the
    `rows` rows from `row` on sees whole, at least one; how many these are)."""
    shift = seqlen_k - seqlen_q
    begin = cutlass.max(row + rows - 1 + shift - left, Int32(0))
    end = cutlass.max(cutlass.min(row + 1 + shift + right, seqlen_k), Int32(0))
    behind = first_block + n_blocks
    masked = cutlass.min(cutlass.max(behind - end // block, Int32(1)), n_blocks)
    first_whole = cutlass.max((begin + block - 1) // block, first_block)
    return masked, cutlass.max(behind - masked - first_whole, Int32(0))


def share_of_blocks(first, count, split, splits):
    """(first, count) of one split's blocks, of `count` from `first` on; none of its own: the one
    behind them all."""
    size = (count + splits - 1) // splits
    begin = cutlass.min(split * size, count)
    return first + begin, cutlass.max(cutlass.min(size, count - begin), Int32(1))


def tile_of_split(by_splits):
    """(m_block, head, batch, split) of a grid with one CTA for each split of a tile."""
    m_block, head, z = cute.arch.block_idx()
    batch, split = divmod(z, by_splits)
    return m_block, head, batch, split


def listed_blocks(counts, full_counts, batch, head, m_block):
    """(blocks to visit, partial ones, listed ones): at least one is visited; where none is listed,
    no key of it counts."""
    partial = counts[batch, head, m_block]
    listed = partial + full_counts[batch, head, m_block]
    return cutlass.max(listed, Int32(1)), partial, listed


@cute.jit
def listed_of_heads(
    counts: cute.Tensor,
    full_counts: cute.Tensor,
    batch: Int32,
    head_kv: Int32,
    ratio: Int32,
    n_tile: Int32,
):
    """Blocks that the heads which share a KV head visit, one head after the other."""
    blocks = Int32(0)
    for member in cutlass.range(ratio, unroll=1):
        head = head_kv * ratio + member
        blocks = blocks + listed_blocks(counts, full_counts, batch, head, n_tile)[0]
    return blocks


@cute.jit
def listed_block(
    indices: cute.Tensor,
    full_indices: cute.Tensor,
    partial: Int32,
    listed: Int32,
    batch: Int32,
    head: Int32,
    m_block: Int32,
    n: Int32,
):
    """The number of the block that is visited after `n` others: partial blocks, then full ones."""
    block = Int32(0)
    if n < partial:
        block = indices[batch, head, m_block, n]
    elif n < listed:
        block = full_indices[batch, head, m_block, n - partial]
    return block


def tile_of_grid():
    """(m_block, head, batch) of a grid with one CTA for each tile."""
    return cute.arch.block_idx()


def tile_of_index(tile, by_m_blocks, by_heads):
    """(m_block, head, batch) of a linear tile index, m_block fastest."""
    group, m_block = divmod(tile, by_m_blocks)
    batch, head = divmod(group, by_heads)
    return m_block, head, batch


def tile_lpt(m_blocks, section, by_sections):
    """(m_block, head, batch), longest tiles first, of a grid (section, m_blocks, batches *
    sections).

    CTAs start in the order x, y, z: the heads of a section, whose K and V stay in L2 together, then
    shorter and shorter tiles, then the next section.
    """
    x, y, z = cute.arch.block_idx()
    batch, s = divmod(z, by_sections)
    return m_blocks - 1 - y, s * section + x, batch


def key_tile_lpt(section, by_sections):
    """(key tile, head of K and V, batch) of a grid (section, key tiles, batches * sections).

    The tiles of the first keys, which most causal queries see, come first; the heads of a section,
    whose Q, dO and sums of dQ stay in L2 together, work at the same time.
    """
    x, y, z = cute.arch.block_idx()
    batch, s = divmod(z, by_sections)
    return y, s * section + x, batch


def key_tile_spt(key_tiles, section, by_sections):
    """The same, with the tiles of the last keys first, which fewest causal queries see: each comes
    to a block of queries one step before the next one does."""
    n_tile, head_kv, batch = key_tile_lpt(section, by_sections)
    return key_tiles - 1 - n_tile, head_kv, batch


def last_key_tile(seqlen_q, seqlen_k, key_tiles, m_block, rows, keys):
    """The last of the tiles that visit a block of queries; see `first_query_block`."""
    reach = (m_block + 1) * rows + seqlen_k - seqlen_q - 1
    last = cutlass.min(cutlass.max(reach, Int32(0)) // keys, key_tiles - 1)
    return cutlass.select_((m_block + 1) * rows >= seqlen_q, key_tiles - 1, last)


def first_query_block(seqlen_q, seqlen_k, key, rows):
    """The first block of queries that sees key `key`, or any after it; causal is aligned
    bottom-right. The last block where none does."""
    first = cutlass.max(key - (seqlen_k - seqlen_q), Int32(0)) // rows
    return cutlass.min(first, (seqlen_q + rows - 1) // rows - 1)


def masked_query_blocks(seqlen_q, seqlen_k, key, keys, first_block, n_blocks, rows):
    """Blocks, counted from `first_block`, in which some row does not see some of the keys."""
    full = key + keys - 1 - (seqlen_k - seqlen_q)  # the first row that sees them all
    causal = (cutlass.max(full, Int32(0)) + rows - 1) // rows - first_block
    masked = cutlass.min(cutlass.max(causal, Int32(0)), n_blocks)
    return cutlass.select_(key + keys > seqlen_k, n_blocks, masked)


def query_blocks_window(seqlen_q, seqlen_k, key, keys, rows, left, right):
    """(first, count) of the blocks of queries that see some of `keys` keys from `key` on; the last
    block alone where none does. Query i sees the keys i + d - left … i + d + right, where
    d = seqlen_k - seqlen_q."""
    shift, behind = seqlen_k - seqlen_q, cutlass.min(key + keys, seqlen_k)
    end = cutlass.min(cutlass.max(behind - shift + left, Int32(1)), seqlen_q)
    last = (end + rows - 1) // rows
    first = cutlass.min(cutlass.max(key - shift - right, Int32(0)) // rows, last - 1)
    return first, last - first


def masked_query_blocks_window(
    seqlen_q, seqlen_k, key, keys, first_block, n_blocks, rows, left, right
):
    """Of the blocks that a tile visits: (how many come before those whose queries all see all keys,
    how many these are)."""
    shift, behind = seqlen_k - seqlen_q, first_block + n_blocks
    from_row = cutlass.max(key + keys - 1 - shift - right, Int32(0))
    masked = cutlass.min(cutlass.max((from_row + rows - 1) // rows - first_block, 0), n_blocks)
    masked = cutlass.select_(key + keys > seqlen_k, n_blocks, masked)
    end = cutlass.min(cutlass.max(key - shift + left + 1, Int32(0)) // rows, behind)
    return masked, cutlass.max(end - first_block - masked, Int32(0))


def tile_lpt_of_index(tile, m_blocks, section, by_section, by_m_blocks, by_sections):
    """The same order as `tile_lpt`, of a linear tile index."""
    rest, x = divmod(tile, by_section)
    rest, y = divmod(rest, by_m_blocks)
    batch, s = divmod(rest, by_sections)
    return m_blocks - 1 - y, s * section + x, batch


@cute.jit
def claim_tile(counter: cute.Tensor, tiles: Int32):
    """The number of the next tile that nobody works on; `tiles` or more where none is left.

    A launch claims exactly as often as it has tiles: the last claim resets the counter to 0.
    """
    claimed = Int32(0)
    if cute.arch.lane_idx() == 0:
        claimed = cute.arch.atomic_add(counter.iterator, Int32(1))
        if claimed == tiles - 1:
            cute.arch.atomic_add(counter.iterator, -tiles)
    return cute.arch.shuffle_sync(claimed, 0) + cute.arch.grid_dim()[0]


def publish_tile(slot, claimed):
    """Passes a tile on to the other roles, and takes it."""
    slot[0] = claimed
    return claimed


def read_tile(slot):
    """The tile that was passed on."""
    return slot[0]


@cute.jit
def tile_of_sequence(starts: cute.Tensor, slot: Int32, rows: Int32):
    """(batch, m_block) of a place in the list of all sequences' tiles.

    Sequence b begins at slot starts[b] // rows + b, which leaves room for all of its tiles, and at
    most one slot too many: so no sums over the sequences before are needed.
    """
    first, behind = Int32(0), cute.size(starts) - 1
    while behind - first > 1:
        middle = (first + behind) // 2
        if starts[middle] // rows + middle <= slot:
            first = middle
        else:
            behind = middle
    return first, slot - (starts[first] // rows + first)


def sequence(starts, batch):
    """(start, length) of one of the sequences that lie one behind the other."""
    return starts[batch], starts[batch + 1] - starts[batch]


def page_of_key(table, batch, key, seqlen_k, by_page):
    """(page, row in it) of a key of a sequence; page -1, which no tensor has, from its end on."""
    used = cutlass.min(key, cutlass.max(seqlen_k - 1, Int32(0)))
    n, row = divmod(used, by_page)
    return cutlass.select_(key < seqlen_k, table[batch, n], Int32(-1)), row


def used_keys(used, batch, most):
    """How many keys of a sequence are there: never more than it has room for."""
    return cutlass.max(cutlass.min(used[batch], most), Int32(0))
