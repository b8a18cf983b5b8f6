"""Gradients through `attention`, with kernels in Python that insist on what machine code needs."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fa4gen
from fa4gen.diag import Fa4genError

from .kernels import on_cpu, reference


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Any]]:
    with on_cpu(monkeypatch) as made:
        yield made


def tensors(b: int, sq: int, sk: int, h: int = 4, hk: int = 2, d: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sq + sk)
    sizes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d))
    made = [torch.randn(s, generator=generator).bfloat16() for s in sizes]
    return [t.requires_grad_() for t in made]


def exact(q: Any, k: Any, v: Any, causal: bool, through_lse: bool) -> list[torch.Tensor]:
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v)]
    out, lse = reference(*leaves, causal, q.shape[3] ** -0.5)
    total = out.sum() + (lse[~lse.isinf()].sum() if through_lse else 0)
    return [g.nan_to_num() for g in torch.autograd.grad(total, leaves)]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("through_lse", [False, True])
@pytest.mark.parametrize(("causal", "lengths"), [(False, (5, 9)), (True, (9, 5)), (True, (5, 9))])
def test_gradients_are_those_of_the_reference(
    causal: bool, lengths: tuple[int, int], through_lse: bool
) -> None:
    q, k, v = tensors(2, *lengths)
    out, lse = fa4gen.attention(q, k, v, causal=causal, return_lse=True)
    total = out.float().sum() + (lse[~lse.isinf()].sum() if through_lse else 0)
    got = torch.autograd.grad(total, (q, k, v))
    for g, e in zip(got, exact(q, k, v, causal, through_lse), strict=True):
        assert torch.allclose(g.double(), e, atol=0.05, rtol=0.02)


def test_one_input_alone_may_ask_for_its_gradient(kernels: dict[Any, Any]) -> None:
    q, k, v = (t.detach() for t in tensors(1, 4, 6))
    fa4gen.attention(q, k.requires_grad_(), v).float().sum().backward()
    assert k.grad is not None
    assert q.grad is None
    assert {p.kernel for p in kernels} == {"attention_forward", "attention_backward"}


@pytest.mark.usefixtures("kernels")
def test_views_that_tma_does_not_take() -> None:
    q, k, v = tensors(1, 4, 6)
    wide = torch.randn(1, 4, 4, 65).bfloat16().requires_grad_()
    fa4gen.attention(wide[..., 1:], k, v).float().sum().backward()
    assert wide.grad is not None
    assert torch.equal(wide.grad[..., 0], torch.zeros(1, 4, 4).bfloat16())
    fa4gen.attention(q, k, v).sum().backward()  # an expanded gradient of the output
    assert q.grad is not None


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("sq", "sk"), [(0, 5), (5, 0)])
def test_nothing_to_see_gives_zeros(sq: int, sk: int) -> None:
    q, k, v = tensors(1, sq, sk)
    fa4gen.attention(q, k, v).float().sum().backward()
    assert all(t.grad is not None and not t.grad.any() for t in (q, k, v))


@pytest.mark.usefixtures("kernels")
def test_opcheck() -> None:
    q, k, v = tensors(1, 5, 7)
    with torch.no_grad():
        out, lse = fa4gen.attention(q, k, v, return_lse=True)
    torch.library.opcheck(torch.ops.fa4gen.forward.default, (q, k, v, True, None))
    given = [t.detach() for t in (q, k, v, out, lse, torch.ones_like(out), torch.ones_like(lse))]
    torch.library.opcheck(torch.ops.fa4gen.backward.default, (*given, False, 0.2))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("more", [{"window": (3, None)}, {"softcap": 15.0}])
def test_what_has_no_gradient_yet_is_refused(more: dict[str, Any]) -> None:
    q, k, v = tensors(1, 4, 6)
    with pytest.raises(Fa4genError, match="FA0807"):
        fa4gen.attention(q, k, v, **more)


@pytest.mark.usefixtures("kernels")
def test_sequences_of_their_own_lengths_are_refused() -> None:
    q, k, v = tensors(1, 4, 4)
    ends = torch.tensor([0, 4], dtype=torch.int32)
    more = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    with pytest.raises(Fa4genError, match="FA0807"):
        fa4gen.flash_attn_varlen_func(q[0], k[0], v[0], **more)


@pytest.mark.usefixtures("kernels")
def test_an_order_of_sums_is_refused_where_it_matters() -> None:
    q, k, v = tensors(1, 4, 6)
    with pytest.raises(Fa4genError, match=r"FA0809.*deterministic"):
        fa4gen.flash_attn_func(q, k, v, deterministic=True)
    with torch.no_grad():
        fa4gen.flash_attn_func(q, k, v, deterministic=True)
    out, _ = fa4gen.flash_attn_func(q, k, v)
    assert out.requires_grad
