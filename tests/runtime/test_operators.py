"""torch.compile, torch.export, fake tensors and dispatch modes over the operators, with no GPU."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import fa4gen
from fa4gen.api import session
from fa4gen.diag import Fa4genError
from tests.api.kernels import Reference, on_cpu, reference


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Reference]]:
    torch._dynamo.reset()
    with on_cpu(monkeypatch) as made:
        yield made


def tensors(b: int, sq: int, sk: int, h: int = 4, hk: int = 2, **more: Any) -> tuple[Any, Any, Any]:
    shapes = ((b, sq, h, 64), (b, sk, hk, 64), (b, sk, hk, 64))
    q, k, v = (torch.randn(s, **more).to(torch.bfloat16) for s in shapes)
    return q, k, v


def model(q: Any, k: Any, v: Any) -> Any:
    out, lse = fa4gen.attention(q * 2, k, v, causal=True, return_lse=True)
    return out.float().sum(-1), lse + 1


def assert_same(compiled: Any, q: Any, k: Any, v: Any) -> None:
    o, lse = reference(q * 2, k, v, True, 64**-0.5)
    found, rows = compiled(q, k, v)
    assert torch.allclose(found.double(), o.sum(-1), atol=0.2)
    assert torch.allclose(rows.double(), lse + 1, atol=1e-3)


@pytest.mark.usefixtures("kernels")
def test_one_compilation_serves_all_lengths_and_batches() -> None:
    # the first sizes all differ: torch takes equal ones for the same symbol (duck shapes)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    for b, sq, sk in ((3, 12, 16), (2, 20, 24), (5, 7, 9), (2, 100, 101), (4, 64, 65)):
        assert_same(compiled, *tensors(b, sq, sk))
    assert counter.frame_count == 1


@pytest.mark.usefixtures("kernels")
def test_lengths_that_change_recompile_once_by_default() -> None:
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for length in (320, 256, 192, 128):
        assert_same(compiled, *tensors(2, length, length + 2))
    assert counter.frame_count == 2  # static, then dynamic: torch's own policy


@pytest.mark.usefixtures("kernels")
def test_outputs_given_are_written_in_a_compiled_graph() -> None:
    def into(q: Any, k: Any, v: Any, out: Any) -> Any:
        return fa4gen.attention(q, k, v, out=out) + 1

    compiled = torch.compile(into, fullgraph=True, backend="aot_eager")
    q, k, v = tensors(1, 8, 8)
    out = torch.full_like(q, float("nan"))
    found = compiled(q, k, v, out)
    assert torch.equal(found, out + 1)
    assert torch.equal(out, fa4gen.attention(q, k, v))


def test_export_with_dynamic_shapes_needs_no_gpu() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return model(q, k, v)

    b, s, t = (torch.export.Dim(n, min=2, max=4096) for n in "bst")
    shapes = ({0: b, 1: s}, {0: b, 1: t}, {0: b, 1: t})
    program = torch.export.export(Model(), tensors(2, 12, 16), dynamic_shapes=shapes)
    assert "fa4gen.forward.default" in program.graph_module.code


def test_fake_cuda_tensors_need_no_gpu() -> None:
    with FakeTensorMode():
        q, k, v = tensors(2, 100, 130, device="cuda")
        out, lse = fa4gen.attention(q, k, v, return_lse=True)
    assert (out.shape, out.dtype, out.device.type) == (q.shape, torch.bfloat16, "cuda")
    assert (lse.shape, lse.dtype) == ((2, 4, 100), torch.float32)


@pytest.mark.parametrize("change", ["dtype", "rank", "batch", "length"])
def test_fake_tensors_that_do_not_fit_are_refused(change: str) -> None:
    with FakeTensorMode():
        q, k, v = tensors(2, 10, 13)
        bad = {"dtype": v.half(), "rank": v[0], "batch": v[:1], "length": v[:, :3]}[change]
        with pytest.raises((Fa4genError, RuntimeError), match="`v`"):
            fa4gen.attention(q, k, bad)


@pytest.mark.usefixtures("kernels")
def test_opcheck() -> None:
    q, k, v = tensors(2, 9, 11)
    out, lse = torch.empty_like(q), torch.empty(2, 4, 9)
    torch.library.opcheck(torch.ops.fa4gen.forward.default, (q, k, v, True, None))
    torch.library.opcheck(torch.ops.fa4gen.forward.default, (q, k, v, False, 0.3))
    torch.library.opcheck(torch.ops.fa4gen.forward_into.default, (q, k, v, out, lse, True, None))


@pytest.mark.usefixtures("kernels")
def test_recognised_calls_are_still_seen_by_what_torch_puts_around() -> None:
    q, k, v = tensors(1, 4, 4)
    for _ in range(4):
        fa4gen.attention(q, k, v)
    assert session.CURRENT.get().recent
    graph = make_fx(lambda q: fa4gen.attention(q, k, v))(q)
    assert "fa4gen.forward.default" in graph.code
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert type(fa4gen.attention(q, k, v)) is not torch.Tensor
    assert fa4gen.attention(q.clone().requires_grad_(), k, v).requires_grad
    with torch.inference_mode():
        for _ in range(4):
            fa4gen.attention(q.clone(), k, v)
    mapped = torch.vmap(lambda q: fa4gen.attention(q, k, v))(torch.stack([q, q * 2]))
    assert torch.equal(mapped[1], fa4gen.attention(q * 2, k, v))


@pytest.mark.usefixtures("kernels")
def test_tracing_with_real_tensors_sees_the_operator() -> None:
    graph = make_fx(lambda q, k, v: fa4gen.attention(q, k, v))(*tensors(1, 4, 4))
    assert "fa4gen.forward.default" in graph.code


@pytest.mark.usefixtures("kernels")
def test_gradients_are_the_same_when_compiled() -> None:
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    plain = [t.requires_grad_() for t in tensors(1, 5, 7)]
    traced = [t.detach().clone().requires_grad_() for t in plain]
    for call, given in ((model, plain), (compiled, traced)):
        out, lse = call(*given)
        (out.square().sum() + lse.square().sum()).backward()
    for a, b in zip(plain, traced, strict=True):
        assert torch.allclose(a.grad.float(), b.grad.float(), atol=0.02, rtol=0.02)


@pytest.mark.usefixtures("kernels")
def test_a_parameter_is_a_tensor() -> None:
    q, k, v = tensors(1, 4, 4)
    kept = torch.nn.Parameter(k, requires_grad=False)
    assert torch.equal(fa4gen.attention(q, kept, v), fa4gen.attention(q, k, v))


@pytest.mark.usefixtures("kernels")
def test_features_are_seen_by_torch_and_their_values_make_no_new_graph() -> None:
    def windowed(q: Any, k: Any, v: Any, slopes: Any, sinks: Any) -> Any:
        more = {"window": (3, None), "softcap": 15.0, "alibi_slopes": slopes, "sinks": sinks}
        return fa4gen.attention(q, k, v, causal=True, return_lse=True, **more)

    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(windowed, fullgraph=True, backend=counter)
    q, k, v = tensors(2, 5, 9)
    for factor in (1.0, 0.5):
        slopes, sinks = torch.rand(2, 4) * factor, torch.rand(4) * factor
        out, rows = compiled(q, k, v, slopes, sinks)
        o, lse = reference(q, k, v, True, 64**-0.5, 3, 0, 15.0, slopes, sinks)
        assert torch.allclose(out.double(), o, atol=1e-3, rtol=1e-2)
        assert torch.allclose(rows.double(), lse, atol=1e-4)
    assert counter.frame_count == 1
