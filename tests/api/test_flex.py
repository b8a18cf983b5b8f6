"""`flex_attention` around its kernels: what reaches them, what is compiled, what is refused."""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

import fa4gen
from fa4gen.api import session
from fa4gen.bench.runner.modifications import MODIFICATIONS, Sizes
from fa4gen.diag import Fa4genError
from fa4gen.flex.interpret import interpret
from fa4gen.runtime import launch
from tests.flex.emulated import distance, reference

TILES = {"sm_90a": (128, 128), "sm_100a": (256, 128)}
BACKWARD_TILES = {"sm_90a": (64, 128), "sm_100a": (128, 128)}


class Kernel:
    """What the machine code of a problem computes, from the arguments that it is given alone."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem

    def __call__(
        self, q: Any, k: Any, v: Any, o: Any, lse: Any, scale: float, num_sms: int, *more: Any
    ) -> None:
        given = list(more)
        lists = [given.pop(0) for _ in range(4 if "block_list" in self.problem.features else 0)]
        out, rows = self.attend(q, k, v, scale, lists, given, TILES[self.problem.target])
        o.copy_(out.transpose(1, 2))
        lse.copy_(rows)

    def attend(
        self, q: Any, k: Any, v: Any, scale: float, lists: Any, given: Any, tile: tuple[int, int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        p = self.problem
        numbers = [given.pop(0) for _ in p.modifiers.numbers]
        assert len(given) == len(p.modifiers.tensors)
        q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        scores = q @ k.transpose(-1, -2) * scale
        names = ("batch", "head", "query", "key")
        places = {
            name: torch.arange(n).view([n if i == d else 1 for i in range(4)])
            for d, (name, n) in enumerate(zip(names, scores.shape, strict=True))
        }
        if p.modifiers.score:
            scores = self.value(p.modifiers.score, {"score": scores, **places}, numbers, given)
        seen = torch.ones_like(scores, dtype=torch.bool)
        if p.causal:
            seen = places["key"] <= places["query"] + k.shape[2] - q.shape[2]
        if lists:
            seen = self.listed(lists, places, numbers, given, tile)
        scores = scores.masked_fill(~seen, -math.inf)
        rows = scores.logsumexp(-1)
        blind = (rows == -math.inf)[..., None]
        weights = scores.masked_fill(blind, 0.0).softmax(-1).masked_fill(blind, 0.0)
        return weights @ v, rows

    def value(self, e: Any, places: Any, numbers: Any, tensors: Any) -> torch.Tensor:
        (found,) = interpret(e, places, numbers=numbers, tensors=tensors)
        return found

    def listed(
        self, lists: Any, places: Any, numbers: Any, tensors: Any, tile: tuple[int, int]
    ) -> torch.Tensor:
        rows, keys = tile
        counts, indices, full_counts, full_indices = lists
        kinds = torch.zeros(*indices.shape[:3], -(-places["key"].numel() // keys)).int()
        for place in torch.cartesian_prod(*(torch.arange(n) for n in counts.shape)).tolist():
            b, h, i = place
            kinds[b, h, i, indices[b, h, i, : counts[b, h, i]].long()] = 1
            kinds[b, h, i, full_indices[b, h, i, : full_counts[b, h, i]].long()] = 2
        b, h, q, k = (places[n] for n in ("batch", "head", "query", "key"))
        kind = kinds[b, h, q // rows, k // keys]
        own = torch.tensor(True)
        if self.problem.modifiers.mask:
            own = self.value(self.problem.modifiers.mask, places, numbers, tensors)
        return (kind == 2) | ((kind == 1) & own)


class Backward(Kernel):
    """The same for a backward: gradients by autograd, from the functions that the kernel has."""

    def __call__(self, *given: Any) -> None:
        q, k, v, out, d_out, lse, d_lse, dq, dk, dv, lse_rows, delta_rows, sums = given[:13]
        scale, _, *rest = given[13:]
        p, leaves = self.problem, [t.double().requires_grad_() for t in (q, k, v)]
        assert all(t.stride(-1) == 1 for t in (q, k, v, out, d_out, dq, dk, dv))
        assert {t.dtype for t in (lse, d_lse, lse_rows, delta_rows, sums)} == {torch.float32}
        lists = [rest.pop(0) for _ in range(4 if "query_list" in p.features else 0)]
        if lists:
            counts, indices, full_counts, full_indices = lists
            queries = -(-q.shape[1] // BACKWARD_TILES[p.target][0])
            lists = [*turned(counts, indices, queries), *turned(full_counts, full_indices, queries)]
        with torch.enable_grad():
            own, rows = self.attend(*leaves, scale, lists, rest, BACKWARD_TILES[p.target])
            there = ~rows.isinf()
            total = (own * d_out.transpose(1, 2)).sum() + (rows[there] * d_lse[there]).sum()
            made = torch.autograd.grad(total, leaves)
        for into, one in zip((dq, dk, dv), made, strict=True):
            into.copy_(one)


def turned(counts: Any, indices: Any, queries: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Lists of queries for each tile of keys as lists of keys for each block of queries."""
    seen = torch.zeros(*counts.shape, queries, dtype=torch.int8)
    for place in torch.cartesian_prod(*(torch.arange(n) for n in counts.shape)).tolist():
        b, h, j = place
        seen[b, h, j, indices[b, h, j, : counts[b, h, j]].long()] = 1
    seen = seen.mT.contiguous()
    return seen.sum(-1).int(), seen.argsort(dim=-1, descending=True, stable=True).int()


