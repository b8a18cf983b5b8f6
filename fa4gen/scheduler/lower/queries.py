"""Which queries the rows of a tile are: those of one head, or (`pack_gqa`) of several heads that
share a head of K and V.

Packed, an instance's tile holds whole queries of `pack` heads: row r is head r % pack of them and
query r // pack; rows behind the last whole query are never loaded, nor stored. `pack` is the number
of query heads a KV head, or its largest divisor that fits into the tile. What is a head to the tile
scheduler is then such a group of `pack` heads.
"""

from dataclasses import dataclass

from fa4gen.ir.program import Define
from fa4gen.ir.schedule import Schedule

from .lengths import own_ends

PACK = "pack_gqa"
DIVISOR = "cute.FastDivmodDivisorV2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Text of the places of queries, for tiles of `rows` rows, `instances` of them a CTA."""

    packed: bool
    varlen: bool  # sequences one behind the other, with bounds in memory
    rows: int
    instances: int

    @property
    def of_instance(self) -> str:
        """Queries in the tile of one instance."""
        return "queries" if self.packed else str(self.rows)

    @property
    def of_tile(self) -> str:
        """Queries in a CTA's tile."""
        if not self.packed:
            return str(self.rows * self.instances)
        return f"{self.instances} * queries" if self.instances > 1 else "queries"

    def first(self, instance: int | str) -> str:
        """The first query of an instance's tile; text for a number known at run time."""
        if instance == 0:
            return f"m_block * {self.of_tile}"
        if isinstance(instance, int) and not self.packed:
            return f"m_block * {self.of_tile} + {instance * self.rows}"
        return f"m_block * {self.of_tile} + {instance} * {self.of_instance}"

    def coordinates(self, column: str, row: str) -> tuple[str, ...]:
        """TMA coordinates of a box of Q."""
        place = (f"q_start + {row}", "head", "0") if self.varlen else (row, "head", "batch")
        return (column, "0", *place) if self.packed else (column, *place)

    def out_coordinates(self, column: str, row: str) -> tuple[str, ...]:
        """TMA coordinates of a box of O, which ends where the sequence does."""
        if not self.varlen:
            return self.coordinates(column, row)
        place = (f"o_skip + {row}", "head", "o_end")
        return (column, "0", *place) if self.packed else (column, *place)

    def armed(self, row_bytes: int) -> str:
        """Bytes that boxes bring, for `row_bytes` of them a row; '' if they fill their tiles."""
        return f"pack * queries * {row_bytes}" if self.packed else ""

    @property
    def heads(self) -> str:
        """What the tile scheduler has of heads, in the host function."""
        return "q.shape[2] // pack" if self.packed else "q.shape[2]"

    @property
    def ratio(self) -> str:
        """How many of these share a head of K and V, in the host function."""
        return "q.shape[2] // k.shape[2]" + (" // pack" if self.packed else "")

    def host(self) -> tuple[Define, ...]:
        """What the host function computes first."""
        if not self.packed:
            return ()
        return (
            Define(name="pack", text=f"packed_heads(q.shape[2] // k.shape[2], {self.rows})"),
            Define(name="queries", text=f"{self.rows} // pack"),
            Define(name="by_pack", text=f"{DIVISOR}(pack)"),
        )

    def parameters(self) -> tuple[tuple[str, str], ...]:
        """What the kernel gets of it; the host function has them under the same names."""
        if not self.packed:
            return ()
        return (("pack", "Int32"), ("queries", "Int32"), ("by_pack", DIVISOR))


def queries(schedule: Schedule, rows: int) -> Queries:
    """For tiles of `rows` rows an instance."""
    return Queries(
        packed=PACK in schedule.features,
        varlen=own_ends(schedule, "q"),
        rows=rows,
        instances=schedule.index.count,
    )
