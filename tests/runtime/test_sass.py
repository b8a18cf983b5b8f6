"""Loops of machine code: natural, innermost, without the slow paths of waits."""

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.runtime import sass
from fa4gen.runtime.roles import parts_of
from fa4gen.runtime.units import UNITS, unit_of

# A tile loop around a block loop; the block loop's wait has its slow path behind the exit, as ptxas
# lays it out; a wait for registers stands in the straight path.
TEXT = """
.section	.text.kernel,"ax",@progbits
.text.kernel:
	//## File "fwd.py", line 3
        /*0000*/                   BRX R2 -0x10    (*"BRANCH_TARGETS .L_x_9,.L_x_8"*) ;
.L_x_9:
        /*0010*/                   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0xf0 ;
        /*0020*/                   BRA.U !UP0, `(.L_x_9) ;
.L_x_0:
	//## File "fwd.py", line 10
        /*0030*/                   MOV R1, R2 ;
.L_x_1:
	//## File "fwd.py", line 12
        /*0040*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R2 ;
        /*0050*/              @!P0 BRA `(.L_x_5) ;
.L_x_6:
	//## File "fwd.py", line 2
        /*0060*/                   MUFU.EX2 R3, R3 ;
        /*0070*/              @P1 FMUL2 R4, R4, R6 ;
	//## File "fwd.py", line 13
        /*0080*/                   BSSY B0, `(.L_x_2) ;
        /*0090*/               @P2 BRA `(.L_x_3) ;
        /*00a0*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR12], RZ, !UPT ;
.L_x_3:
        /*00b0*/                   BSYNC B0 ;
.L_x_2:
        /*00c0*/               @P3 BRA `(.L_x_1) ;
	//## File "fwd.py", line 10
        /*00d0*/                   STG.E [R2], R4 ;
        /*00e0*/               @P4 BRA `(.L_x_0) ;
        /*00f0*/                   EXIT ;
.L_x_5:
	//## File "fwd.py", line 12
        /*0100*/              @!P0 NANOSLEEP.SYNCS 0x989680 ;
        /*0110*/              @!P0 SYNCS.PHASECHK.TRANS64 P0, [UR4], R2 ;
        /*0120*/              @!P0 BRA `(.L_x_5) ;
        /*0130*/                   BRA `(.L_x_6) ;
.L_x_7:
        /*0140*/                   BRA `(.L_x_7);
        /*0150*/                   NOP;
.L_x_8:
        /*0160*/                   MUFU.RCP R3, R3 ;
        /*0170*/               @P0 BRA `(.L_x_8) ;
        /*0180*/                   EXIT ;
"""

SOURCE = """\
def exp(x):
    for _ in (1,): return cute.math.exp2(x)
@cute.kernel
def kernel(q):
    a = 1
    # ==== role load  # fwd.yaml:4
    if warp == 0:
        for i in cutlass.range(n, unroll=1):  # blocks
            p.load(q)  # fwd.yaml:9
    # ==== role softmax, instances 0 to 1 as a run-time index  # fwd.yaml:5
    if warp > 3:
        for i in cutlass.range(n, unroll=1):  # unmasked
            for k in cutlass.range_constexpr(4):
                m.exp(k)  # fwd.yaml:17
    a = 2
@cute.jit
def launch(q):
    kernel(q)
"""


def test_the_innermost_loop_is_found_without_slow_paths():
    (code,) = sass.parse(TEXT)
    assert code.name == "kernel"
    assert len(code.instructions) == 25
    loop, behind_a_table = code.loops
    assert [hex(i.address) for i in loop.instructions] == [
        "0x40", "0x50", "0x60", "0x70", "0x80", "0x90", "0xa0", "0xb0", "0xc0",
    ]  # fmt: skip
    assert behind_a_table.opcodes() == {"MUFU.RCP": 1, "BRA": 1}


def test_instructions_are_counted_by_unit_and_mnemonic():
    loop = sass.parse(TEXT)[0].loops[0]
    assert loop.units() == {"control": 5, "sync": 1, "mufu": 1, "fma": 1, "tensor": 1}
    assert loop.opcodes()["MUFU.EX2"] == loop.opcodes()["HGMMA"] == loop.opcodes()["FMUL2"] == 1
    assert loop.lines() == {12: 2, 2: 2, 13: 5}


def test_a_loop_belongs_to_the_role_whose_lines_it_holds():
    parts = parts_of(SOURCE)
    assert [(p.name, p.first, p.last) for p in parts.roles] == [("load", 6, 9), ("softmax", 10, 15)]
    assert [(p.name, p.first) for p in parts.loops] == [("blocks", 8), ("unmasked", 12)]
    loop = sass.parse(TEXT)[0].loops[0]
    assert parts.role_of(loop.lines()) == "softmax"
    assert parts.loop_of(loop.lines()).name == "unmasked"
    assert parts.function_of(2) == "exp"
    assert parts.function_of(17) == ""


def test_without_lines_there_is_no_role():
    bare = "\n".join(x for x in TEXT.splitlines() if "File" not in x)
    loop = sass.parse(bare)[0].loops[0]
    assert len(loop.instructions) == 9
    assert parts_of(SOURCE).role_of(loop.lines()) == ""


def test_what_is_not_python_has_no_parts():
    assert parts_of("def (").roles == ()


@pytest.mark.parametrize(
    ("mnemonic", "unit"),
    [
        ("UTCHMMA", "tensor"),
        ("UIADD3", "uniform"),
        ("LDTM", "tensor_memory"),
        ("FFMA2", "fma"),
        ("STL", "local"),
        ("QWERTY", "other"),
    ],
)
def test_units(mnemonic, unit):
    assert unit_of(mnemonic) == unit
    assert unit in UNITS


def test_a_file_that_is_no_cubin_is_an_error(tmp_path):
    from fa4gen.runtime.report import static_counts

    (tmp_path / "x.cubin").write_bytes(b"text")
    with pytest.raises(Fa4genError, match="FA0706"):
        static_counts(tmp_path / "x.cubin")
