"""Cases with features: the runner's reference beside the emulator's, and who serves them."""

import pytest
import torch

from fa4gen.bench.cases import feature_cases
from fa4gen.bench.runner.features import asked, plain, values
from fa4gen.bench.runner.problem import reference, serves, softmax_scale
from fa4gen.emulator.attention import AttentionProblem, attend, make_inputs

FEATURES = ("window", "softcap", "alibi", "sinks")
KERNEL = {"dtype": "bfloat16", "head_dim": 64, "head_dim_v": 64, "causal": False}


@pytest.mark.parametrize("features", [*((f,) for f in FEATURES), FEATURES])
@pytest.mark.parametrize("causal", [False, True])
def test_two_references_agree(features: tuple[str, ...], causal: bool) -> None:
    made = feature_cases(KERNEL | {"causal": causal, "features": features})
    small = [c for c in made if c["kind"] == "check" and c["seqlen_q"] * c["seqlen_k"] < 1 << 18]
    assert len(small) >= 5
    for case in small[:3]:
        assert asked(case) == features
        window = case.get("window")
        problem = AttentionProblem(
            **{n: case[n] for n in ("batch", "heads", "heads_kv", "seqlen_q", "seqlen_k")},
            **{n: case[n] for n in ("head_dim", "head_dim_v", "causal")},
            window=tuple(window) if window else None,
            softcap=case.get("softcap", 0.0),
            alibi=bool(case.get("alibi")),
            sinks=bool(case.get("sinks")),
        )
        x = make_inputs(problem, 1)
        o, lse = reference(torch, x.q, x.k, x.v, case)
        exact, exact_lse = attend(problem, *(t.double() for t in (x.q, x.k, x.v)))
        assert torch.allclose(o, exact.transpose(1, 2).flatten(0, 1), atol=1e-6)
        assert torch.allclose(lse, exact_lse.flatten(0, 1), atol=1e-5)
        every = [(b, h) for b in range(case["batch"]) for h in range(case["heads"])]
        rough = plain(torch, x.q, x.k, x.v, case, softmax_scale(case), every)
        live = lse > float("-inf")
        assert (rough[live].double() - o[live]).abs().max() < 0.1
        assert len(values(torch, case, "cpu")) == sum(2 if f == "window" else 1 for f in features)


def test_a_kernel_serves_cases_with_its_features_alone() -> None:
    case = feature_cases(KERNEL | {"features": ("window", "sinks")})[0]
    assert serves(KERNEL | {"features": ["window", "sinks"]}, case)
    assert serves(KERNEL | {"features": ["window", "sinks", "pack_gqa"]}, case)
    assert not serves(KERNEL | {"features": ["window"]}, case)
    assert not serves(KERNEL, case)
    names = [c["name"] for c in feature_cases(KERNEL | {"features": FEATURES})]
    assert len(set(names)) == len(names) == 12