@pytest.fixture(params=["sm_90a", "sm_100a"])
def compiled(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """CPU tensors count as a device; yields the problems that were compiled, in order."""
    made: list[Any] = []

    def load(problem: Any, _options: Any) -> Kernel:
        made.append(problem)
        return Backward(problem) if problem.kernel == "attention_backward" else Kernel(problem)

    facts = launch.Device(target=request.param, num_sms=132)
    monkeypatch.setattr(launch, "device_of_tensor", lambda _tensor: facts)
    monkeypatch.setattr(launch, "load_function", load)
    monkeypatch.setattr(session.jit, "shared_object", lambda _candidate, problem, _options: problem)
    tiles = {"attention_forward": TILES, "attention_backward": BACKWARD_TILES}
    monkeypatch.setattr(
        session.jit, "tile_of", lambda _, problem, __: tiles[problem.kernel][request.param]
    )
    token = session.CURRENT.set(session.Session(parent=session.PROCESS))
    try:
        yield made
    finally:
        session.CURRENT.reset(token)


def inputs(x: Sizes, heads_kv: int = 2) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    sizes = ((x.heads, x.seqlen_q), (heads_kv, x.seqlen_k), (heads_kv, x.seqlen_k))
    return tuple(torch.randn(x.batch, h, n, 64, generator=generator).bfloat16() for h, n in sizes)


def mask_of(x: Sizes, mask_mod: Any, block: Any = 128) -> BlockMask:
    sizes = x.batch, x.heads, x.seqlen_q, x.seqlen_k
    return create_block_mask(mask_mod, *sizes, device="cpu", BLOCK_SIZE=block)


def close(x: Sizes, score_mod: Any, mask: Any) -> None:
    q, k, v = inputs(x)
    out, lse = fa4gen.flex_attention(
        q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True, return_lse=True
    )
    moved = (t.transpose(1, 2).double() for t in (q, k, v))
    exact, exact_lse = reference(x, *moved, score_mod, mask)
    assert out.shape == q.shape
    assert distance(out, exact.transpose(1, 2))[0] < 2e-2
    assert distance(lse, exact_lse)[0] < 1e-4


@pytest.mark.parametrize("name", ["causal", "capped_alibi_document", "padding", "tree"])
def test_modifications(compiled: list[Any], name: str) -> None:
    x = Sizes(batch=2, heads=4, seqlen_q=300, seqlen_k=300)
    score_mod, mask_mod = MODIFICATIONS[name](x)
    close(x, score_mod, mask_of(x, mask_mod))
    assert [p.causal for p in compiled] == [name == "causal"]


@pytest.mark.parametrize("block", [64, (128, 256), 384, (32, 512)])
def test_sparse_blocks_of_other_sizes(compiled: list[Any], block: Any) -> None:
    x = Sizes(batch=1, heads=2, seqlen_q=420, seqlen_k=530)
    close(x, None, mask_of(x, MODIFICATIONS["sliding_window"](x)[1], block))
    assert len(compiled) == 1


@pytest.mark.parametrize("block", [64, 128, 256])
def test_listed_blocks_alone_count(compiled: list[Any], block: int) -> None:
    """A mask function that hides nothing does not make blocks that are not listed visible."""
    x = Sizes(batch=1, heads=2, seqlen_q=4 * block, seqlen_k=6 * block)
    kept = torch.rand(1, 2, 4, 6, generator=torch.Generator().manual_seed(1)).argsort(-1)
    counts = torch.full((1, 2, 4), 2, dtype=torch.int32)
    indices = torch.where(torch.arange(6) < 2, kept, -1).int()
    mask = BlockMask.from_kv_blocks(
        counts, indices, BLOCK_SIZE=block, seq_lengths=(4 * block, 6 * block)
    )
    close(x, None, mask)
    assert len(compiled) == 1


def test_lists_that_are_not_causal_are_kept(compiled: list[Any]) -> None:
    x = Sizes(batch=1, heads=2, seqlen_q=256, seqlen_k=256)
    mask = mask_of(x, MODIFICATIONS["causal"](x)[1])
    mask.kv_num_blocks[0, 0, 1] = 0  # a block of the diagonal is taken out
    close(x, None, mask)
    assert [p.causal for p in compiled] == [False]


def test_the_same_expression_compiles_once(compiled: list[Any]) -> None:
    """Another length, batch, tensor, number or function object of the same meaning."""

    def window(size: int) -> Any:
        return lambda b, h, q, k: (q - k <= size) & (q >= k)

    def capped(cap: float, bias: torch.Tensor) -> Any:
        return lambda s, b, h, q, k: cap * torch.tanh(s / cap) + bias[h]

    for length, batch, size in ((200, 1, 40), (330, 2, 70)):
        x = Sizes(batch=batch, heads=4, seqlen_q=length, seqlen_k=length)
        close(x, capped(size / 3, torch.rand(4)), mask_of(x, window(size)))
    assert len(compiled) == 1
    x = Sizes(batch=1, heads=4, seqlen_q=200, seqlen_k=200)
    close(x, None, mask_of(x, lambda b, h, q, k: q - k <= 40))
    assert len(compiled) == 2


def test_no_keys_and_no_queries(compiled: list[Any]) -> None:
    q, k = torch.randn(1, 2, 5, 64).bfloat16(), torch.randn(1, 2, 0, 64).bfloat16()
    out, lse = fa4gen.flex_attention(q, k, k, return_lse=True)
    assert not out.any()
    assert bool((lse == -math.inf).all())
    assert fa4gen.flex_attention(q[:, :, :0], q, q).shape == (1, 2, 0, 64)
    assert compiled == []


def refused(code: str, words: str, *args: Any, **named: Any) -> None:
    with pytest.raises(Fa4genError) as caught:
        fa4gen.flex_attention(*args, **named)
    (found,) = caught.value.diagnostics
    assert (found.code, words in str(caught.value)) == (code, True), str(caught.value)


@pytest.mark.parametrize(
    ("name", "block"),
    [
        ("causal", 128),
        ("softcap", 128),
        ("capped_alibi_document", 128),
        ("tree", 96),
        ("padding", 128),
    ],
)
def test_gradients_are_those_of_the_functions(name: str, block: int, compiled: list[Any]) -> None:
    """Against autograd through the user's own functions, in float64; also through the LSE."""
    x = Sizes(batch=2, heads=4, seqlen_q=200, seqlen_k=200)
    score_mod, mask_mod = MODIFICATIONS[name](x)
    mask = mask_of(x, mask_mod, block) if mask_mod else None
    q, k, v = (t.requires_grad_() for t in inputs(x))
    out, lse = fa4gen.flex_attention(
        q, k, v, score_mod=score_mod, block_mask=mask, enable_gqa=True, return_lse=True
    )
    there = ~lse.isinf()
    got = torch.autograd.grad(out.float().square().sum() + lse[there].sin().sum(), (q, k, v))
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    own, rows = reference(x, *(t.transpose(1, 2) for t in leaves), score_mod, mask)
    wanted = torch.autograd.grad(own.square().sum() + rows[there].sin().sum(), leaves)
    for g, e in zip(got, wanted, strict=True):
        assert g.shape == e.shape
        assert (g.double() - e).norm() <= 0.02 * e.norm()
    assert [p.kernel for p in compiled] == ["attention_forward", "attention_backward"]


@pytest.mark.usefixtures("compiled")
def test_gradients_are_refused_where_they_would_be_wrong() -> None:
    """Captured tensors that changed, an order of sums, gradients of gradients."""
    x = Sizes(batch=1, heads=4, seqlen_q=64, seqlen_k=64)
    q, k, v = (t.requires_grad_() for t in inputs(x, heads_kv=4))
    bias = torch.zeros(4)
    out = fa4gen.flex_attention(q, k, v, score_mod=lambda s, b, h, q, k: s + bias[h])
    bias += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()
    torch.use_deterministic_algorithms(True)
    try:
        refused("FA0809", "in any order", q, k, v)
    finally:
        torch.use_deterministic_algorithms(False)
    out = fa4gen.flex_attention(q, k, v)
    (once,) = torch.autograd.grad(out.float().square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        once.float().sum().backward()


def test_nothing_to_see_has_no_gradient(compiled: list[Any]) -> None:
    x = Sizes(batch=1, heads=4, seqlen_q=5, seqlen_k=0)
    q, k, v = (t.requires_grad_() for t in inputs(x))
    fa4gen.flex_attention(q, k, v, enable_gqa=True).sum().backward()
    assert q.grad is not None
    assert not q.grad.any()
    assert compiled == []


def test_what_is_refused(compiled: list[Any]) -> None:
    x = Sizes(batch=1, heads=4, seqlen_q=256, seqlen_k=256)
    q, k, v = inputs(x, heads_kv=4)
    refused("FA0802", "`query` has 3 dimensions", q[0], k, v)
    refused("FA0802", "enable_gqa=True", q, k[:, :2], v[:, :2])
    refused("FA0803", "`key` is torch.float16", q, k.half(), v)
    refused("FA0806", "softmax_scale", q, k, v, scale=-1.0)
    refused("FA0809", "BLOCK_M", q, k, v, kernel_options={"BLOCK_M": 64})
    mask = mask_of(x, MODIFICATIONS["causal"](x)[1])
    refused("FA0822", "is for lengths (256, 256)", q[:, :, :128], k, v, block_mask=mask)
    refused("FA0822", "expected a BlockMask", q, k, v, block_mask=lambda b, h, q, k: q >= k)
    refused("FA0820", "branches", q, k, v, score_mod=lambda s, b, h, q, k: s if q > k else -s)
    far = torch.zeros(4, device="meta")
    refused("FA0821", "is on meta", q, k, v, score_mod=lambda s, b, h, q, k: s + far[h])
    wide = torch.zeros(4).double()
    refused("FA0821", "torch.float64", q, k, v, score_mod=lambda s, b, h, q, k: s + wide[h])
    leaf = torch.zeros(4, requires_grad=True)
    refused("FA0807", "captured tensor", q, k, v, score_mod=lambda s, b, h, q, k: s + leaf[h])
    assert compiled == []


def test_the_code_of_the_guide_runs(compiled: list[Any]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "flex.md").read_text()
    (code,) = re.findall(r"^```python gpu\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code.replace('"cuda"', '"cpu"'), "flex.md", "exec"), names)
    assert names["out"].shape == (1, 8, 512, 64)
    assert [p.features for p in compiled] == [("block_list", "score_mod", "mask_mod")]
    assert len(names["lse"].isfinite().unique()) == 1
