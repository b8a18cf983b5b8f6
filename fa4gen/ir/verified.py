"""Success of verification changes the type: what may be lowered or printed is a `Verified`."""

from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(Generic[T]):
    """A value that its checks have accepted, with what they found (names of checks, facts,
    bounds)."""

    value: T
    evidence: tuple[tuple[str, str], ...] = field(default=(), compare=False)
