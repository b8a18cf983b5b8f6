"""What a problem may ask for beside head dims, dtype and the causal mask, each on or off.

A schedule says in `serves: {features: […]}` which of them it can be built with. One that is off
costs nothing; one that is on brings values that stay open until the call.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from .inputs import Input

OPEN = 2**31 - 1  # a bound of a window that is none
INTEGERS = "make_fake_tensor(Int32, (cute.sym_int(),), (1,))"  # any number of them
TABLE = "make_fake_tensor(Int32, (cute.sym_int(), cute.sym_int()), (cute.sym_int64(), 1))"
PAGES = MappingProxyType({f"pages_{n}": n for n in (16, 32, 64, 128)})  # rows of the least page


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
            Feature(
                name="softcap",
                doc="a score s (scaled) becomes softcap tanh(s / softcap)",
                inputs=(Input(name="softcap", type="Float32", example="Float32(1.0)"),),
            ),
            Feature(
                name="alibi",
                doc="slope |i + d - j| is taken off the score of query i and key j, after softcap",
                inputs=(
                    Input(
                        name="slopes",  # (batch, heads)
                        type="cute.Tensor",
                        example="make_fake_tensor(Float32, (b, h), "
                        "(cute.sym_int64(), cute.sym_int64()))",
                    ),
                ),
            ),
            Feature(
                name="sinks",
                doc="a logit of each head joins the sum of every row, without a value",
                inputs=(
                    Input(
                        name="sinks",  # (heads,)
                        type="cute.Tensor",
                        example="make_fake_tensor(Float32, (h,), (cute.sym_int64(),))",
                    ),
                ),
            ),
            Feature(
                name="varlen_q",
                doc="sequences of queries packed one behind the other in a batch of one; "
                "cu_seqlens_q: where each begins, and the end of the last",
                inputs=(Input(name="cu_seqlens_q", type="cute.Tensor", example=INTEGERS),),
            ),
            Feature(
                name="varlen_k",
                doc="the same for keys and values",
                inputs=(Input(name="cu_seqlens_k", type="cute.Tensor", example=INTEGERS),),
            ),
            Feature(
                name="seqused_k",
                doc="of each sequence's keys only the first seqused_k are there",
                inputs=(Input(name="seqused_k", type="cute.Tensor", example=INTEGERS),),
            ),
            *(
                Feature(
                    name=name,
                    doc=f"keys and values lie in pages (pages, page_size, heads_kv, head_dim) of "
                    f"{rows} rows, or a multiple; page_table (batch, most pages): those of each "
                    "sequence, in order",
                    inputs=(Input(name="page_table", type="cute.Tensor", example=TABLE),),
                )
                for name, rows in PAGES.items()
            ),
            Feature(
                name="split_kv",
                doc="the keys of a tile are shared out among CTAs, whose outputs are then combined",
                inputs=(
                    Input(
                        name="o_partial",  # (splits * batch, seqlen_q, heads, head_dim_v)
                        type="cute.Tensor",
                        example="make_fake_tensor("
                        "Float32, (cute.sym_int(), sq, h, cute.sym_int()), "
                        "(*(cute.sym_int64(divisibility=4) for _ in range(3)), 1), "
                        "assumed_align=16)",
                    ),
                    Input(
                        name="lse_partial",  # (splits * batch, heads, seqlen_q)
                        type="cute.Tensor",
                        example="make_fake_tensor(Float32, (cute.sym_int(), h, sq), "
                        "(cute.sym_int64(), cute.sym_int64(), 1))",
                    ),
                ),
            ),
            Feature(
                name="pack_gqa",
                doc="rows of a query tile are those of several heads that share a head of K and V",
                inputs=(),
            ),
            Feature(
                name="block_list",
                doc="each tile visits the blocks that lists in memory name",
                inputs=tuple(
                    Input(name=name, type="cute.Tensor", example=f"open_tensor(Int32, {rank})")
                    for name, rank in (
                        ("kv_num_blocks", 3),
                        ("kv_indices", 4),
                        ("full_kv_num_blocks", 3),
                        ("full_kv_indices", 4),
                    )
                ),
            ),
            Feature(
                name="query_list",
                doc="each tile of keys visits the blocks of queries that lists in memory name",
                inputs=tuple(
                    Input(name=name, type="cute.Tensor", example=f"open_tensor(Int32, {rank})")
                    for name, rank in (
                        ("q_num_blocks", 3),
                        ("q_indices", 4),
                        ("full_q_num_blocks", 3),
                        ("full_q_indices", 4),
                    )
                ),
            ),
            Feature(name="score_mod", doc="a user's function replaces each score", inputs=()),
            Feature(name="mask_mod", doc="a user's function hides some scores", inputs=()),
            Feature(
                name="deterministic",
                doc="dQ is added up in a fixed order: the same bits each time",
                inputs=(
                    Input(
                        name="dq_turns",  # (batch, heads, blocks of queries or more): zeros
                        type="cute.Tensor",
                        example="make_fake_tensor(Int32, (b, h, cute.sym_int()), "
                        "(cute.sym_int64(), cute.sym_int64(), 1))",
                    ),
                ),
            ),
        )
    }
)


def page_rows(features: Iterable[str]) -> int:
    """Rows that every page of keys has at least, and a multiple of; 0: there are no pages."""
    return next((PAGES[name] for name in features if name in PAGES), 0)


def pages_for(page_size: int) -> str:
    """The feature that serves pages of so many rows with the fewest copies; '' if none does."""
    fit = [name for name, rows in PAGES.items() if page_size > 0 and page_size % rows == 0]
    return fit[-1] if fit else ""


def ordered(features: Iterable[str]) -> tuple[str, ...]:
    """Names of features in the order of their inputs."""
    asked = set(features)
    return tuple(name for name in FEATURES if name in asked)


def inputs(features: Iterable[str]) -> tuple[Input, ...]:
    """What `launch` takes for these features, in the order of the call."""
    return tuple(i for name in ordered(features) for i in FEATURES[name].inputs)
