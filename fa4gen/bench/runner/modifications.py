"""Twenty modifications of attention that users of FlexAttention publish, as they write them.

Each maker gets sizes and a device, and returns (score_mod, mask_mod), one of them perhaps None.
Tensors are made from a seed of their own, so that two processes have the same.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Maker = Callable[["Sizes"], tuple[Any, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Of one problem; `dtype` is that of the captured float tensors."""

    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    device: str = "cpu"
    dtype: Any = torch.float32

    def random(self, *shape: int) -> torch.Tensor:
        """Normal numbers."""
        made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        return made.to(self.dtype).to(self.device)

    def documents(self, count: int = 5) -> torch.Tensor:
        """A document's number for each position, of uneven documents."""
        generator = torch.Generator().manual_seed(count)
        length = max(self.seqlen_q, self.seqlen_k)
        cuts = torch.randint(1, max(length, 2), (count - 1,), generator=generator)
        ids = (torch.arange(length)[:, None] >= cuts.sort().values[None]).sum(1)
        return ids.to(torch.int32).to(self.device)


def causal(x: Sizes) -> tuple[Any, Any]:
    """A query sees the keys up to itself."""
    del x
    return None, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx


def alibi(x: Sizes) -> tuple[Any, Any]:
    """Linear biases, a slope for each head (Press et al., 2022)."""
    heads = x.heads

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        slope = torch.exp2(-((h + 1) * 8.0 / heads))
        return score + slope * (kv_idx - q_idx)

    return score_mod, None


def alibi_table(x: Sizes) -> tuple[Any, Any]:
    """The same with slopes from a tensor, causal."""
    slopes = torch.tensor([2.0 ** (-8 * (n + 1) / x.heads) for n in range(x.heads)]).to(x.device)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slopes[h] * torch.abs(q_idx - kv_idx)

    return score_mod, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx


def softcap(x: Sizes) -> tuple[Any, Any]:
    """Scores bent to below a cap (Gemma 2)."""
    del x
    cap = 20.0

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return cap * torch.tanh(score / cap)

    return score_mod, None


def relative_bias(x: Sizes) -> tuple[Any, Any]:
    """A learned bias for each distance and head (T5 without buckets)."""
    table = x.random(x.heads, x.seqlen_q + x.seqlen_k)
    offset = x.seqlen_q

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + table[h, kv_idx - q_idx + offset]

    return score_mod, None


def full_bias(x: Sizes) -> tuple[Any, Any]:
    """A bias for each pair of positions, as in structure prediction."""
    bias = x.random(x.seqlen_q, x.seqlen_k)
    return lambda score, b, h, q_idx, kv_idx: score + bias[q_idx, kv_idx], None


def sliding_window(x: Sizes) -> tuple[Any, Any]:
    """The last 100 keys."""
    del x
    window = 100

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= window)

    return None, mask_mod


def dilated_window(x: Sizes) -> tuple[Any, Any]:
    """Every second key of a window on both sides (Longformer)."""
    del x
    window, dilation = 150, 2

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        distance = torch.abs(q_idx - kv_idx)
        return (distance <= window) & (distance % dilation == 0)

    return None, mask_mod


def prefix_lm(x: Sizes) -> tuple[Any, Any]:
    """All see the prefix, and what came before."""
    prefix = x.seqlen_k // 3

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < prefix) | (q_idx >= kv_idx)

    return None, mask_mod


def prefix_lm_lengths(x: Sizes) -> tuple[Any, Any]:
    """A prefix length for each sequence of the batch."""
    prefix = (torch.arange(x.batch) * 37 + 50).to(x.device)

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.logical_or(kv_idx < prefix[b], q_idx >= kv_idx)

    return None, mask_mod


def document(x: Sizes) -> tuple[Any, Any]:
    """Positions of one document see each other."""
    ids = x.documents()
    return None, lambda b, h, q_idx, kv_idx: ids[q_idx] == ids[kv_idx]


def causal_document(x: Sizes) -> tuple[Any, Any]:
    """The same, causal, put together by `and_masks`."""
    from torch.nn.attention.flex_attention import and_masks

    ids = x.documents(4).long()

    def same(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return ids[q_idx] == ids[kv_idx]

    return None, and_masks(same, lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)


def neighbourhood(x: Sizes) -> tuple[Any, Any]:
    """A square of a picture around each pixel (NATTEN), pixels row by row."""
    width = max(int(math.sqrt(x.seqlen_q)), 1)
    reach = 3

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        dx = torch.abs(q_idx % width - kv_idx % width)
        dy = torch.abs(q_idx // width - kv_idx // width)
        return (dx <= reach) & (dy <= reach)

    return None, mask_mod


def sinks(x: Sizes) -> tuple[Any, Any]:
    """A window that also sees the first keys (StreamingLLM)."""
    del x
    count, window = 4, 64

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & ((kv_idx < count) | (q_idx - kv_idx <= window))

    return None, mask_mod


def sink_scores(x: Sizes) -> tuple[Any, Any]:
    """The first key's score is a learned number for each head."""
    logits = x.random(x.heads)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return torch.where(kv_idx == 0, logits[h], score)

    return score_mod, None


def causal_offset(x: Sizes) -> tuple[Any, Any]:
    """Decoding: queries are the last positions; the offset is a tensor, as caches have it."""
    offset = torch.tensor(x.seqlen_k - x.seqlen_q, dtype=torch.int32, device=x.device)
    return None, lambda b, h, q_idx, kv_idx: q_idx + offset >= kv_idx


def random_blocks(x: Sizes) -> tuple[Any, Any]:
    """Blocks of 64 keys and queries, kept at random for each head (BigBird)."""
    generator = torch.Generator().manual_seed(7)
    shape = (x.heads, -(-x.seqlen_q // 64), -(-x.seqlen_k // 64))
    kept = (torch.rand(shape, generator=generator) < 0.4).to(x.device)
    return None, lambda b, h, q_idx, kv_idx: kept[h, q_idx // 64, kv_idx // 64]


def padding(x: Sizes) -> tuple[Any, Any]:
    """Keys up to each sequence's own length."""
    lengths = (x.seqlen_k - torch.arange(x.batch) * 31 - 5).to(x.device)
    return None, lambda b, h, q_idx, kv_idx: kv_idx < lengths[b]


def tree(x: Sizes) -> tuple[Any, Any]:
    """Ancestors in a tree of guesses, from a table of truth values (speculative decoding)."""
    kept = (x.random(x.seqlen_q, x.seqlen_k) > 0).to(x.device)
    return None, lambda b, h, q_idx, kv_idx: kept[q_idx, kv_idx]


def capped_alibi_document(x: Sizes) -> tuple[Any, Any]:
    """Soft-capping, then ALiBi, inside of documents and causal."""
    ids, heads, cap = x.documents(3), x.heads, 30.0

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        capped = cap * torch.tanh(score / cap)
        return capped - (q_idx - kv_idx).abs() * torch.exp2(-((h + 1) * 8.0 / heads))

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (ids[q_idx] == ids[kv_idx])

    return score_mod, mask_mod


MODIFICATIONS: dict[str, Maker] = {
    f.__name__: f
    for f in (
        causal,
        alibi,
        alibi_table,
        softcap,
        relative_bias,
        full_bias,
        sliding_window,
        dilated_window,
        prefix_lm,
        prefix_lm_lengths,
        document,
        causal_document,
        neighbourhood,
        sinks,
        sink_scores,
        causal_offset,
        random_blocks,
        padding,
        tree,
        capped_alibi_document,
    )
}
