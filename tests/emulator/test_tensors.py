"""Host tensors look like CUDA tensors to compiled host code, on the same memory."""

import gc

import pytest
import torch
import tvm_ffi

from fa4gen.diag import Fa4genError
from fa4gen.emulator.tensors import present


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, torch.float32, torch.int32, torch.int64, torch.uint8],
)
def test_shape_strides_type_and_memory_are_kept(dtype: torch.dtype) -> None:
    tensor = torch.zeros(2, 6, 4, dtype=dtype)[:, ::2].transpose(0, 2)
    (shown,), _ = present((tensor,))
    assert isinstance(shown, tvm_ffi.Tensor)
    assert tuple(shown.shape) == (4, 3, 2)
    assert tuple(shown.strides) == tensor.stride()
    assert str(shown.device) == "cuda:0"
    assert str(shown.dtype) == str(dtype).removeprefix("torch.")
    capsule_pointer = shown.data_ptr() if hasattr(shown, "data_ptr") else None
    assert capsule_pointer in (None, tensor.data_ptr())


def test_the_view_keeps_the_memory_alive() -> None:
    (shown,), (region,) = present((torch.full((1 << 16,), 7.0),))
    gc.collect()
    assert region.size_bytes == 4 << 16
    import ctypes

    assert ctypes.c_float.from_address(region.address).value == 7.0
    assert shown is not None


def test_regions_are_whole_storages_each_once() -> None:
    base = torch.zeros(2, 64)
    other = torch.zeros(8, dtype=torch.bfloat16)
    _, regions = present((base[1], base, other, None, (other, 3), torch.zeros(0)))
    assert [(r.address, r.size_bytes) for r in regions] == [
        (base.data_ptr(), 512),
        (other.data_ptr(), 16),
    ]
    assert regions[0].name == "argument 0 (float32 [64])"


def test_scalars_and_nested_tuples_pass_through() -> None:
    shown, regions = present((None, 1, 2.5, True, "x", (None, [4])))
    assert shown == (None, 1, 2.5, True, "x", (None, (4,)))
    assert regions == ()


def test_a_tensor_that_requires_grad_is_taken_as_it_is() -> None:
    tensor = torch.zeros(4, requires_grad=True)
    _, (region,) = present((tensor,))
    assert region.address == tensor.data_ptr()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "argument 1 is a object"),
        (torch.empty(2, device="meta"), "argument 1 is a torch.strided tensor on meta"),
        (torch.eye(2).to_sparse(), "argument 1 is a torch.sparse_coo tensor on cpu"),
    ],
)
def test_what_cannot_be_emulated_is_refused_by_position(value: object, words: str) -> None:
    with pytest.raises(Fa4genError, match=words):
        present((torch.zeros(1), value))
