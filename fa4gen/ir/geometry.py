"""How a 16-bit tile lies in shared memory: padded columns, boxes, swizzle.

A tile is cut into boxes of equal width, each of them one TMA copy; a row of a box is one swizzle
span. Columns are padded to whole MMA steps of 16; what lies past the end of the tensor is filled
with zeros by TMA, and not stored.
"""

from dataclasses import dataclass

STEP = 16  # columns of one 16-bit MMA step (PTX ISA, wgmma and tcgen05 shapes)
WIDTHS = (64, 32, 16)  # columns of a 128-, 64- or 32-byte swizzled row
DESCRIPTOR_LAYOUT = {64: 2, 32: 4, 16: 6}  # layout type of a tcgen05 descriptor, by box width


def padded(columns: int) -> int:
    """Columns in whole MMA steps."""
    return -(-columns // STEP) * STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class Boxes:
    """The boxes of one tile of `rows` rows; `columns` is the tensor's width.

    `like`: the width of another tile's boxes, whose place this one takes row by row.
    """

    rows: int
    columns: int
    like: int = 0

    @property
    def width(self) -> int:
        """Columns of a box: the widest swizzle that divides the padded tile, or as given."""
        return self.like or next(w for w in WIDTHS if padded(self.columns) % w == 0)

    @property
    def count(self) -> int:
        """Boxes side by side."""
        return -(-padded(self.columns) // self.width)

    @property
    def elements(self) -> int:
        """Elements of one box."""
        return self.rows * self.width

    @property
    def tile_bytes(self) -> int:
        """Bytes of all boxes."""
        return 2 * self.count * self.elements

    @property
    def swizzle(self) -> str:
        """Name of the swizzle in TMA descriptors and layout atoms: '128', '64' or '32'."""
        return str(2 * self.width)
