"""How many CTAs share the keys of a tile, and whether heads share a tile, by sizes alone.

Assumed, not measured: a split of fewer than `LEAST_KEYS` keys costs more than it saves.
"""

TILE_ROWS = 128  # a CTA's rows of Q, about; two tiles in flight take twice as many
LEAST_KEYS = 256
MOST_SPLITS = 128
GOOD = 0.85  # share of the best use of the SMs that is good enough


def packs(queries: int, ratio: int) -> bool:
    """Whether tiles of `ratio` heads side by side are fewer than those of one head each."""
    if ratio == 1 or ratio > TILE_ROWS:
        return False
    together = -(-queries // (TILE_ROWS // ratio))
    return together < 0.9 * ratio * -(-queries // TILE_ROWS)


def splits_of(tiles: int, keys: int, num_sms: int) -> int:
    """The fewest splits that use the SMs nearly as well as the best number does; 1: none."""
    if tiles * 5 >= num_sms * 4:
        return 1
    most = max(1, min(MOST_SPLITS, num_sms // max(tiles, 1) * 2, keys // LEAST_KEYS))
    use = {s: tiles * s / (-(-tiles * s // num_sms) * num_sms) for s in range(1, most + 1)}
    return min(s for s, u in use.items() if u >= GOOD * max(use.values()))
