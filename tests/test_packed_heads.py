"""Query heads packed into tiles, built and run in the emulator: right values, no race, no hang."""

from pathlib import Path

import pytest

from fa4gen import driver
from fa4gen.diag import Fa4genError
from fa4gen.emulate import Emulated, emulate
from fa4gen.ir.program import KernelProgram, RoleProgram, TmaLoad
from fa4gen.scheduler.verify import verify

SCHEDULES = Path(__file__).parents[1] / "schedules"
BOTH = pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"])
PACKED = {"pack_gqa": "true"}


def run(name: str, **asked: object) -> Emulated:
    pytest.importorskip("cutlass")
    settings = PACKED | dict(asked.pop("settings", {}))  # type: ignore[call-overload]
    done = emulate(SCHEDULES / f"{name}.yaml", settings=settings, num_sms=1, **asked)  # type: ignore[arg-type]
    assert done.ok, str(done)
    return done


@pytest.mark.dsl
@BOTH
@pytest.mark.parametrize(
    ("heads", "heads_kv", "sq", "sk"),
    [
        (3, 1, 5, 5),  # 9 heads over 3 were refused elsewhere
        (10, 1, 1, 300),  # a ratio that does not divide the tile, decoding
        (10, 1, 30, 200),
        (8, 2, 19, 70),
        (16, 1, 3, 129),
        (1, 1, 150, 150),
        (96, 1, 2, 40),  # more than a tile of 64 rows holds: 48 at a time
        (71, 1, 3, 20),  # a prime number of them
    ],
)
def test_any_number_of_heads_is_packed(
    name: str, heads: int, heads_kv: int, sq: int, sk: int
) -> None:
    causal = {"settings": {"causal": "true"}}
    run(name, heads=heads, heads_kv=heads_kv, seqlen_q=sq, seqlen_k=sk, seed=heads, **causal)


@pytest.mark.dsl
@BOTH
def test_packed_heads_have_windows_and_a_slope_and_a_sink_of_their_own(name: str) -> None:
    on = {"settings": dict.fromkeys(("window", "softcap", "alibi", "sinks"), "true")}
    run(name, heads=7, heads_kv=1, seqlen_q=40, seqlen_k=500, batch=2, window=(100, 10), **on)


@pytest.mark.dsl
@BOTH
def test_decoding_reads_keys_once_for_all_heads_of_a_group(name: str) -> None:
    """One query, eight heads a KV head: one CTA's loads of K and V instead of eight."""

    def loads(packed: str) -> int:
        settings = {"pack_gqa": packed}
        asked = {"heads": 8, "heads_kv": 1, "seqlen_q": 1, "seqlen_k": 500}
        counts = run(name, settings=settings, races=False, **asked).report.opcodes
        return sum(n for op, n in counts.items() if "tensor.4d.shared::cta.global" in op)

    assert loads("false") >= 8 * loads("true")


def test_bytes_of_packed_boxes_are_those_of_whole_queries() -> None:
    """Boxes that hold whole queries alone bring fewer bytes than a tile has: FA0305."""
    path = SCHEDULES / "fwd_hd128_sm90.yaml"
    program = driver.check(path, settings=PACKED).program.value
    loads = [s for s in program.roles[0].before if isinstance(s, TmaLoad)]
    assert [s.armed for s in loads] == [f"pack * queries * {2 * 128 * 2}"]
    with pytest.raises(Fa4genError, match="FA0305"):
        verify(unarmed(program))


def unarmed(program: KernelProgram) -> KernelProgram:
    from dataclasses import replace

    def of(role: RoleProgram) -> RoleProgram:
        before = (replace(s, armed="") if isinstance(s, TmaLoad) else s for s in role.before)
        return replace(role, before=tuple(before))

    return replace(program, roles=tuple(of(r) for r in program.roles))
