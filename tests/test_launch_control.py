"""The hardware's tile scheduler (`clc`): a ring as any other, proved; more tiles than CTAs."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from fa4gen import driver
from fa4gen.diag import Fa4genError
from fa4gen.emulate import emulate
from fa4gen.ir.program import (
    Arrive,
    KernelProgram,
    RoleProgram,
    Stmt,
    TryCancel,
    Wait,
)
from fa4gen.scheduler.verify import verify

SCHEDULES = Path(__file__).parents[1] / "schedules"
CLC = "{tile: {scheduler: {full: clc, causal: lpt_clc}}}"


@pytest.fixture(name="asking")
def _asking(tmp_path: Path) -> Path:
    path = tmp_path / "asking.yaml"
    path.write_text(
        f"language: 1\nschedule: asking\nextends: {SCHEDULES / 'fwd_hd64.yaml'}\nlevels: {CLC}\n"
    )
    return path


@pytest.mark.dsl
@pytest.mark.parametrize("causal", [False, True])
def test_a_cta_takes_the_places_of_others(asking: Path, causal: bool) -> None:
    """Tiles of three rows of blocks, three heads: 9 or 18; one or two CTAs begin."""
    pytest.importorskip("cutlass")
    for ctas, batch in ((1, 1), (2, 2)):
        sizes = {"batch": batch, "heads": 3, "seqlen_q": 600, "seqlen_k": 300}
        settings = {"causal": str(causal).lower()}
        done = emulate(asking, settings=settings, processes=ctas, seed=ctas, **sizes)
        assert done.ok, str(done)
        count = {
            what: sum(n for name, n in done.report.opcodes.items() if name.startswith(what))
            for what in ("tcgen05.alloc", "clusterlaunchcontrol.try_cancel")
        }
        assert count["clusterlaunchcontrol.try_cancel"] == 9 * batch
        assert count["tcgen05.alloc"] <= ctas


@pytest.mark.dsl
def test_persistent_ctas_come_round_to_more_tiles() -> None:
    """Two CTAs, 18 tiles; full tiles are dealt out in advance."""
    pytest.importorskip("cutlass")
    sizes = {"batch": 2, "heads": 3, "seqlen_q": 600, "seqlen_k": 300}
    done = emulate(SCHEDULES / "fwd_hd64.yaml", settings={"causal": "false"}, num_sms=2, **sizes)
    assert done.ok, str(done)
    assert done.report.ctas == 2


def program(asking: Path) -> KernelProgram:
    found = driver.check(asking).program.value
    assert isinstance(found, KernelProgram)
    return found


def changed(
    old: KernelProgram, role: str, change: Callable[[Stmt], Iterable[Stmt]]
) -> KernelProgram:
    """The program with the last statements of a role's tiles changed."""

    def of(r: RoleProgram) -> RoleProgram:
        return replace(r, last=tuple(x for s in r.last for x in change(s)))

    return replace(old, roles=tuple(of(r) if r.name == role else r for r in old.roles))


def at(s: Stmt, kind: type[Arrive] | type[Wait], barrier: str) -> bool:
    return isinstance(s, kind) and s.on.barrier == barrier


@pytest.mark.parametrize("role", ["softmax", "correction", "mma", "load", "epilogue"])
def test_each_reader_waits_for_the_answer_and_gives_its_place_back(asking: Path, role: str) -> None:
    old = program(asking)
    for kind, barrier in ((Arrive, "tiles_empty"), (Wait, "tiles_full")):
        mutant = changed(old, role, lambda s, k=kind, b=barrier: [] if at(s, k, b) else [s])
        assert mutant != old
        with pytest.raises(Fa4genError, match=r"FA03\d\d"):
            verify(mutant)


def test_nobody_asks_before_all_have_read(asking: Path) -> None:
    mutant = changed(program(asking), "load", lambda s: [] if at(s, Wait, "tiles_empty") else [s])
    with pytest.raises(Fa4genError, match=r"FA03\d\d"):
        verify(mutant)


def test_an_answer_has_sixteen_bytes(asking: Path) -> None:
    old = program(asking)
    mutant = changed(
        old, "load", lambda s: [replace(s, tx_bytes=8) if isinstance(s, TryCancel) else s]
    )
    halved = tuple(replace(b, tx_bytes=8) if b.name == "tiles_full" else b for b in old.barriers)
    for wrong in (mutant, replace(mutant, barriers=halved)):
        with pytest.raises(Fa4genError, match="FA0305"):
            verify(wrong)


def test_sequences_of_their_own_and_splits_find_their_tiles(asking: Path) -> None:
    """A causal grid of many sequences lies in its first dimension; splits are dealt by the grid."""
    settings = {"varlen_q": "true", "varlen_k": "true", "causal": "true"}
    kinds = []
    for more in ({}, {"split_kv": "true"}):
        head = driver.check(asking, settings=settings | more).program.value.head
        kinds.append(head.tiles.kind)
    assert kinds == ["clc", "split"]
