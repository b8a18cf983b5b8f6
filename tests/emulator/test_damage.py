"""Damages are single edits, each named, each leaving the rest of the text as it was."""

from fa4gen.emulator.damage import damages

KERNEL = """\
	mov.b32 	%r1, __dynamic_shmem__0;
	mov.b32 	%r2, 32768;
	mbarrier.init.shared.b64 [%r1], 2;
	fence.mbarrier_init.release.cluster;
	bar.sync 	0;
$L_1:
	@%p1 bra 	$L_2;
	mbarrier.arrive.expect_tx.shared.b64 %rd1, [%r1], %r2;
	{
	.reg .pred P1;
LAB_WAIT:
	mbarrier.try_wait.parity.shared.b64 P1, [%r1], %r3, 10000000;
	@P1 bra.uni DONE;
	bra.uni LAB_WAIT;
DONE:
	}
	mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r1], 0;
$L_2:
	add.s32 	%r9, %r1, 8;
	// begin inline asm
	tcgen05.wait::st.sync.aligned;
	// end inline asm
	mbarrier.arrive.shared.b64 %rd2, [%r9];
	tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r9];
"""


def by_name() -> dict[str, str]:
    return {d.name: d.text for d in damages(KERNEL)}


def test_each_kind_of_damage_is_found_where_it_applies() -> None:
    assert sorted(by_name()) == sorted(
        [
            *("count-1@3", "count+1@3", "no-fence@4", "no-barrier@5"),
            *("no-arrive@8", "bytes-16@8", "bytes+16@8"),
            *("no-wait@12", "flipped-phase@12", "no-wait@17", "flipped-phase@17"),
            *("no-wait@21", "no-arrive@23", "early@23", "no-commit@24", "early@24"),
        ]
    )


def test_a_damage_changes_nothing_else() -> None:
    original = KERNEL.split("\n")
    for name, text in by_name().items():
        changed = [
            i for i, (a, b) in enumerate(zip(original, text.split("\n"), strict=True)) if a != b
        ]
        at = int(name.split("@")[1]) - 1
        assert at in changed
        assert len(changed) == (2 if name.startswith("early") else 1)


def test_the_edits_say_what_they_claim() -> None:
    text = {name: t.split("\n") for name, t in by_name().items()}
    assert text["no-arrive@23"][22] == ""
    assert text["no-wait@12"][11] == "mov.pred P1, -1;"
    assert text["no-wait@17"][16] == "mov.pred %p2, -1;"
    assert text["flipped-phase@17"][16].endswith("%p2, [%r1], 1;")
    assert "xor.b32 %damage, %r3, 1;" in text["flipped-phase@12"][11]
    assert "P1, [%r1], %damage, 10000000;" in text["flipped-phase@12"][11]
    assert text["bytes+16@8"][7].endswith("[%r1], 32784;")
    assert text["count-1@3"][2].endswith("[%r1], 1;")


def test_what_comes_early_stays_after_what_defines_its_operands() -> None:
    moved = by_name()["early@23"].split("\n")
    assert moved[22] == ""
    assert moved[20].index("mbarrier.arrive") < moved[20].index("tcgen05.wait::st")
    assert "%r9, %r1, 8" in moved[18]
