"""Where the reported faults of compiling, caching, devices, threads and graphs are tested.

Each row: where users reported it, what went wrong there, and the tests that would show it here.
What needs a feature that does not exist yet has a test that it is still refused: when the feature
comes, that test fails, and the row needs tests of its own.
"""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fa4gen
from fa4gen.api.ahead import make_pack
from fa4gen.diag import Fa4genError
from fa4gen.runtime import launch
from tests.api.kernels import on_cpu, reference

TESTS = Path(__file__).parents[1]
CASES: dict[str, tuple[str, tuple[str, ...]]] = {
    "Dao-AILab/flash-attention#2507, #2635, #2762; modelscope/ms-swift#9798": (
        "a 0-d tensor in the cache key: a compilation for every call",
        ("api/test_entry_points.py::test_lengths_as_tensors_make_no_new_kernel",),
    ),
    "Dao-AILab/flash-attention#2745": (
        "expanded and contiguous keys share a kernel that fits one of them",
        (
            "api/test_attention.py::test_expanded_and_contiguous_keys_in_either_order",
            "api/test_attention.py::test_a_call_that_differs_is_not_taken_for_a_recent_one",
        ),
    ),
    "flashinfer-ai/flashinfer#4014": (
        "the scale is baked in and missing from the key",
        (
            "api/test_attention.py::test_scale_is_an_argument_of_the_kernel",
            "api/test_attention.py::test_a_call_that_came_often_is_recognised",
        ),
    ),
    "pytorch/pytorch#189952": (
        "compiles anew as the length shrinks",
        (
            "api/test_attention.py::test_a_kernel_is_looked_for_once_a_class_of_problems",
            "runtime/test_operators.py::test_lengths_that_change_recompile_once_by_default",
            "runtime/test_operators.py::test_one_compilation_serves_all_lengths_and_batches",
        ),
    ),
    "Dao-AILab/flash-attention#2013": (
        "torch.compile asks for the data pointer of a fake tensor",
        (
            "runtime/test_operators.py::test_one_compilation_serves_all_lengths_and_batches",
            "runtime/test_operators.py::test_fake_cuda_tensors_need_no_gpu",
            "runtime/test_operators.py::test_opcheck",
        ),
    ),
    "pytorch/torchtitan#3893": (
        "a replayed graph uses old sequence lengths",
        ("runtime/test_reported.py::test_a_launch_again_reads_the_lengths_that_are_there_then",),
    ),
    "Dao-AILab/flash-attention#1793, #1782": (
        "wrong values on a GPU that is not current",
        (
            "api/test_attention.py::test_another_device_is_made_current_for_the_launch",
            "api/test_attention.py::test_a_recognised_call_on_a_device_that_is_not_current",
        ),
    ),
    "NVIDIA/cutlass#2551": (
        "no threads are left after some 50 kernels of a tuning loop",
        (
            "runtime/test_many_compilations.py"
            "::test_a_tuning_loop_of_60_kernels_leaves_no_thread_and_no_compiler_behind",
        ),
    ),
    "NVIDIA/cccl#9998": (
        "compilers in one process corrupt its heap",
        (
            "runtime/test_many_compilations.py"
            "::test_24_threads_compile_at_once_each_in_its_own_process",
            "runtime/test_cache_trouble.py"
            "::test_of_two_processes_one_makes_an_entry_and_both_have_it",
        ),
    ),
    "NVIDIA/cutlass#3398": (
        "a server compiles again at its second start",
        (
            "api/test_cold_start.py"
            "::test_a_second_process_loads_without_compiling_in_less_than_0_3_s",
        ),
    ),
    "NVIDIA/cutlass#2802, #3100": (
        "sm_121a is rejected without a word of what is supported",
        (
            "api/test_session.py::test_foreign_gpus_are_refused",
            "runtime/test_reported.py::test_a_target_without_kernels_is_told_what_has_some",
        ),
    ),
    "Dao-AILab/flash-attention#2763, #2862, #2391": (
        "tiles beyond the last sequence read past the lengths",
        (
            "test_varlen.py::test_packed_sequences_of_any_length_and_none",
            "test_varlen.py::test_packed_sequences_with_packed_heads_in_splits",
        ),
    ),
    "Dao-AILab/flash-attention#2461": (
        "another toolkit, another speed, and neither key nor record says so",
        (
            "runtime/test_cache_trouble.py"
            "::test_another_toolchain_compiles_anew_and_the_old_one_finds_its_own",
            "runtime/test_reported.py::test_records_of_speed_name_the_toolchain",
        ),
    ),
    "sgl-project/mini-sglang#103": (
        "a second call overwrites what the first has not read yet",
        ("runtime/test_reported.py::test_calls_back_to_back_share_no_memory",),
    ),
    "PrimeIntellect-ai/prime-rl#2378": (
        "arguments by position mean another thing in another version",
        (
            "api/test_attention.py::test_arguments_after_the_tensors_are_keywords",
            "api/test_entry_points.py"
            "::test_a_misspelt_argument_is_a_type_error_and_order_is_no_argument",
        ),
    ),
    "flashinfer-ai/flashinfer#4110, #3634": (
        "compiling many variants exhausts memory, silently, and failures are tried again",
        (
            "api/test_session.py::test_several_compile_side_by_side_within_a_bound",
            "api/test_session.py::test_what_the_compiler_refuses_is_not_tried_again",
            "runtime/test_many_compilations.py"
            "::test_what_is_refused_is_told_after_the_others_and_the_count_is_logged",
        ),
    ),
}


