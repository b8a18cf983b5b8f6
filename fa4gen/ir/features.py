"""What a problem may ask for beside head dims, dtype and the causal mask, each on or off.

A schedule says in `serves: {features: […]}` which of them it can be built with. One that is off
costs nothing; one that is on brings values that stay open until the call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .head import Input

OPEN = 2**31 - 1  # a bound of a window that is none


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """One feature; `inputs`: what `launch` takes for it, in the order of the call."""

    name: str
    doc: str
    inputs: tuple[Input, ...]


FEATURES: Mapping[str, Feature] = MappingProxyType(
    {
        f.name: f
        for f in (
            Feature(
                name="window",
                doc="query i sees keys i + d - left … i + d + right (d: keys less queries)",
                inputs=(
                    Input(name="window_left", type="Int32", example="Int32(1)"),
                    Input(name="window_right", type="Int32", example="Int32(1)"),
                ),
            ),
        )
    }
)


def ordered(features: Iterable[str]) -> tuple[str, ...]:
    """Names of features in the order of their inputs."""
    asked = set(features)
    return tuple(name for name in FEATURES if name in asked)


def inputs(features: Iterable[str]) -> tuple[Input, ...]:
    """What `launch` takes for these features, in the order of the call."""
    return tuple(i for name in ordered(features) for i in FEATURES[name].inputs)
