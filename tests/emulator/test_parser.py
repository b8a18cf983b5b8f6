"""PTX text to typed statements: scopes, labels, addresses, positions, and what is refused."""

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.emulator.ptx.module import Address, Immediate, Label, Pair, Register, Vector
from fa4gen.emulator.ptx.parser import load_ptx

TEXT = """//
.version 8.8
.target sm_100a
.address_size 64
.file 1 "kernel.py"
.extern .shared .align 1024 .b8 dynamic[];
.visible .entry first(
  .param .align 64 .b8 map[128],
  .param .u32 n, .param .f32 s,
  .param .u64 pointer
)
.reqntid 128, 1, 1
{
  .reg .pred %p<3>;
  .reg .b32 %r<5>, named;
  .shared .align 16 .b8 fixed[48];
  .loc 1 17 3
  mov.b32 %r1, 0f3F800000;
  { .reg .b32 %r1; LOOP: add.s32 %r1, %r1, -4; @!%p1 bra LOOP; } // inner
  LOOP: @%p2 bra.uni LOOP; /* outer
  two lines */ ld.shared.v2.b32 {%r2, _}, [%r1+0x10];
  cp.async.bulk.tensor.2d.shared::cta.global [%r1], [%r2, {%r3, -7}], [%r4 + 8];
  elect.sync %r2|%p0, -1;
  .pragma "nounroll";
  ret;
}
.visible .entry second() { ret; }
"""


def test_a_module_and_its_parts() -> None:
    module = load_ptx(TEXT, "k.ptx")
    assert (module.target, list(module.entries)) == ("sm_100a", ["first", "second"])
    first = module.entries["first"]
    assert [(p.name, p.offset, p.bytes) for p in first.params] == [
        ("map", 0, 128), ("n", 128, 4), ("s", 132, 4), ("pointer", 136, 8),
    ]  # fmt: skip
    assert first.param_bytes == 144
    assert [(s.name, s.bytes, s.align) for s in first.shared] == [
        ("dynamic", 0, 1024), ("fixed", 48, 16),
    ]  # fmt: skip
    assert first.reqntid == (128, 1, 1)


def test_inner_scopes_hide_registers_and_labels() -> None:
    s = load_ptx(TEXT, "k.ptx").entries["first"].statements
    outer, inner = s[0].operands[0], s[1].operands[0]
    assert isinstance(outer, Register)
    assert isinstance(inner, Register)
    assert outer.name == inner.name == "%r1"
    assert outer.index != inner.index
    assert s[2].operands == (Label("LOOP", 1),)
    assert s[3].operands == (Label("LOOP", 3),)
    assert s[2].guard is not None
    assert s[2].guard.negated


def test_operands_keep_their_form() -> None:
    s = load_ptx(TEXT, "k.ptx").entries["first"].statements
    assert s[0].operands[1] == Immediate(0x3F800000, 32)
    load, copy, elect = s[4].operands, s[5].operands, s[6].operands
    assert isinstance(load[0], Vector)
    assert isinstance(load[1], Address)
    assert load[1].offset == 16
    assert isinstance(copy[1], Address)
    assert copy[1].coordinates[1] == Immediate(-7)
    assert isinstance(copy[2], Address)
    assert copy[2].offset == 8
    assert isinstance(elect[0], Pair)


def test_lines_and_sources_are_kept() -> None:
    s = load_ptx(TEXT, "k.ptx").entries["first"].statements
    lines = TEXT.splitlines()
    assert all(x.opcode in lines[x.line - 1] for x in s)
    assert s[0].source == "kernel.py:17"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("mov.b32 %r1, nothing;", "unknown name 'nothing'"),
        ("@%p9 ret;", "undeclared guard %p9"),
        (".local .b8 stack[16];", "unknown directive"),
        ("ld.shared.b32 %r1, [%r1 * 2];", "cannot read the address"),
    ],
)
def test_what_is_not_understood_is_an_error_at_its_line(line: str, says: str) -> None:
    with pytest.raises(Fa4genError) as caught:
        load_ptx(TEXT.replace("  ret;\n", f"  {line}\n  ret;\n"), "k.ptx")
    (found,) = caught.value.diagnostics
    assert says in found.title
    assert found.span is not None
    assert found.span.line == TEXT.splitlines().index("  ret;") + 1


def test_text_without_a_kernel_is_an_error() -> None:
    with pytest.raises(Fa4genError, match=r"no \.entry"):
        load_ptx(".version 8.8\n.target sm_90a\n", "empty.ptx")