@pytest.mark.parametrize("source", CASES)
def test_every_reported_fault_has_tests_that_exist(source: str) -> None:
    for test in CASES[source][1]:
        file, _, name = test.partition("::")
        tree = ast.parse((TESTS / file).read_text())
        assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, test


def test_a_launch_again_reads_the_lengths_that_are_there_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a graph records is the launch with its arguments; lengths change in place between."""
    recorded: list[Any] = []
    with on_cpu(monkeypatch):
        real = launch.load_function

        def load(path: Any, options: Any) -> Any:
            function = real(path, options)
            return lambda *arguments: recorded.append((function, arguments))

        monkeypatch.setattr(launch, "load_function", load)
        q, k, v = (torch.randn(9, 2, 64).bfloat16() for _ in range(3))
        ends = torch.tensor([0, 3, 9], dtype=torch.int32)
        out, _ = fa4gen.flash_attn_varlen_func(
            q, k, v, cu_seqlens_q=ends, cu_seqlens_k=ends, softmax_scale=0.1
        )
        for middle in (3, 7, 0):
            ends[1] = middle
            for function, arguments in recorded:
                function(*arguments)
            for part in (slice(0, middle), slice(middle, 9)):
                right, _ = reference(q[None, part], k[None, part], v[None, part], False, 0.1)
                assert torch.allclose(out[part].double(), right[0], atol=1e-2)


def test_a_target_without_kernels_is_told_what_has_some(tmp_path: Path) -> None:
    with pytest.raises(Fa4genError, match="FA0215") as caught:
        make_pack(tmp_path, target="sm_121a", head_dims=[(64, 64)])
    said = str(caught.value)
    assert "sm_121a" in said
    assert "sm_90a" in said
    assert "sm_100a" in said


def test_records_of_speed_name_the_toolchain() -> None:
    for file in (TESTS.parent / "bench" / "results").glob(f"*_h200_{'[0-9a-f]' * 8}.json"):
        record = json.loads(file.read_text())
        assert record["kit"]["toolchain"]["nvidia-cutlass-dsl"], file.name
        assert record["machine"]["driver"], file.name


def test_calls_back_to_back_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels run when both calls have returned, as on a GPU that is busy."""
    later: list[Any] = []
    with on_cpu(monkeypatch):
        real = launch.load_function

        def load(path: Any, options: Any) -> Any:
            function = real(path, options)
            return lambda *arguments: later.append((function, arguments))

        monkeypatch.setattr(launch, "load_function", load)
        q, keys, values = (torch.randn(2, n, 2, 64).bfloat16() for n in (3, 20, 20))
        odd = torch.randn(2 * 20 * 2 * 64 + 1).bfloat16()[1:].view(2, 20, 2, 64)  # is copied
        asked = [(keys, 9), (odd, 5), (keys, 20), (odd, 12)] * 3
        made = [
            fa4gen.flash_attn_with_kvcache(q, k, values, cache_seqlens=n, softmax_scale=1 / n)
            for k, n in asked
        ]
        assert len(later) == len(asked)
        for function, arguments in later:
            function(*arguments)
        for out, (k, n) in zip(made, asked, strict=True):
            right, _ = reference(q, k[:, :n], values[:, :n], False, 1 / n)
            assert torch.allclose(out.double(), right, atol=1e-2)
