"""Keys and values in pages: a pool of them in which all that no sequence uses is NaN."""

from typing import TYPE_CHECKING

from .attention import AttentionProblem, Inputs

if TYPE_CHECKING:
    import torch

NO_PAGES = (2**30, -7)  # what stands in the table behind a sequence's last page, beside NaN pages
SPARE = 3  # pages of nobody


def paged(
    problem: AttentionProblem, inputs: Inputs, seed: int
) -> "tuple[torch.Tensor, torch.Tensor, torch.Tensor]":
    """(k, v, table): pools (pages, page_size, heads_kv, width) in any order, and the pages of each
    sequence, int32 (batch, most pages)."""
    import torch

    size, most = problem.page_size, -(-problem.seqlen_k // problem.page_size)
    lengths = problem.used_k or (problem.seqlen_k,) * problem.batch
    counts = [-(-n // size) for n in lengths]
    order = torch.randperm(sum(counts) + SPARE, generator=torch.Generator().manual_seed(seed))
    table = torch.empty(problem.batch, most, dtype=torch.int32)
    pools = [
        torch.full((len(order), size, *t.shape[2:]), float("nan"), dtype=t.dtype)
        for t in (inputs.k, inputs.v)
    ]
    taken = iter(order.tolist())
    spare = order[len(order) - SPARE :].tolist()
    for b, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        unused = (*NO_PAGES, *spare)
        table[b] = torch.tensor([unused[n % len(unused)] for n in range(most)])
        for n in range(count):
            page = next(taken)
            table[b, n] = page
            rows = slice(n * size, min(length, (n + 1) * size))
            for pool, t in zip(pools, (inputs.k, inputs.v), strict=True):
                pool[page, : rows.stop - rows.start] = t[b, rows]
    return pools[0], pools[1], table
