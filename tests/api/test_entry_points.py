"""flash-attn's and PyTorch's signatures: the same meaning, or a refusal by name."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fa4gen
from fa4gen.diag import Fa4genError
from tests.api.kernels import on_cpu, reference

pytestmark = pytest.mark.usefixtures("kernels")


@pytest.fixture(name="kernels")
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with on_cpu(monkeypatch):
        yield


def tensors(sq: int, sk: int, h: int = 4, hk: int = 2) -> tuple[Any, Any, Any]:
    shapes = ((2, sq, h, 64), (2, sk, hk, 64), (2, sk, hk, 64))
    q, k, v = (torch.randn(s).to(torch.bfloat16) for s in shapes)
    return q, k, v


@pytest.mark.parametrize("lengths", [(9, 9), (5, 9), (9, 5), (1, 8), (8, 1)])
@pytest.mark.parametrize("causal", [False, True])
def test_sdpa_is_aligned_top_left(lengths: tuple[int, int], causal: bool) -> None:
    q, k, v = (t.transpose(1, 2) for t in tensors(*lengths, 4, 4))
    ours = fa4gen.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.2)
    mask = torch.ones(lengths, dtype=torch.bool).tril() if causal else None
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q.double(), k.double(), v.double(), attn_mask=mask, scale=0.2
    )
    assert torch.allclose(ours.double(), theirs, atol=1e-3, rtol=1e-2)


def test_sdpa_refuses_what_it_cannot_do() -> None:
    q, k, v = (t.transpose(1, 2) for t in tensors(4, 4))
    sdpa = fa4gen.scaled_dot_product_attention
    sdpa(q, k, v, enable_gqa=True)
    for code, more in (
        ("FA0802", {}),
        ("FA0809", {"attn_mask": torch.ones(4, 4, dtype=torch.bool)}),
        ("FA0809", {"dropout_p": 0.1}),
    ):
        with pytest.raises(Fa4genError, match=code):
            sdpa(q, k, v, **more)


@pytest.mark.parametrize("function", [fa4gen.flash_attn_func, fa4gen.flash_attn_varlen_func])
def test_flash_attn_returns_a_pair(function: Any) -> None:
    q, k, v = tensors(5, 9)
    out, lse = function(q, k, v, causal=True, return_lse=True, softcap=0.0, pack_gqa=True)
    ref, rows = reference(q, k, v, True, 64**-0.5)
    assert torch.allclose(out.double(), ref, atol=1e-3, rtol=1e-2)
    assert torch.allclose(lse.double(), rows, atol=1e-4)
    assert function(q, k, v)[1] is None


@pytest.mark.parametrize(
    ("window", "causal", "as_causal"),
    [
        ((None, None), False, False),
        ((-1, -1), True, True),
        ((None, 0), False, True),
        ((-1, 0), False, True),
        ((-1, 3), True, True),
    ],
)
def test_windows_that_are_none(window: Any, causal: bool, as_causal: bool) -> None:
    q, k, v = tensors(5, 9)
    out, _ = fa4gen.flash_attn_func(q, k, v, window_size=window, causal=causal)
    assert torch.equal(out, fa4gen.attention(q, k, v, causal=as_causal))


def test_windows_caps_slopes_and_sinks_mean_what_flash_attn_says() -> None:
    q, k, v = tensors(5, 9)
    slopes, sink = torch.tensor([0.5, 0.25, 0.125, 1.0]), torch.arange(4.0).bfloat16()
    for function in (fa4gen.flash_attn_func, fa4gen.flash_attn_varlen_func):
        out, lse = function(
            q,
            k,
            v,
            causal=True,
            window_size=(3, -1),
            softcap=15.0,
            alibi_slopes=slopes,
            learnable_sink=sink,
            return_lse=True,
        )
        ref, rows = reference(
            q, k, v, True, 64**-0.5, 3, 0, 15.0, slopes.expand(q.shape[0], 4), sink.float()
        )
        assert torch.allclose(out.double(), ref, atol=1e-3, rtol=1e-2)
        assert torch.allclose(lse.double(), rows, atol=1e-4)


@pytest.mark.parametrize(
    "more",
    [
        {"window_size": (-3, 3)},
        {"window_size": (None, -2), "causal": True},
        {"score_mod": print},
        {"dropout_p": 0.1},
        {"seqused_q": torch.tensor([5, 5])},
    ],
    ids=lambda more: next(iter(more)),
)
def test_what_the_kernels_lack_is_refused_by_name(more: dict[str, Any]) -> None:
    q, k, v = tensors(5, 5)
    with pytest.raises(Fa4genError, match=f"FA0809.*`{next(iter(more))}`"):
        fa4gen.flash_attn_varlen_func(q, k, v, **more)


def test_a_misspelt_argument_is_a_type_error_and_order_is_no_argument() -> None:
    q, k, v = tensors(5, 5)
    with pytest.raises(TypeError, match="softcapp"):
        fa4gen.flash_attn_func(q, k, v, softcapp=1.0)
    with pytest.raises(TypeError):
        fa4gen.flash_attn_func(q, k, v, None)
    with pytest.raises(TypeError):
        fa4gen.flash_attn_varlen_func(q, k, v, torch.tensor([0, 5]))


def test_lengths_as_tensors_make_no_new_kernel() -> None:
    q, k, v = tensors(5, 5)
    most = torch.tensor(5)
    outs = [
        fa4gen.flash_attn_varlen_func(q, k, v, max_seqlen_q=most, max_seqlen_k=most)[0]
        for _ in range(20)
    ]
    assert all(torch.equal(outs[0], o) for o in outs)


def test_new_keys_go_behind_those_of_the_cache() -> None:
    _, keys, values = tensors(1, 20)
    q, k, v = tensors(3, 3)
    whole = (torch.cat([keys[:, :9], k], 1), torch.cat([values[:, :9], v], 1))
    out, lse = fa4gen.flash_attn_with_kvcache(
        q, keys, values, k, v, cache_seqlens=9, causal=True, return_softmax_lse=True
    )
    ref, rows = reference(q, *whole, True, 64**-0.5)
    assert torch.allclose(out.double(), ref, atol=1e-3, rtol=1e-2)
    assert torch.allclose(lse.double(), rows, atol=1e-4)
    assert torch.equal(keys[:, 9:12], k)
    assert torch.equal(values[:, 9:12], v)


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("FA0803", {"cache_seqlens": torch.tensor([3, 4])}),
        ("FA0802", {"cache_seqlens": 21}),
        ("FA0803.*`page_table`", {"block_table": torch.zeros(2, 1)}),
        ("FA0804.*`page_table`", {"page_table": torch.zeros(2, 1, dtype=torch.int32).to("meta")}),
        ("FA0809", {"rotary_cos": torch.ones(1)}),
        ("FA0809", {"window_size": (4, -2)}),
    ],
)
def test_caches_that_are_refused(code: str, more: dict[str, Any]) -> None:
    q, keys, values = tensors(1, 20)
    with pytest.raises(Fa4genError, match=code):
        fa4gen.flash_attn_with_kvcache(q, keys, values, **more)
