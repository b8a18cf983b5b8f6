"""Windows, caps, slopes and sinks of a call: their meaning, one kernel for all values, refusals."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import fa4gen
from fa4gen.diag import Fa4genError
from tests.api.kernels import Reference, on_cpu, reference

SCALE = 64**-0.5


@pytest.fixture(name="kernels")
def _kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Reference]]:
    with on_cpu(monkeypatch) as made:
        yield made


def tensors(sq: int = 7, sk: int = 12, b: int = 2) -> tuple[Any, Any, Any]:
    q, k, v = (torch.randn(b, n, h, 64).bfloat16() for n, h in ((sq, 4), (sk, 2), (sk, 2)))
    return q, k, v


def assert_right(
    inputs: tuple[Any, Any, Any], more: dict[str, Any], mask: tuple[Any, ...], *extras: Any
) -> None:
    out, lse = fa4gen.attention(*inputs, return_lse=True, **more)
    ref, rows = reference(*inputs, mask[0], SCALE, *mask[1:], *extras)
    assert torch.allclose(out.double(), ref, atol=1e-3, rtol=1e-2)
    assert torch.allclose(lse.double(), rows, atol=1e-4)


ALL = 2**31 - 1


@pytest.mark.parametrize(
    ("more", "mask", "kernel"),
    [
        ({"window": (3, 2)}, (False, 3, 2), (False, ("window",))),
        ({"window": (3, None)}, (False, 3, ALL), (False, ("window",))),
        ({"window": (None, 2)}, (False, ALL, 2), (False, ("window",))),
        ({"window": (3, 0)}, (False, 3, 0), (True, ("window",))),
        ({"window": (3, 5), "causal": True}, (True, 3, 5), (True, ("window",))),
        ({"window": (5, -2)}, (False, 5, -2), (True, ("window",))),
        ({"window": (None, -2)}, (False, ALL, -2), (True, ("window",))),
        ({"window": (-1, 4)}, (False, -1, 4), (False, ("window",))),
        ({"window": (None, 0)}, (True,), (True, ())),
        ({"window": (None, 7), "causal": True}, (True,), (True, ())),
        ({"window": (None, None)}, (False,), (False, ())),
        ({"window": (10**12, 10**12)}, (False,), (False, ("window",))),
    ],
)
def test_windows_choose_a_kernel_and_are_no_part_of_it(
    kernels: Any, more: dict[str, Any], mask: tuple[Any, ...], kernel: tuple[Any, ...]
) -> None:
    for lengths in ((7, 12), (12, 7), (1, 9)):
        assert_right(tensors(*lengths), more, mask)
    assert [(p.causal, p.features) for p in kernels] == [kernel]
    assert [r.calls for r in kernels.values()] == [3]


def test_all_at_once_and_other_values_in_the_same_kernel(kernels: Any) -> None:
    inputs = tensors()
    for n in range(3):
        slopes, sinks = torch.rand(2, 4), torch.rand(4)
        more = {"window": (n, 1), "softcap": 10 + n, "alibi_slopes": slopes, "sinks": sinks}
        assert_right(inputs, more, (False, n, 1), 10.0 + n, slopes, sinks)
        more["alibi_slopes"] = slopes[0]
        assert_right(inputs, more, (False, n, 1), 10.0 + n, slopes[:1].expand(2, 4), sinks)
    assert len(kernels) == 1


def test_a_call_with_extras_is_never_taken_for_one_without(kernels: Any) -> None:
    inputs = tensors()
    for _ in range(4):
        assert_right(inputs, {}, (False,))
        assert_right(inputs, {"softcap": 2.0}, (False, ALL, ALL), 2.0)
    assert sorted(len(p.features) for p in kernels) == [0, 1]


@pytest.mark.usefixtures("kernels")
def test_sinks_of_16_bits_and_rows_without_keys() -> None:
    sinks = torch.tensor([1.0, -2.0, 0.5, 3.0]).bfloat16()
    assert_right(tensors(12, 7), {"sinks": sinks}, (False, ALL, ALL), 0.0, None, sinks.float())
    _, lse = fa4gen.attention(*tensors(3, 0), sinks=sinks, return_lse=True)
    assert torch.equal(lse, sinks.float()[None, :, None].expand(2, 4, 3))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("FA0802.*`window`", {"window": 5}),
        ("FA0802.*`window`", {"window": (5,)}),
        ("FA0802.*`window`", {"window": (5.0, 0)}),
        ("FA0802.*`window`", {"window": (True, 0)}),
        ("FA0802.*`softcap`", {"softcap": -1.0}),
        ("FA0802.*`softcap`", {"softcap": torch.ones(())}),
        ("FA0802.*`alibi_slopes`", {"alibi_slopes": torch.ones(3)}),
        ("FA0802.*`alibi_slopes`", {"alibi_slopes": torch.ones(1, 4)}),
        ("FA0803.*`alibi_slopes`", {"alibi_slopes": torch.ones(4).bfloat16()}),
        ("FA0802.*`sinks`", {"sinks": [1.0] * 4}),
        ("FA0802.*`sinks`", {"sinks": torch.ones(2, 4)}),
        ("FA0803.*`sinks`", {"sinks": torch.ones(4, dtype=torch.int32)}),
        ("FA0804.*`sinks`", {"sinks": torch.ones(4, device="meta")}),
        ("FA0807.*`alibi_slopes`", {"alibi_slopes": torch.ones(4, requires_grad=True)}),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(code: str, more: dict[str, Any]) -> None:
    with pytest.raises(Fa4genError, match=code):
        fa4gen.attention(*tensors(), **more)


def test_the_dispatch_says_which_features_a_kernel_has() -> None:
    text = fa4gen.explain_dispatch(target="sm_90a", head_dim=64, features=["sinks", "window"])
    assert "fwd_hd64_sm90 (shipped schedules): serves" in text
    with pytest.raises(Fa4genError, match="there is no feature `windows`"):
        fa4gen.explain_dispatch(target="sm_90a", head_dim=64, features=["windows"])
