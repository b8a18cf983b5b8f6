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
    more = (3, None, 15.0, torch.ones(4), torch.zeros(4))
    torch.library.opcheck(torch.ops.fa4gen.backward.default, (*given, False, 0.2, *more))
    torch.library.opcheck(torch.ops.fa4gen.forward.default, (q, k, v, True, None, *more))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("causal", "window", "softcap", "biased"),
    [
        (False, (3, None), None, False),
        (True, (4, 1), 15.0, True),
        (False, (-2, 6), 2.0, True),
        (True, None, 1.5, False),
    ],
)
def test_gradients_with_features_are_those_of_the_reference(
    causal: bool, window: Any, softcap: Any, biased: bool
) -> None:
    """Also of sinks, and through the LSE; some rows see no key."""
    q, k, v = tensors(2, 9, 7)
    sinks = torch.linspace(-2, 2, 4).requires_grad_()
    slopes = torch.rand(2, 4) if biased else None
    more = {"window": window, "softcap": softcap, "alibi_slopes": slopes}
    out, lse = fa4gen.attention(q, k, v, causal=causal, sinks=sinks, return_lse=True, **more)
    got = torch.autograd.grad(out.float().square().sum() + lse.sin().sum(), (q, k, v, sinks))
    leaves = [t.detach().double().requires_grad_() for t in (q, k, v, sinks)]
    ends = dict(zip(("window_left", "window_right"), window or (None, None), strict=True))
    ends = {name: end for name, end in ends.items() if end is not None}
    own_out, own_lse = reference(
        *leaves[:3],
        causal,
        64**-0.5,
        **ends,
        softcap=softcap or 0.0,
        slopes=slopes,
        sinks=leaves[3],
    )
    wanted = torch.autograd.grad(own_out.square().sum() + own_lse.sin().sum(), leaves)
    for g, e in zip(got, wanted, strict=True):
        assert torch.allclose(g.double(), e.nan_to_num(), atol=0.05, rtol=0.02)


def finite_difference(call: Any, t: torch.Tensor, place: tuple[int, ...]) -> float:
    """The derivative of `call` by one element of `t`, from both sides."""
    step = 1e-3
    values = []
    for move in (step, -step):
        moved = t.detach().clone()
        moved[place] += move
        values.append(call(moved))
    return (values[0] - values[1]) / (2 * step)


@pytest.mark.usefixtures("kernels")
def test_gradients_of_sinks_are_finite_differences() -> None:
    """Of the call's own outputs, in float32; a row without keys has the sink's whole weight."""
    q, k, v = (t.detach() for t in tensors(2, 6, 4))
    sinks = torch.linspace(-1, 1, 4)

    def total(s: torch.Tensor) -> Any:
        out, lse = reference(q, k, v, True, 64**-0.5, sinks=s)
        return (out * out).sum() + (lse * lse).sum()

    leaf = sinks.clone().requires_grad_()
    out, lse = fa4gen.attention(q, k, v, causal=True, sinks=leaf, return_lse=True)
    (out.float().square().sum() + lse.square().sum()).backward()
    assert leaf.grad is not None
    for n in range(4):
        expected = float(finite_difference(total, sinks, (n,)))
        assert float(leaf.grad[n]) == pytest.approx(expected, rel=0.02, abs=0.02)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sinks_alone_may_ask_for_a_gradient(dtype: torch.dtype) -> None:
    q, k, v = (t.detach() for t in tensors(1, 4, 6))
    sinks = torch.zeros(4, dtype=dtype, requires_grad=True)
    fa4gen.attention(q, k, v, sinks=sinks).float().sum().backward()
    assert sinks.grad is not None
    assert sinks.grad.dtype is dtype
    sinks.grad = None
    _, lse = fa4gen.attention(q, k[:, :0], v[:, :0], sinks=sinks, return_lse=True)
    lse.sum().backward()
    assert torch.equal(sinks.grad, torch.full((4,), 4.0, dtype=dtype))  # the LSE is the sink
    with pytest.raises(Fa4genError, match=r"FA0807.*`sinks`"):
        fa4gen.attention(q, k, v, sinks=sinks, out=torch.empty_like(q))


@pytest.mark.usefixtures("kernels")
def test_sequences_of_their_own_lengths_are_refused() -> None:
    q, k, v = tensors(1, 4, 4)
    ends = torch.tensor([0, 4], dtype=torch.int32)
    more = {"cu_seqlens_q": ends, "cu_seqlens_k": ends}
    with pytest.raises(Fa4genError, match="FA0807"):
        fa4gen.flash_attn_varlen_func(q[0], k[0], v[0], **more)


@pytest.fixture
def by_torch() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def backwards(kernels: dict[Any, Any]) -> list[tuple[str, ...]]:
    """Features of the backwards that were taken."""
    return [k.features for p, k in kernels.items() if p.kernel == "attention_backward"]


@pytest.mark.parametrize("softcap", [0.0, 20.0])
def test_an_order_of_sums_is_asked_for(kernels: dict[Any, Any], softcap: float) -> None:
    q, k, v = tensors(2, 70, 6)
    more = {"softcap": softcap, "causal": True}
    found = []
    for given in ({}, {"deterministic": False}, {"deterministic": True}):
        out, _ = fa4gen.flash_attn_func(q, k, v, **more, **given)
        found.append(torch.autograd.grad(out.float().sum(), (q, k, v)))
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[2], strict=True))
    plain = ("softcap",) if softcap else ()
    assert backwards(kernels) == [plain, (*plain, "deterministic")]


@pytest.mark.usefixtures("by_torch")
def test_torch_asks_for_an_order_of_sums(kernels: dict[Any, Any]) -> None:
    q, k, v = tensors(1, 4, 6)
    fa4gen.attention(q, k, v).float().sum().backward()
    assert backwards(kernels) == [("deterministic",)]


def test_an_order_of_sums_is_in_the_graph(kernels: dict[Any, Any]) -> None:
    q, k, v = tensors(1, 4, 6)
    call = torch.compile(
        lambda *x: fa4gen.attention(*x, deterministic=True), backend="aot_eager", fullgraph=True
    )
    call(q, k, v).float().sum().backward()
    assert backwards(kernels) == [("deterministic",)]


@pytest.mark.usefixtures("kernels")
def test_an_order_of_sums_is_refused_where_there_is_none() -> None:
    q, k, v = tensors(1, 4, 6)
    lengths = torch.tensor([0, 4], dtype=torch.int32)
    with pytest.raises(Fa4genError, match="FA08"):
        fa4gen.flash_attn_varlen_func(q[0], k[0], v[0], cu_seqlens_q=lengths, deterministic=True)
    with torch.no_grad():
        fa4gen.flash_attn_func(q, k, v, deterministic=True)
    with pytest.raises(Fa4genError, match=r"FA0802.*`deterministic`"):
        fa4gen.attention(q, k, v, deterministic=3)  # type: ignore[arg-type]
    slopes = torch.ones(4, requires_grad=True)
    with pytest.raises(Fa4genError, match="FA0807"):
        fa4gen.attention(q, k, v, alibi_slopes=slopes, deterministic=True)
