"""A tensor memory load has read its cells when its registers were consumed, or at wait::ld."""

import itertools

import pytest

BODY = """
shr.u32 %r2, %r1, 5; setp.eq.b32 %p1, %r2, 0; setp.eq.b32 %p4, %r2, 4; and.pred %p5, %p1, %p1;
@%p1 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 32;
bar.sync 0; ld.shared.b32 %r6, [%r0];
@%p4 bra WRITER; @!%p1 bra JOIN;
tcgen05.st.sync.aligned.32x32b.x4.b32 [%r6], {{%r1, %r1, %r1, %r1}};
tcgen05.wait::st.sync.aligned;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r20, %r21}}, [%r6];
tcgen05.ld.sync.aligned.32x32b.x2.b32 {{%r22, %r23}}, [%r6+2];
{consumed}
bar.arrive 1, 64; bar.sync 2, 64;
add.s32 %r30, %r20, %r21; add.s32 %r31, %r22, %r23;
bra JOIN;
WRITER: bar.sync 1, 64;
tcgen05.st.sync.aligned.32x32b.x4.b32 [%r6], {{0, 0, 0, 0}}; tcgen05.wait::st.sync.aligned;
bar.arrive 2, 64;
JOIN: bar.sync 0;
@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 32;
"""


@pytest.mark.parametrize("used", list(itertools.product((False, True), repeat=4)))
@pytest.mark.parametrize("waits", [False, True])
def test_a_load_is_over_when_all_of_its_registers_are_used(execute, used, waits) -> None:
    uses = [f"add.s32 %r40, %r{20 + i}, 1;" for i in range(4) if used[i]]
    consumed = "\n".join([*uses, *["tcgen05.wait::ld.sync.aligned;"] * waits])
    report = execute(BODY.format(consumed=consumed), threads=160)
    clean = waits or all(used)
    assert report.faulty != clean, report
    if not clean:
        assert {f.kind for f in report.races} == {"race: write before read is ordered"}
        columns = {f.address & 0xFFFF for f in report.races}
        assert columns <= {k for k in range(4) if not (used[k & 2] and used[k | 1])}
