"""Keys and values in pages, built and run in the emulator: right values, no race, no hang.

Pages lie in any order; what no sequence uses of them is NaN, and the table names pages that do not
exist where a sequence has none.
"""

from pathlib import Path

import pytest
import torch

from fa4gen import driver
from fa4gen.api.lengths import MOST_PAGED
from fa4gen.diag import Fa4genError
from fa4gen.emulate import Emulated, emulate
from fa4gen.emulator.attention import AttentionProblem, make_inputs
from fa4gen.emulator.pages import NO_PAGES, paged
from fa4gen.ir.features import PAGES, pages_for
from fa4gen.ir.head import Head
from fa4gen.ir.program import KernelProgram, TmaLoad

SCHEDULES = Path(__file__).parents[1] / "schedules"
BOTH = pytest.mark.parametrize("name", ["fwd_hd64", "fwd_hd64_sm90"])


def run(name: str, *, causal: bool = False, packed: bool = False, **asked: object) -> Emulated:
    pytest.importorskip("cutlass")
    given = {"heads": 2, "heads_kv": 1, "num_sms": 2, "seqlen_q": 0, "seqlen_k": 0} | asked
    settings = {"causal": str(causal).lower(), "pack_gqa": str(packed).lower()}
    return emulate(SCHEDULES / f"{name}.yaml", settings=settings, **given)  # type: ignore[arg-type]


@pytest.mark.dsl
@BOTH
def test_small_pages_of_a_cache(name: str) -> None:
    """Eight copies a block; pages of 48 are served by the same kernel."""
    for size, used in ((16, (300, 0, 129, 2)), (48, (16, 17, 300, 1))):
        sizes = {"seqlen_q": 3, "seqlen_k": 300, "batch": 4, "used_k": used}
        done = run(name, causal=True, page_size=size, **sizes)
        assert done.ok, str(done)


@pytest.mark.dsl
@BOTH
def test_decoding_in_splits_with_packed_heads_and_lengths(name: str) -> None:
    lengths = {"lengths_q": (3, 0, 2, 70), "used_k": (300, 20, 0, 150), "seqlen_k": 300}
    done = run(
        name, causal=True, packed=True, heads=6, heads_kv=2, splits=2, page_size=64, **lengths
    )
    assert done.ok, str(done)


@pytest.mark.dsl
def test_large_pages_that_are_full() -> None:
    """One copy a block; without lengths, all pages of the table count."""
    done = run("fwd_hd64_sm90", seqlen_q=70, seqlen_k=512, batch=2, page_size=256)
    assert done.ok, str(done)


def program_of(name: str, page_size: int, **more: str) -> KernelProgram:
    settings = {pages_for(page_size): "true"} | more
    program = driver.check(SCHEDULES / f"{name}.yaml", settings=settings).program.value
    assert isinstance(program, KernelProgram)
    return program


def loads_of_keys(program: KernelProgram) -> list[TmaLoad]:
    (role,) = (r for r in program.roles if r.name == "load")
    return [s for seg in role.segments for s in seg.body if isinstance(s, TmaLoad)]


@pytest.mark.parametrize("name", ["fwd_hd64", "fwd_sm90"])
def test_a_copy_never_crosses_a_page_and_a_block_is_whole(name: str) -> None:
    """Whatever blocks a schedule has, e.g. of 80 keys; bytes are as many as without pages."""
    for size in (16, 32, 64, 128, 1024):
        more = {"head_dim": "256", "head_dim_v": "256"} if name == "fwd_sm90" else {}
        program = program_of(name, size, **more)
        plain = driver.check(SCHEDULES / f"{name}.yaml", settings=more).program.value
        head = program.head
        assert isinstance(head, Head)
        rows = {m.name: m.rows for m in head.maps}
        for mine, theirs in zip(loads_of_keys(program), loads_of_keys(plain), strict=True):
            assert size % rows[mine.tensor_map] == 0
            assert mine.tx_bytes == theirs.tx_bytes
            assert len(mine.boxes) == len(theirs.boxes)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"pages_16": "true", "pages_64": "true"}, "one least size"),
        ({"pages_64": "true", "varlen_k": "true"}, "one behind the other"),
    ],
)
def test_what_pages_cannot_go_with_is_refused(settings: dict[str, str], said: str) -> None:
    with pytest.raises(Fa4genError, match="FA0223") as caught:
        driver.check(SCHEDULES / "fwd_hd64.yaml", settings=settings)
    assert said in str(caught.value)


def test_the_feature_of_a_page_size() -> None:
    sizes = (0, 8, 16, 24, 48, 64, 128, 192, 4096)
    found = [pages_for(n) for n in sizes]
    rows = ("", "", 16, "", 16, 64, 128, 64, 128)
    assert found == [f"pages_{n}" if n else "" for n in rows]
    assert list(PAGES.values()) == sorted(PAGES.values())


@pytest.mark.dsl
def test_most_keys_of_a_call_are_what_kernels_can_count() -> None:
    pytest.importorskip("cutlass")
    from fa4gen.emit.device import launch

    assert launch.LONG == MOST_PAGED


def test_the_emulators_pool_is_nan_where_no_sequence_is() -> None:
    problem = AttentionProblem(
        batch=3, seqlen_q=1, seqlen_k=40, head_dim=8, head_dim_v=8, used_k=(40, 0, 17), page_size=16
    )
    x = make_inputs(problem, 3)
    k, v, table = paged(problem, x, 3)
    assert table.shape == (3, 3)
    assert table[1, :2].tolist() == list(NO_PAGES)
    for t, pool in ((x.k, k), (x.v, v)):
        assert torch.equal(pool[table[0].long()].flatten(0, 1)[:40], t[0])
        assert torch.equal(pool[table[2, :2].long()].flatten(0, 1)[:17], t[2, :17])
        assert int(pool[..., 0, 0].isfinite().sum()) == 57
