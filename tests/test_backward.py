"""The backward's kernels in the emulator; and what their schedules are refused for."""

from dataclasses import replace
from pathlib import Path

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.driver import check
from fa4gen.emulate import emulate
from fa4gen.ir import program as ir
from fa4gen.ir.program import Lanes
from fa4gen.scheduler.verify import verify

SCHEDULES = Path(__file__).parents[1] / "schedules"
CASES = [  # head dim, causal, dtype, queries, keys, heads, heads of K and V
    (128, True, "bf16", 300, 130, 3, 1),  # more queries than keys: rows that see nothing
    (128, True, "bf16", 129, 257, 1, 1),
    (128, False, "bf16", 1, 200, 2, 2),
    (64, True, "bf16", 130, 300, 3, 1),
    (64, False, "fp16", 257, 129, 2, 1),
]


@pytest.mark.dsl
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join(map(str, c)))
def test_gradients_are_right(case: tuple[int, bool, str, int, int, int, int], seed: int) -> None:
    pytest.importorskip("cutlass")
    d, causal, dtype, queries, keys, heads, shared = case
    got = emulate(
        SCHEDULES / f"bwd_hd{d}_sm90.yaml",
        settings={"causal": str(causal).lower(), "dtype": dtype},
        heads=heads,
        heads_kv=shared,
        seqlen_q=queries,
        seqlen_k=keys,
        seed=seed,
    )
    assert got.ok, str(got)
    assert [v.name for v in got.verdicts] == ["dq", "dk", "dv"]


MEMBERS = [  # family, head dim, head dim of V
    ("bwd_sm90", 40, 24),
    ("bwd_to128_sm90", 72, 104),  # a consumer's columns of dQ end past the tensor
    ("bwd_to256_sm90", 192, 128),
    ("bwd_to256_sm90", 256, 256),  # one slot of Q and dO
]


@pytest.mark.dsl
@pytest.mark.parametrize("member", MEMBERS, ids=lambda m: "-".join(map(str, m)))
def test_families_serve_other_head_dims(member: tuple[str, int, int]) -> None:
    pytest.importorskip("cutlass")
    family, d, dv = member
    sizes = {"heads": 2, "heads_kv": 1, "seqlen_q": 131, "seqlen_k": 70}
    got = emulate(
        SCHEDULES / f"{family}.yaml",
        settings={"head_dim": str(d), "head_dim_v": str(dv), "causal": "true"},
        **sizes,  # type: ignore[arg-type]
    )
    assert got.ok, str(got)


SPANNING = {  # a line of the family whose products span the consumers, another in its place, codes
    "K and V overwritten while the other reads them": ("  kv_done: ", "", "FA0310"),
    "P of the other is not awaited": ("  p_all:       {", "", "FA0309"),
    "columns that are no whole steps": ("  dk_columns: ", "  dk_columns: 120", "FA0411"),
    "half of P": ("  pdo: ", "  pdo: {op: wgmma, a: p_all, b: do, updates: dv}", "FA0411"),
    "all queries each": ("  kq: ", "  kq: {op: wgmma, a: k, b: q^T, writes: s}", "FA0411"),
}


@pytest.mark.parametrize("name", SPANNING)
def test_spanning_products_are_judged(name: str, tmp_path: Path) -> None:
    start, other, code = SPANNING[name]
    lines = (SCHEDULES / "bwd_to256_sm90.yaml").read_text().splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith(start))
    path = tmp_path / "edited.yaml"
    path.write_text("\n".join((*lines[:at], other, *lines[at + 1 :])))
    with pytest.raises(Fa4genError) as caught:
        check(path)
    assert {d.code for d in caught.value.diagnostics} == {code}


def edited(tmp_path: Path, *pairs: tuple[str, str]) -> Path:
    text = (SCHEDULES / "bwd_hd128_sm90.yaml").read_text()
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = tmp_path / "edited.yaml"
    path.write_text(text)
    return path


REFUSED = {
    "dS is not transposed back": (("a: ds_all^T, b: k", "a: ds_all, b: k"), "FA0222"),
    "dV of dS": (("a: p, b: do, updates: dv", "a: ds, b: do, updates: dv"), "FA0222"),
    "dK without its scale": (("writes: dk_out, scaled: true", "writes: dk_out"), "FA0223"),
    "a part that is no part": (("dq_columns: head_dim // 2", "dq_columns: head_dim"), "FA0411"),
    "columns that are no whole steps": (("head_dim: 128,", "head_dim: 80,"), "FA0411"),
    "columns in narrower boxes": (("head_dim: 128,", "head_dim: 96,"), ""),
    "blocks that row arrays do not hold": (("tile_m: 64  ", "tile_m: 80  "), "FA0411"),
    "the other loop": (("over: query_blocks", "over: kv_blocks"), "FA0109"),
    "from the last block": (("order: ascending", "order: descending"), "FA0603"),
    "keys that are not masked": (("mask: [seqlen_k, causal,", "mask: [causal,"), "FA0223"),
    "an index that there is not": (("sums_over: s", "sums_over: g"), "FA0206"),
    "one slot for dS": (("per: s, stages: 2}         # dS^T", "per: s, stages: 1} # dS^T"), ""),
    "P rounded before it is P": (("probs convert_p pdo", "convert_p probs pdo"), "FA0316"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_edits_are_judged(name: str, tmp_path: Path) -> None:
    edit, code = REFUSED[name]
    path = edited(tmp_path, edit)
    if not code:
        check(path)
        return
    with pytest.raises(Fa4genError) as caught:
        check(path)
    assert code in {d.code for d in caught.value.diagnostics}
    assert all(d.span is not None for d in caught.value.diagnostics)


def test_rows_have_their_places(tmp_path: Path) -> None:
    exchanged = (("reads: lse, updates: s", "reads: delta, updates: s"), ("[s, delta]", "[s, lse]"))
    with pytest.raises(Fa4genError) as caught:
        check(edited(tmp_path, *exchanged))
    assert [d.code for d in caught.value.diagnostics] == ["FA0222"]
    assert "it needs LSE" in caught.value.diagnostics[0].title


def test_a_lane_may_not_arrive_for_its_warp() -> None:
    """`WARPS` waits for the warp's lanes; without that, an arrival says nothing of their stores."""
    program = check(SCHEDULES / "bwd_hd128_sm90.yaml").program.value
    consumer = next(r for r in program.roles if r.name == "consumer")
    body = consumer.segments[0].body
    at = next(
        n for n, s in enumerate(body) if isinstance(s, ir.Arrive) and s.on.barrier == "ds_all_full"
    )
    arrive = body[at]
    assert isinstance(arrive, ir.Arrive)
    assert arrive.lanes is Lanes.WARPS
    worse = (*body[:at], replace(arrive, lanes=Lanes.ELECTED), *body[at + 1 :])
    segments = tuple(replace(s, body=worse) for s in consumer.segments[:1])
    roles = tuple(
        replace(r, segments=(*segments, *r.segments[1:]), first=worse) if r is consumer else r
        for r in program.roles
    )
    with pytest.raises(Fa4genError) as caught:
        verify(replace(program, roles=roles))
    assert caught.value.diagnostics[0].code == "FA0314"
