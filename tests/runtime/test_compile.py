"""Compiling generated files: what comes out, and what refusals say and where."""

import re

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.options import Options
from fa4gen.runtime.compile import (
    Request,
    compile_cached,
    compile_into,
    copy_to,
    line_map,
    ptx_lines,
    ptxas_remarks,
    without_lines,
)

KERNEL = '''\
"""A generated file in small: doubles a vector."""
import cutlass
import cutlass.cute as cute
from cutlass import Float32
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor


def twice(x):
    return x + x


@cute.kernel
def kernel(x: cute.Tensor, y: cute.Tensor):
    i = cute.arch.block_idx()[0] * 128 + cute.arch.thread_idx()[0]
    # ==== role double
    if i < cute.size(x):
        y[i] = twice(x[i])  # small.yaml:7
    # BREAK HERE


@cute.jit
def launch(x: cute.Tensor, y: cute.Tensor, stream):
    blocks = cute.ceil_div(cute.size(x), 128)
    kernel(x, y).launch(grid=(blocks, 1, 1), block=(128, 1, 1), stream=stream)


def example_arguments():
    n = cute.sym_int()
    v = make_fake_tensor(Float32, (n,), (1,))
    return v, make_fake_tensor(Float32, (n,), (1,)), make_fake_stream(use_tvm_ffi_env_stream=True)
'''


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    return Options(cache_dir=tmp_path_factory.mktemp("cache"))


def broken(statement):
    return Request(name="small", target="sm_90a", text=KERNEL.replace("# BREAK HERE", statement))


@pytest.mark.dsl
def test_a_kernel_compiles_to_the_same_bytes_anywhere(options, tmp_path, monkeypatch):
    request = Request(name="small", target="sm_90a", text=KERNEL)
    made = compile_cached(request, options)
    assert ".target sm_90a" in made.ptx.read_text()
    assert ".loc" in made.lines_ptx.read_text()
    assert ".loc" not in made.ptx.read_text()
    assert "Used" in made.remarks.read_text()
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")  # must not reach the compiler
    again = tmp_path / "again"
    again.mkdir()
    compile_into(request, again, options)
    for name in ("kernel.ptx", "kernel.cubin", "kernel.so"):
        assert (again / name).read_bytes() == (made.folder / name).read_bytes(), name
        assert str(tmp_path.parent).encode() not in (again / name).read_bytes()
    copied = copy_to(made, tmp_path / "out")
    assert copied.ptx.read_text() == made.ptx.read_text()


@pytest.mark.dsl
@pytest.mark.parametrize(
    ("statement", "code", "said", "line"),
    [
        ("y[i] = nowhere  # small.yaml:9", "FA0701", "nowhere", 9),
        ("y[i] = twice()  # small.yaml:11", "FA0701", "missing 1 required", 11),
        ('cute.arch.inline_ptx("foo.bar;")  # small.yaml:13', "FA0702", "foo", 13),
        ("y = = 3  # small.yaml:15", "FA0701", "invalid syntax", 15),
    ],
)
def test_a_refusal_names_the_line_of_the_schedule(options, statement, code, said, line):
    with pytest.raises(Fa4genError) as caught:
        compile_cached(broken(statement), options)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert said in str(caught.value)
    assert (found.span.file, found.span.line) == ("small.yaml", line)


@pytest.mark.dsl
def test_an_answer_that_does_not_come_is_an_error(tmp_path):
    hurried = Options(cache_dir=tmp_path / "c", timeout_seconds=0.2)
    with pytest.raises(Fa4genError, match=r"FA0703.*more than 0.2 s"):
        compile_cached(Request(name="small", target="sm_90a", text=KERNEL), hurried)


@pytest.mark.dsl
def test_a_compiler_that_dies_is_an_error(options):
    with pytest.raises(Fa4genError, match=r"FA0703.*died with status 3"):
        compile_cached(broken("__import__('os')._exit(3)"), options)


def test_lines_of_the_schedule_are_read_back_from_comments():
    spans = line_map("a = 1\nb = 2  # fwd.yaml:41\nc  # fwd.yaml:5:9\n# see fwd.yaml:7 too\n")
    assert {n: str(s) for n, s in spans.items()} == {2: "fwd.yaml:41:1", 3: "fwd.yaml:5:9"}


PTX = (
    '.version 8.8\n\t.loc\t1 12 4\n\tmov.b32 %r1, 0;\n\n\tret;\n\t.loc 1 14 0\nx;\n\t.file 1 "k"\n'
)


def test_lines_of_ptx_lead_to_the_generated_file():
    assert ptx_lines(PTX) == {2: 12, 3: 12, 4: 12, 5: 12, 6: 14, 7: 14, 8: 14}
    assert without_lines(PTX) == ".version 8.8\n\tmov.b32 %r1, 0;\n\tret;\nx;\n"


def test_remarks_are_unwrapped():
    said = """\x1b[96mremark[ptxas]:\x1b[0m ptxas detected register spills
          ptxas output:
          ptxas info    : (C7519) warpgroup.arrive is injected in around line 1559 by compiler to
          allow use of registers in GMMA in function
          'kernel_cutlass'
          ptxas info    : 0 bytes gmem
          ptxas info    : Compiling entry function 'kernel_cutlass' for 'sm_90a'
          ptxas info    : Function properties for
          kernel_cutlass
          ptxas         .     112 bytes stack frame, 192 bytes spill stores, 192 bytes spill loads
          ptxas info    : Used 166 registers, used 16 barriers, 112 bytes cumulative stack size
          ptxas info    : Compile time = 323.961 ms
  suggestion: reduce live ranges"""
    assert ptxas_remarks(said) == [
        "(C7519) warpgroup.arrive is injected in around line 1559 by compiler to allow use of"
        " registers in GMMA",
        "112 bytes stack frame, 192 bytes spill stores, 192 bytes spill loads",
        "Used 166 registers, used 16 barriers, 112 bytes cumulative stack size",
    ]
    assert not any(re.search("Compil", r) for r in ptxas_remarks(said)[1:])
