"""What the host function of a kernel takes beside the tensors of attention."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """What `launch` takes beside Q, K, V, O, the LSE and the scale; the kernel gets it as it is.

    `example`: the argument that `launch` is compiled for, an expression; what of it stays open (a
    length, a stride) is symbolic there.
    """

    name: str
    type: str  # its annotation: 'cute.Tensor', 'Int32'
    example: str
