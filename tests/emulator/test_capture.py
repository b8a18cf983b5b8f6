"""Launches of compiled host code arrive as data, with no driver and no DSL."""

import ctypes
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fa4gen.diag import Fa4genError
from fa4gen.emulator import capture, native
from fa4gen.emulator.tensors import present

HOST_CODE = Path(__file__).parent / "fixtures" / "host_code.c"
B200 = capture.Device(multiprocessors=148, smem_optin_bytes=232448, capability=10)
SIZES = {"scale_kernel": (8, 4), "tail_kernel": (8,)}


def build(folder: Path, source: Path = HOST_CODE, name: str = "host.so") -> Path:
    flags = ("-O1", "-Wl,--unresolved-symbols=ignore-all")
    native.link([source], folder / name, flags)
    return folder / name


def run(
    loaded: tuple[capture.StandIn, object], *arguments: object, device: capture.Device = B200
) -> list[capture.Launch]:
    stand_in, function = loaded
    launches: list[capture.Launch] = []
    shown, _ = present(arguments)
    with stand_in.capturing(device, SIZES.__getitem__, launches.append):
        function("twice")(*shown)
    return launches


def test_launches_arrive_in_order_with_dimensions_attributes_and_parameter_bytes(
    tmp_path: Path,
) -> None:
    tensor = torch.zeros(3, 5)
    first, second = run(capture.load_exported(build(tmp_path)), tensor, 2.5)
    assert (first.kernel, first.grid, first.block) == ("scale_kernel", (148, 2, 3), (128, 1, 1))
    assert (first.cluster, first.dynamic_smem_bytes) == ((2, 1, 1), 1024)
    assert first.cooperative
    assert first.programmatic
    assert first.params == (struct.pack("<Q", tensor.data_ptr()), struct.pack("<f", 2.5))
    assert (second.kernel, second.cluster, second.dynamic_smem_bytes) == (
        "tail_kernel",
        (1, 1, 1),
        0,
    )
    assert not second.cooperative
    assert not second.programmatic
    assert second.params == first.params[:1]


def test_host_code_sees_the_device_it_is_told(tmp_path: Path) -> None:
    h200 = capture.Device(multiprocessors=132, smem_optin_bytes=232448, capability=9)
    assert run(capture.load_exported(build(tmp_path)), torch.zeros(1), 1.0, device=h200)[
        0
    ].grid == (132, 2, 3)


def test_what_the_callback_raises_is_raised_and_stops_the_host_code(tmp_path: Path) -> None:
    stand_in, function = capture.load_exported(build(tmp_path))
    seen: list[str] = []

    def refuse(launch: capture.Launch) -> None:
        seen.append(launch.kernel)
        raise KeyError("mine")

    shown, _ = present((torch.zeros(1), 1.0))
    with (
        pytest.raises(KeyError, match="mine"),
        stand_in.capturing(B200, SIZES.__getitem__, refuse),
    ):
        function("twice")(*shown)
    assert seen == ["scale_kernel"]


def test_host_code_called_outside_a_capture_fails_rather_than_doing_nothing(tmp_path: Path) -> None:
    _, function = capture.load_exported(build(tmp_path))
    shown, _ = present((torch.zeros(1), 1.0))
    with pytest.raises(RuntimeError, match="CUDA error 801"):
        function("twice")(*shown)


def test_the_host_codes_own_errors_come_through(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="CUDA error 1"):
        run(capture.load_exported(build(tmp_path)), 3, 1.0)


def test_two_objects_have_stand_ins_of_their_own(tmp_path: Path) -> None:
    built = build(tmp_path)
    one, two = capture.load_exported(built), capture.load_exported(built)
    a, b = torch.zeros(1), torch.zeros(1)
    seen: list[int] = []
    shown, _ = present((b, 1.0))

    def nested(launch: capture.Launch) -> None:
        seen.append(struct.unpack("<Q", launch.params[0])[0])
        if launch.kernel == "scale_kernel" and len(seen) == 1:
            with two[0].capturing(B200, SIZES.__getitem__, nested):
                two[1]("twice")(*shown)

    with one[0].capturing(B200, SIZES.__getitem__, nested):
        one[1]("twice")(*present((a, 1.0))[0])
    assert seen == [a.data_ptr(), b.data_ptr(), b.data_ptr(), a.data_ptr()]


