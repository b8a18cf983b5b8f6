"""Which candidate serves a problem: the innermost layer, the narrower schedule, or an error."""

from dataclasses import replace

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.runtime.dispatch import Candidate, explain, find, make_layer
from fa4gen.runtime.problem import Problem

D64 = Problem(target="sm_90a", dtype="bf16", head_dim=64, head_dim_v=64, causal=False)


def candidate(name: str, dims: tuple[int, ...] = (64,), **more: object) -> Candidate:
    fields = {"target": "sm_90a", "dtypes": ("bf16",), "head_dims_v": (), "causal": (False, True)}
    return Candidate(name=name, head_dims=dims, origin=f"{name}.yaml", **(fields | more))  # type: ignore[arg-type]


def test_the_narrower_schedule_comes_first_in_any_order() -> None:
    wide, narrow = candidate("wide", (64, 128, 192)), candidate("narrow")
    for order in ((wide, narrow), (narrow, wide)):
        layer = make_layer("l", order)
        assert find([layer], D64) is narrow
        d192 = Problem(target="sm_90a", dtype="bf16", head_dim=192, head_dim_v=192, causal=True)
        assert find([layer], d192) is wide


def test_the_inner_layer_comes_first_even_if_wider() -> None:
    inner = make_layer("inner", [candidate("wide", (64, 128))])
    outer = make_layer("outer", [candidate("narrow")])
    assert find([inner, outer], D64).name == "wide"
    lines = explain([inner, outer], D64)
    assert lines == ["wide (inner): serves", "narrow (outer): would serve, but wide comes first"]


@pytest.mark.parametrize("dims", [(64,), (64, 96)])
def test_overlap_that_is_no_refinement_is_ambiguous(dims: tuple[int, ...]) -> None:
    other = (64,) if dims == (64,) else (64, 128)
    with pytest.raises(Fa4genError, match=r"FA0812.*`a` and `b`") as caught:
        make_layer("l", [candidate("a", dims), candidate("b", other)])
    assert "a.yaml" in str(caught.value)


def test_a_candidate_that_nothing_reaches_is_an_error() -> None:
    with pytest.raises(Fa4genError, match=r"FA0813.*`none`"):
        make_layer("l", [candidate("none", ())])
    parts = [candidate("a", (64,)), candidate("b", (128,))]
    with pytest.raises(Fa4genError, match=r"FA0813.*`whole`"):
        make_layer("l", [*parts, candidate("whole", (64, 128))])


def test_features_are_a_choice_of_a_schedule_and_a_fact_of_a_kernel() -> None:
    windowed = replace(D64, features=("window",))
    plain, able = candidate("plain"), candidate("able", (64, 96), features=("window",))
    layer = make_layer("l", [able, plain])
    assert find([layer], D64) is plain
    assert find([layer], windowed) is able
    assert "plain (l): no window" in explain([layer], windowed)
    built = candidate("built", features=("window",), shared_object="/k.so")
    layer = make_layer("l", [able, built])
    assert find([layer], windowed) is built
    assert find([layer], D64) is able
    assert "built (l): window always" in explain([layer], D64)


def test_schedules_with_other_features_for_the_same_problem_are_ambiguous() -> None:
    with pytest.raises(Fa4genError, match=r"FA0812.*`a` and `b`"):
        make_layer("l", [candidate("a", (64, 96)), candidate("b", features=("window",))])


def test_what_nothing_serves_says_why_not() -> None:
    with pytest.raises(Fa4genError, match="FA0805") as caught:
        find([make_layer("l", [candidate("a", (128,), dtypes=("fp16",))])], D64)
    assert "a (l): dtype is fp16, head_dim is 128" in caught.value.diagnostics[0].why


def test_a_schedule_over_lists_serves_nothing_else_and_shares_nothing() -> None:
    plain = candidate("plain", features=("window", "score_mod"))
    lists = candidate("lists", features=("block_list", "score_mod"), always=("block_list",))
    layers = [make_layer("both", [plain, lists])]
    assert find(layers, D64).name == "plain"
    assert find(layers, replace(D64, features=("score_mod",))).name == "plain"
    assert find(layers, replace(D64, features=("block_list", "score_mod"))).name == "lists"
