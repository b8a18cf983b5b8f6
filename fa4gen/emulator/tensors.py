"""Host tensors presented to compiled host code as CUDA tensors, and the memory that they span."""

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa4gen.diag import error

if TYPE_CHECKING:
    import torch

KDL_CUDA = 2  # dlpack.h: DLDeviceType
_DEVICE_TYPE_OFFSET = 8  # in DLManagedTensor: after the data pointer

_get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_get_pointer.restype, _get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """Memory that a launch may touch: one tensor's storage, named for messages."""

    address: int
    size_bytes: int
    name: str


@dataclass(frozen=True, slots=True)
class CudaView:
    """A CPU tensor that says through DLPack that it lies on the GPU (same memory, same strides)."""

    tensor: "torch.Tensor"

    def __dlpack_device__(self) -> tuple[int, int]:
        return (KDL_CUDA, 0)

    def __dlpack__(self, **_: object) -> object:
        capsule: object = self.tensor.__dlpack__()
        address = _get_pointer(capsule, b"dltensor") + _DEVICE_TYPE_OFFSET
        ctypes.c_int32.from_address(address).value = KDL_CUDA
        return capsule


def present(arguments: tuple[object, ...]) -> tuple[tuple[object, ...], tuple[Region, ...]]:
    """The arguments as the host code takes them, and the memory that they bring.

    CPU torch tensors become CUDA DLPack tensors on the same memory, also inside tuples and lists;
    None, numbers, booleans and texts go through. Tensors of one storage bring it once. Raises
    `Fa4genError` that names the argument by its position.
    """
    regions: dict[int, Region] = {}
    shown = tuple(_present(a, f"argument {i}", regions) for i, a in enumerate(arguments))
    return shown, tuple(regions.values())


def _present(value: object, name: str, regions: dict[int, Region]) -> object:
    import torch
    import tvm_ffi

    if isinstance(value, tuple | list):
        return tuple(_present(v, f"{name}[{i}]", regions) for i, v in enumerate(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if not isinstance(value, torch.Tensor):
        raise error(
            "FA0904",
            f"{name} is a {type(value).__name__}",
            why="the emulator takes CPU torch tensors, numbers, None, and tuples of these",
            fix="pass the tensor itself, or `torch.from_numpy(array)`",
        )
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise error(
            "FA0904",
            f"{name} is a {value.layout} tensor on {value.device}",
            why="the emulated GPU's global memory is this process's memory",
            fix="pass `tensor.cpu()`, dense",
        )
    for region in _storage(value, name):
        regions.setdefault(region.address, region)
    return tvm_ffi.from_dlpack(CudaView(value.detach()))


def _storage(tensor: "torch.Tensor", name: str) -> Iterator[Region]:
    storage = tensor.untyped_storage()
    if storage.nbytes():
        kind = str(tensor.dtype).removeprefix("torch.")
        label = f"{name} ({kind} {list(tensor.shape)})"
        yield Region(address=storage.data_ptr(), size_bytes=storage.nbytes(), name=label)