def test_a_runtime_mapped_for_the_whole_process_is_not_disturbed_nor_used(tmp_path: Path) -> None:
    decoy = tmp_path / "decoy.c"
    decoy.write_text(
        "int calls; int _cudaLaunchKernelEx(void *c, void *k, void **a) { calls++; return 0; }"
    )
    subprocess.run(
        [native.compiler(), "-shared", "-fPIC", "-o", str(tmp_path / "decoy.so"), str(decoy)],
        check=True,
    )
    # a process of its own, since a library mapped globally stays
    script = (
        "import ctypes, runpy, sys, torch; from pathlib import Path\n"
        "decoy = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)\n"
        "here = runpy.run_path(sys.argv[3])\n"
        "loaded = here['capture'].load_exported(Path(sys.argv[2]))\n"
        "print(len(here['run'](loaded, torch.zeros(1), 1.0)),\n"
        "      ctypes.c_int.in_dll(decoy, 'calls').value,\n"
        "      hasattr(ctypes.CDLL(None), 'cuda_dialect_init_library_once'))"
    )
    arguments = [str(tmp_path / "decoy.so"), str(build(tmp_path)), __file__]
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0", "False"]


def test_host_code_that_calls_more_of_cuda_is_refused_by_name(tmp_path: Path) -> None:
    source = tmp_path / "more.c"
    source.write_text(
        'int _cudaGraphLaunch(void*, void*);\n__attribute__((visibility("default")))\n'
        "int __tvm_ffi_fn(void *s, void *a, int n, void *r) { return _cudaGraphLaunch(a, r); }"
    )
    with pytest.raises(Fa4genError, match="_cudaGraphLaunch"):
        capture.load_exported(build(tmp_path, source, "more.so"))


def test_missing_objects_and_functions_are_named(tmp_path: Path) -> None:
    with pytest.raises(Fa4genError, match=r"no shared object at .*absent\.so"):
        capture.load_exported(tmp_path / "absent.so")
    _, function = capture.load_exported(build(tmp_path))
    with pytest.raises(Fa4genError, match=r"host\.so exports no function 'thrice'"):
        function("thrice")


def test_tensor_maps_are_encoded_as_the_driver_does(tmp_path: Path) -> None:
    """The fields of a map that the peer's forward passes for Q: (1, 512, 2, 128) bf16."""
    library = ctypes.CDLL(str(capture.runtime_library(folder=tmp_path)))
    u32, u64 = ctypes.c_uint32, ctypes.c_uint64
    made = (u64 * 16)(*[~0 & (1 << 64) - 1] * 16)
    bf16, swizzle_128, l2_128 = 9, 3, 2
    status = library._cuTensorMapEncodeTiled(
        made,
        bf16,
        4,
        ctypes.c_void_p(0x7F00_0000_1000),
        (u64 * 4)(128, 512, 2, 1),
        (u64 * 3)(512, 256, 262144),
        (u32 * 4)(64, 128, 1, 1),
        (u32 * 4)(1, 1, 1, 1),
        0,
        swizzle_128,
        l2_128,
        0,
    )
    assert status == 0
    assert list(made[:8]) == [
        0x7F00_0000_1000,
        0x0000_0020_0004_6530,
        (262144 // 16) << 32 | 256 // 16,
        0,
        511 << 32 | 127,
        1,
        63 << 56,
        127,
    ]


def test_the_jit_environment_names_a_library_under_the_name_the_dsl_looks_for(
    tmp_path: Path,
) -> None:
    environment = capture.jit_environment("sm_90a", tmp_path / "dump", folder=tmp_path)
    assert Path(environment["CUTE_DSL_LIBS"]).name == "libcute_dsl_runtime.so"
    assert Path(environment["CUTE_DSL_LIBS"]).is_file()
    assert environment["CUTE_DSL_ARCH"] == "sm_90a"
