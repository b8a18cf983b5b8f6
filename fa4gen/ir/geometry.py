"""How a tile lies in shared memory: padded columns, boxes, swizzle.

A tile is cut into boxes of equal width, each of them one TMA copy; a row of a box is one swizzle
span. Columns of 16-bit tiles are padded to whole MMA steps of 16; what lies past the end of the
tensor is filled with zeros by TMA, and not stored. Tiles of 32-bit sums have whole columns.
"""

from dataclasses import dataclass

STEP = 16  # columns of one 16-bit MMA step (PTX ISA, wgmma and tcgen05 shapes)
ROW_BYTES = (128, 64, 32)  # of a swizzled row
DESCRIPTOR_LAYOUT = {64: 2, 32: 4, 16: 6}  # layout type of a tcgen05 descriptor, by box width


SUM_COLUMNS = 32  # float32 columns of a swizzled row of 128 bytes
ROW_UNIT = 128  # rows of the arrays of row values of a backward come in multiples of it


def padded_rows(rows: int) -> int:
    """Length of an array with a value for each of so many rows."""
    return -(-rows // ROW_UNIT) * ROW_UNIT


def padded(columns: int) -> int:
    """Columns in whole MMA steps."""
    return -(-columns // STEP) * STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """The boxes of one tile of `rows` rows; `columns` is the tensor's width, `bits` an element's.

    `like`: the width of another tile's boxes, whose place this one takes row by row.
    """

    rows: int
    columns: int
    like: int = 0
    bits: int = 16

    @property
    def whole(self) -> int:
        """Columns that are stored."""
        return padded(self.columns) if self.bits == 16 else self.columns

    @property
    def width(self) -> int:
        """Columns of a box: the widest swizzle that divides the padded tile, or as given."""
        widths = (8 * b // self.bits for b in ROW_BYTES)
        return self.like or next(w for w in widths if self.whole % w == 0)

    @property
    def count(self) -> int:
        """Boxes side by side."""
        return -(-self.whole // self.width)

    @property
    def elements(self) -> int:
        """Elements of one box."""
        return self.rows * self.width

    @property
    def tile_bytes(self) -> int:
        """Bytes of all boxes."""
        return self.bits // 8 * self.count * self.elements

    @property
    def swizzle(self) -> str:
        """Name of the swizzle in TMA descriptors and layout atoms: '128', '64' or '32'."""
        return str(self.bits // 8 * self.width)
