"""A report: what it says of a compiled kernel, as data and as text."""

import json

import pytest

from fa4gen.ir.program import BarrierPlan, Contribution, KernelProgram, RoleProgram
from fa4gen.options import Options
from fa4gen.runtime import report_text
from fa4gen.runtime.compile import Compiled, Request, compile_cached
from fa4gen.runtime.report import (
    CodeCounts,
    LoopCount,
    MapRow,
    Remark,
    Report,
    build_report,
    remarks,
    static_counts,
)

KERNEL = '''\
"""A generated file in small: one role with a loop; many live values to provoke spills."""
import cutlass
import cutlass.cute as cute
from cutlass import Float32, Int32
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor


def wave(x):
    return cute.math.exp2(x, fastmath=True)


@cute.kernel
def kernel(x: cute.Tensor, n: Int32):
    t = cute.arch.thread_idx()[0]
    # ==== role sum, instances 0 to 1 as a run-time index  # small.yaml:3
    if t < 64:
        total = Float32(0.0)
        for i in cutlass.range(n, unroll=1):  # all
            total = wave(total) + x[i] * 2.0  # small.yaml:7
        x[t] = total
    # ==== role spare
    if t >= 64:
        x[t] = Float32(1.0)


@cute.jit
def launch(x: cute.Tensor, n: Int32, stream):
    kernel(x, n).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)


def example_arguments():
    x = make_fake_tensor(Float32, (cute.sym_int(),), (1,))
    return x, Int32(1), make_fake_stream(use_tvm_ffi_env_stream=True)
'''


def program(target):
    role = RoleProgram(
        name="sum", instances=2, first_warp=0, warps=1, active=1, registers=40,
        registers_change="decrease",
    )  # fmt: skip
    contribution = Contribution(role="load", operations=("k", "v"), arrivals=1)
    full = BarrierPlan(
        name="k_full", base=1, stages=2, arrive_count=1, tx_bytes=32768,
        contributions=(contribution,),
    )  # fmt: skip
    return KernelProgram(
        name="small", target=target, schedule_file="small.yaml", roles=(role,), barriers=(full,),
        regions=(), units=(), threads=128, head=None,
    )  # fmt: skip


@pytest.mark.dsl
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_compiled_kernel_is_described_by_role(tmp_path, target):
    compiled = compile_cached(
        Request(name="small", target=target, text=KERNEL), Options(cache_dir=tmp_path)
    )
    report = build_report(compiled, text=KERNEL, program=program(target))
    (loop,) = report.code.loops
    assert (loop.role, loop.segment, loop.at) == ("sum", "all", "small.yaml:7")
    assert loop.opcodes["MUFU.EX2"] == 1
    assert loop.functions["wave"]["MUFU.EX2"] == 1
    assert loop.units["global"] >= 1
    assert "other" not in loop.units
    assert 0 < report.code.registers < 64
    assert not report.code.spills
    assert report.code.most("MUFU.EX2") == loop
    assert report.code.most("HGMMA") is None
    assert static_counts(compiled.shared_object, KERNEL) == report.code
    assert report.roles == (("sum[0]", 1, 40), ("sum[1]", 1, 40))
    text = report_text.render(report)
    assert "spills: none" in text
    assert "1 load.k | v" in text
    assert "32,768" in text
    assert json.loads(json.dumps(report.as_dict()))["barriers"][0]["arrive_count"] == 1


def test_a_remark_that_names_a_line_of_the_ptx_names_the_schedules(tmp_path):
    (tmp_path / "lines.ptx").write_text("\t.loc 1 19 4\n\twgmma;\n\t.loc 1 3 0\n\tret;\n")
    said = "(C7519) warpgroup.arrive is injected in around line 2 by compiler\nUsed 9 registers\n"
    (tmp_path / "remarks.txt").write_text(said)
    assert remarks(Compiled(folder=tmp_path), KERNEL) == (
        Remark(text=said.splitlines()[0], at="small.yaml:7"),
        Remark(text="Used 9 registers"),
    )


def counts(**changed):
    loop = LoopCount(
        role="softmax", segment="unmasked", at="f.yaml:9", address=64, instructions=551,
        units={"mufu": 105, "fma": 232}, opcodes={"MUFU.EX2": 105},
        functions={"exp2": {"MUFU.EX2": 104, "FFMA": 3}},
    )  # fmt: skip
    whole = {
        "instructions": 3304, "registers": 128, "local_bytes": 0, "local_loads": 0,
        "local_stores": 0, "setmaxnreg": (192,), "loops": (loop,),
    }  # fmt: skip
    return CodeCounts(**(whole | changed))


def test_the_text_has_a_section_for_each_part():
    report = Report(
        name="fwd", target="sm_100a", roles=(("mma", 1, 24),), smem_bytes=98304, tmem_columns=512,
        smem=(MapRow(buffer="kv", first=-1, extent=32768, copies=3),),
        tmem=(MapRow(buffer="s[0]", first=0, extent=128),),
        barriers=(), code=counts(), remarks=(Remark(text="Used 128 registers", at="f.yaml:3"),),
    )  # fmt: skip
    text = report_text.render(report, ("peer", counts(local_bytes=16, local_loads=2)))
    for said in (
        "registers: 128 a thread at launch; then mma 24 (1 warp)",
        "3 x 32,768 = 98,304",
        "0 to 127",
        "exp2 107 (104 MUFU.EX2)",
        "beside it: peer, 16 bytes of local memory a thread, 2 loads, 0 stores",
        "f.yaml:3: Used 128 registers",
    ):
        assert said in text, text
    rows = [x for x in text.splitlines() if x.strip().startswith("softmax ") and "551" in x]
    assert len(rows) == 2
    assert len({len(x) for x in rows}) == 1
