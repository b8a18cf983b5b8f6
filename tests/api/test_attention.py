"""What `attention` checks, copies, launches and returns, with a kernel in Python on CPU tensors."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fa4gen
from fa4gen.api import attention as module
from fa4gen.api import session
from fa4gen.diag import Fa4genError
from fa4gen.runtime import launch
from tests.api.kernels import Reference, on_cpu, reference

BF16 = torch.bfloat16


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Reference]]:
    with on_cpu(monkeypatch) as made:
        yield made


def tensors(b: int, sq: int, sk: int, h: int, hk: int, d: int = 64) -> tuple[Any, Any, Any]:
    shapes = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, d))
    q, k, v = (torch.randn(s, dtype=torch.float32).to(BF16) for s in shapes)
    return q, k, v


def assert_right(q: Any, k: Any, v: Any, causal: bool = False, **more: Any) -> tuple[Any, Any]:
    o, lse = fa4gen.attention(q, k, v, causal=causal, return_lse=True, **more)
    ref, rows = reference(q, k, v, causal, more.get("softmax_scale") or q.shape[-1] ** -0.5)
    assert o.dtype == q.dtype
    assert torch.allclose(o.double(), ref, atol=1e-3, rtol=1e-2)  # a bf16 has 8 bits
    assert torch.allclose(lse.double(), rows, atol=1e-4)
    return o, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1, 1), (2, 5, 5, 9, 3), (1, 20, 10, 2, 2), (2, 3, 30, 40, 4), (1, 33, 1, 4, 1)],
)
def test_shapes_and_head_groups(kernels: Any, shape: tuple[int, ...], causal: bool) -> None:
    q, k, v = tensors(*shape)
    first, _ = assert_right(q, k, v, causal)
    second, _ = assert_right(q, k, v, causal)  # the second call takes the short way
    assert torch.equal(first, second)
    assert [r.calls for r in kernels.values()] == [2]


@pytest.mark.usefixtures("kernels")
def test_rows_without_keys_are_zero_with_lse_minus_infinity() -> None:
    o, lse = assert_right(*tensors(1, 20, 10, 2, 2), causal=True)
    assert not o[:, :10].any()
    assert bool((lse[:, :, :10] == float("-inf")).all())


@pytest.mark.parametrize(
    "shape", [(0, 5, 5, 2, 2), (2, 0, 5, 2, 2), (2, 5, 0, 2, 2), (2, 5, 5, 0, 0), (2, 5, 0, 2, 0)]
)
def test_empty_tensors_launch_nothing(kernels: Any, shape: tuple[int, ...]) -> None:
    q, k, v = tensors(*shape)
    if shape[3] and not shape[4]:
        with pytest.raises(Fa4genError, match="FA0802"):
            fa4gen.attention(q, k, v)
        return
    o, lse = fa4gen.attention(q, k, v, causal=True, return_lse=True)
    assert o.shape == q.shape
    assert lse.shape == (shape[0], shape[3], shape[1])
    assert not o.any()
    assert bool((lse == float("-inf")).all())
    assert not any(r.calls for r in kernels.values())


dims = st.integers(1, 3)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), b=dims, s=dims, h=dims, causal=st.booleans())
@pytest.mark.usefixtures("kernels")
def test_any_view_gives_what_its_copy_gives(
    data: Any, b: int, s: int, h: int, causal: bool
) -> None:
    store = torch.randn(6000, dtype=torch.float32).to(BF16)
    stride = st.sampled_from([0, 1, 3, 8, 63, 64, 72, 192])

    def view() -> Any:
        strides = (data.draw(stride), data.draw(stride), data.draw(stride), data.draw(dims))
        return store.as_strided((b, s, h, 64), strides, data.draw(st.sampled_from([0, 1, 8, 17])))

    q, k, v = view(), view(), view()
    o, lse = fa4gen.attention(q, k, v, causal=causal, return_lse=True)
    dense, rows = fa4gen.attention(
        *(t.clone(memory_format=torch.contiguous_format) for t in (q, k, v)),
        causal=causal,
        return_lse=True,
    )
    assert torch.equal(o, dense)
    assert torch.equal(lse, rows)


@pytest.mark.usefixtures("kernels")
def test_views_that_tma_takes_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_copy(_tensor: Any) -> Any:
        raise AssertionError("copied")

    monkeypatch.setattr("fa4gen.runtime.problem._copy", no_copy)
    packed = torch.randn(2, 30, 3, 4, 64).to(BF16)
    assert_right(*packed.unbind(2))
    assert_right(*(t.transpose(1, 2) for t in tensors(2, 4, 4, 30, 30)))
    one = torch.randn(64 * 9).to(BF16)
    odd = one.as_strided((1, 1, 1, 64), (3, 5, 7, 1))
    assert_right(odd, odd, odd)
    with pytest.raises(AssertionError, match="copied"):
        fa4gen.attention(*(t.expand(2, 4, 4, 64) for t in tensors(1, 4, 4, 4, 4)))


@pytest.mark.usefixtures("kernels")
def test_expanded_and_contiguous_keys_in_either_order() -> None:
    q, base, _ = tensors(1, 65, 129, 4, 1)
    k = base.expand(1, 129, 4, 64)
    for first, second in ((k, k.contiguous()), (k.contiguous(), k)):
        assert torch.equal(assert_right(q, first, first)[0], assert_right(q, second, second)[0])


@pytest.mark.usefixtures("kernels")
def test_outputs_are_written_in_place() -> None:
    q, k, v = tensors(2, 7, 9, 4, 2)
    odd = torch.full((q.numel() + 1,), float("nan"), dtype=BF16)[1:].view(q.shape)
    heads_first = torch.empty(2, 4, 7, 64, dtype=BF16).transpose(1, 2)
    lse = torch.empty(2, 7, 4).transpose(1, 2)
    for _ in range(2):
        for out in (torch.empty_like(q), odd, heads_first):
            o, rows = assert_right(q, k, v, out=out, lse=lse)
            assert o is out
            assert rows is lse


def test_scale_is_an_argument_of_the_kernel(kernels: Any) -> None:
    q, k, v = tensors(1, 8, 8, 2, 2)
    for scale in (0.5, 0.01, 1, None):
        assert_right(q, k, v, softmax_scale=scale)
    assert len(kernels) == 1


def test_a_kernel_is_looked_for_once_a_class_of_problems(kernels: Any) -> None:
    for length in (320, 256, 192, 128):
        fa4gen.attention(*tensors(1, length, length, 2, 2))
    for dtype in (torch.float16, BF16):
        fa4gen.attention(*(t.to(dtype) for t in tensors(3, 4, 5, 2, 1)), causal=True)
    assert len(kernels) == 3


def test_large_grids_are_cut(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRID_LIMIT", 5)
    monkeypatch.setattr(module, "GRID_LIMIT", 5)
    for causal in (False, True):
        assert_right(*tensors(12, 3, 4, 14, 7), causal=causal)
    assert [r.calls for r in kernels.values()] == [3 * 4] * 2


BAD = {
    "three dimensions": ("FA0802", "q", lambda q, k, v: ((q[0], k, v), {})),
    "no tensor": ("FA0802", "k", lambda q, _k, v: ((q, [1], v), {})),
    "batch": ("FA0802", "k", lambda q, k, v: ((q, k[:1], v[:1]), {})),
    "lengths": ("FA0802", "v", lambda q, k, v: ((q, k, v[:, :3]), {})),
    "head dims": ("FA0802", "k", lambda q, k, v: ((q, k[..., :32], v), {})),
    "heads": ("FA0802", "k", lambda q, k, v: ((q[:, :, :3], k, v), {})),
    "heads of v": ("FA0802", "v", lambda q, k, v: ((q, k, v[:, :, :1]), {})),
    "float32": ("FA0803", "q", lambda q, k, v: ((q.float(), k.float(), v.float()), {})),
    "mixture": ("FA0803", "k", lambda q, k, v: ((q, k.half(), v), {})),
    "causal": ("FA0802", "causal", lambda q, k, v: ((q, k, v), {"causal": 1})),
    "scale tensor": (
        "FA0806",
        "softmax_scale",
        lambda q, k, v: ((q, k, v), {"softmax_scale": torch.tensor(1.0)}),
    ),
    "scale 0": ("FA0806", "softmax_scale", lambda q, k, v: ((q, k, v), {"softmax_scale": 0.0})),
    "grad": (
        "FA0807",
        "v",
        lambda q, k, v: ((q, k, v.requires_grad_()), {"out": torch.empty_like(q)}),
    ),
    "out shape": ("FA0808", "out", lambda q, k, v: ((q, k, v), {"out": q[:, :1]})),
    "out dtype": ("FA0808", "out", lambda q, k, v: ((q, k, v), {"out": q.half()})),
    "out is q": ("FA0808", "out", lambda q, k, v: ((q, k, v), {"out": q})),
    "out expanded": (
        "FA0808",
        "out",
        lambda q, k, v: ((q, k, v), {"out": q[:, :1].expand_as(q)}),
    ),
    "lse": ("FA0808", "lse", lambda q, k, v: ((q, k, v), {"lse": torch.empty(2, 4, 5)})),
    "lse dtype": (
        "FA0808",
        "lse",
        lambda q, k, v: ((q, k, v), {"out": q + 1, "lse": torch.empty(2, 4, 6).double()}),
    ),
    "lse of another length, out given": (
        "FA0808",
        "lse",
        lambda q, k, v: ((q, k, v), {"out": q + 1, "lse": torch.empty(2, 4, 5)}),
    ),
    "out of fewer heads, lse given": (
        "FA0808",
        "out",
        lambda q, k, v: ((q, k, v), {"out": (q + 1)[:, :, :2], "lse": torch.empty(2, 4, 6)}),
    ),
    "out is q, lse given": (
        "FA0808",
        "out",
        lambda q, k, v: ((q, k, v), {"out": q, "lse": torch.empty(2, 4, 6)}),
    ),
    "heads, outputs given": (
        "FA0802",
        "q",
        lambda q, k, v: (
            (q[:, :, :3], k, v),
            {"out": (q + 1)[:, :, :3], "lse": torch.empty(2, 4, 6)[:, :3]},
        ),
    ),
    "fewer keys than values, outputs given": (
        "FA0802",
        "v",
        lambda q, k, v: (
            (q, k, torch.cat([v, v], 1)[:, :9]),
            {"out": q + 1, "lse": torch.empty(2, 4, 6)},
        ),
    ),
}


@pytest.mark.parametrize("before", [0, 1, 3], ids=["cold", "planned", "recognised"])
@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named_before_launch(kernels: Any, name: str, before: int) -> None:
    code, argument, make = BAD[name]
    q, k, v = tensors(2, 6, 8, 4, 2)
    out, lse = torch.empty_like(q), torch.empty(2, 4, 6)
    for _ in range(before):  # what the short ways let through, the long one must accept
        fa4gen.attention(q, k, v)
        fa4gen.attention(q, k, v, out=out, lse=lse)
    args, more = make(q, k, v)
    with pytest.raises(Fa4genError) as caught:
        fa4gen.attention(*args, **more)
    assert caught.value.diagnostics[0].code == code
    assert f"`{argument}`" in caught.value.diagnostics[0].title
    assert sum(r.calls for r in kernels.values()) == 2 * before


def recognised(*args: Any, **more: Any) -> int:
    """Calls until the next one like it is recognised; how many it took."""
    before = session.CURRENT.get().recent
    for n in range(1, 9):
        fa4gen.attention(*args, **more)
        if session.CURRENT.get().recent is not before:
            return n
    raise AssertionError("never recognised")


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("given", [False, True])
def test_a_call_that_came_often_is_recognised(given: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = tensors(2, 6, 8, 4, 2)
    more = {"out": torch.empty_like(q), "lse": torch.empty(2, 4, 6)} if given else {}
    assert recognised(q, k, v, **more) == 3  # loads the kernel, makes the plan, finds it
    monkeypatch.setattr(module, "_anew", lambda *_: pytest.fail("looked up"))
    for scale in (None, 0.3):
        assert_right(*tensors(2, 6, 8, 4, 2), softmax_scale=scale, **more)


DIFFERENT = {
    "length": lambda q, k, v: (q[:, :5], k, v),
    "length of the keys": lambda q, k, v: (q, k[:, :5], v[:, :5]),
    "heads": lambda q, k, v: (q[:, :, :2], k, v),
    "no keys": lambda q, k, v: (q, k[:, :0], v[:, :0]),
    "batch": lambda q, k, v: (q[:1], k[:1], v[:1]),
    "type": lambda q, k, v: (q.half(), k.half(), v.half()),
    "head dim": lambda q, k, v: (q.repeat(1, 1, 1, 2), k.repeat(1, 1, 1, 2), v),
    "head dim of v": lambda q, k, v: (q, k, v.repeat(1, 1, 1, 2)),
    "head dim of v, lying alike": lambda q, k, v: (q, k, v.repeat(1, 1, 1, 2)[..., :32]),
    "all strides alike": lambda q, k, v: (q[:1, :1, :1], k[:1, :1, :1], v[:1, :1, :1]),
    "expanded": lambda q, k, v: (q, k[:, :1].expand_as(k), v),
    "order": lambda q, k, v: (q.transpose(1, 2).contiguous().transpose(1, 2), k, v),
    "2 bytes on": lambda q, k, v: (torch.cat([q.flatten()[:1], q.flatten()])[1:].view_as(q), k, v),
    "parameter": lambda q, k, v: (q, torch.nn.Parameter(k, requires_grad=False), v),
}


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("name", DIFFERENT)
def test_a_call_that_differs_is_not_taken_for_a_recent_one(name: str, given: bool) -> None:
    q, k, v = tensors(2, 6, 8, 4, 2)
    out, lse = torch.empty_like(q), torch.empty(2, 4, 6)
    recognised(q, k, v)
    recognised(q, k, v, out=out, lse=lse)
    for _ in range(3):
        other = DIFFERENT[name](q, k, v)
        b, sq, h, _ = other[0].shape
        fits = {
            "out": torch.empty(b, sq, h, other[2].shape[3], dtype=other[0].dtype),
            "lse": torch.empty(b, h, sq),
        }
        for causal in (False, True):
            assert_right(*other, causal, **(fits if given else {}))
        assert_right(q, k, v)
        assert_right(q, k, v, out=out, lse=lse)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", ["out", "lse"])
def test_outputs_that_lie_otherwise_are_written_right(name: str) -> None:
    q, k, v = tensors(2, 6, 8, 4, 2)
    given = {"out": torch.empty_like(q), "lse": torch.empty(2, 4, 6)}
    recognised(q, k, v, **given)
    other = torch.empty_like(given[name].repeat_interleave(2, 1))[:, ::2]
    for _ in range(4):
        assert_right(q, k, v, **{**given, name: other})
        assert_right(q, k, v, **given)


@pytest.mark.usefixtures("kernels")
def test_an_output_alone_and_kinds_of_calls_in_turn() -> None:
    kinds = [tensors(1, n, 8, 4, 2) for n in range(3, 10)]
    for _ in range(4):
        for q, k, v in kinds:
            assert_right(q, k, v)
            assert_right(q, k, v, out=torch.empty_like(q))
            assert_right(q, k, v, lse=torch.empty(1, 4, q.shape[1]), causal=True)
    assert len(session.CURRENT.get().recent) == session.MOST_RECENT


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("with_outputs", [False, True])
def test_a_recognised_call_on_a_device_that_is_not_current(
    with_outputs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: -1)
    q, k, v = tensors(1, 4, 4, 2, 2)
    more = {"out": torch.empty_like(q), "lse": torch.empty(1, 2, 4)} if with_outputs else {}
    recognised(q, k, v, **more)
    (recent,) = session.CURRENT.get().recent
    flag, given, fits, _, scale, sms, _, plan = recent
    elsewhere = (flag, given, fits, lambda *_: pytest.fail("ran"), scale, sms, 1, plan)
    session.CURRENT.get().recent = (elsewhere,)
    assert_right(q, k, v, **more)  # the long way switches devices


@pytest.mark.usefixtures("kernels")
def test_inputs_that_require_a_gradient_pass_without_gradients() -> None:
    q, k, v = (t.requires_grad_() for t in tensors(1, 4, 4, 2, 2))
    with torch.no_grad():
        assert_right(q, k, v)


def test_cpu_tensors_are_refused_with_what_to_do() -> None:
    with pytest.raises(Fa4genError, match=r"FA0804.*expected a CUDA device"):
        fa4gen.attention(*tensors(1, 4, 4, 2, 2))


@pytest.mark.usefixtures("kernels")
def test_a_head_dim_that_nothing_serves_says_what_is() -> None:
    with pytest.raises(Fa4genError, match=r"FA0805.*no kernel serves") as caught:
        fa4gen.attention(*tensors(1, 4, 4, 2, 2, d=512))
    assert "fwd_hd128_sm90" in caught.value.diagnostics[0].why


def test_arguments_after_the_tensors_are_keywords() -> None:
    with pytest.raises(TypeError):
        fa4gen.attention(*tensors(1, 4, 4, 2, 2), True)


def test_another_device_is_made_current_for_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    current, seen = [0], []

    class Guard:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            current[0] = self.index

        def __exit__(self, *_: object) -> None:
            current[0] = 0

    monkeypatch.setattr(torch.cuda, "current_device", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", Guard)
    kernel = launch.Kernel(
        name="k", function=lambda *_: seen.append(current[0]), device=1, num_sms=132
    )
    q, k, v = tensors(1, 4, 4, 2, 2)
    launch.launch(kernel, q, k, v, q, torch.empty(1, 2, 4), 1.0)
    assert seen == [1]
    assert current == [0]


def test_threads_share_kernels(kernels: Any) -> None:
    faults: list[BaseException] = []
    outer = session.CURRENT.get()

    def work(n: int) -> None:
        session.CURRENT.set(outer)
        try:
            for i in range(10):
                assert_right(*tensors(1, 3 + n, 5, 4, 2, d=(64, 128)[i % 2]), causal=bool(n % 2))
        except BaseException as e:
            faults.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults
    assert len(kernels) == 4
    assert sum(r.calls for r in kernels.values()) == 80
