"""Operands of tcgen05 products: where step `k` of the sum finds them, and their descriptors.

In shared memory a tile lies in swizzled boxes, side by side. An operand is K-major where the sum
runs along its rows (A as it is, B transposed) and MN-major where it runs down its columns (PTX ISA,
canonical layouts of matrix descriptors).
"""

from dataclasses import dataclass

from fa4gen.ir.geometry import DESCRIPTOR_LAYOUT, STEP, Boxes


@dataclass(frozen=True, slots=True, kw_only=True)
class SmemOperand:
    """A tile in shared memory; `down`: the sum runs down its rows' columns (MN-major)."""

    item: str
    array: str  # name of the shared memory array
    boxes: Boxes
    down: bool
    slot: str = ""  # the variable that picks the ring's slot
    pitch_bytes: int = 0  # from slot to slot

    @property
    def descriptor(self) -> str:
        """Name of the matrix descriptor of the first slot."""
        return f"desc_{self.item}_down" if self.down else f"desc_{self.item}"

    @property
    def definition(self) -> str:
        """Expression that makes the descriptor."""
        box = self.boxes
        fields = (
            f"{self.array}_array",
            # K-major operands ignore it
            f"leading_byte_offset={box.elements * 2 if self.down else STEP}",
            f"stride_byte_offset={8 * box.width * 2}",  # from 8 rows to the next
            f"layout={DESCRIPTOR_LAYOUT[box.width]}",
        )
        return f"p.Tcgen05SmemDesc.build({', '.join(fields)})"

    @property
    def step(self) -> str:
        """The operand of step `k`."""
        slot = f"{self.slot} * {self.pitch_bytes} + " if self.slot else ""
        width = self.boxes.width
        if self.down:
            return f"{self.descriptor}.advance_start_address({slot}k * {STEP * width * 2})"
        steps = width // STEP
        inside = f"(k // {steps}) * {self.boxes.elements * 2} + (k % {steps}) * {STEP * 2}"
        return f"{self.descriptor}.advance_start_address({slot}{inside})"


def tmem_step(columns: tuple[int, ...], elements: int) -> str:
    """Step `k` of a 16-bit operand in tensor memory; each instance has `elements` of the sum."""
    steps, inside = elements // STEP, STEP // 2
    column = f"{columns[0]} + {inside} * k"
    if len(columns) > 1:
        apart = columns[1] - columns[0]
        column = f"{columns[0]} + (k // {steps}) * {apart} + (k % {steps}) * {inside}"
    return f"p.make_tmem_ptr(Int32({column}), Float32)"
