"""The JSON Schema says of a schedule what the reader says of it."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from fa4gen.dsl import json_schema
from fa4gen.dsl.language import LEVELS, OPTIONS, ROOT
from fa4gen.ir.ops import KINDS

SCHEDULES = sorted((Path(__file__).parents[2] / "schedules").glob("*.yaml"))


def validator() -> jsonschema.Draft202012Validator:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda p: p.stem)
def test_shipped_schedules_are_valid(path: Path) -> None:
    as_json = json.loads(json.dumps(yaml.safe_load(path.read_text())))  # keys are text there
    errors = [e.message for e in validator().iter_errors(as_json)]
    assert errors == []


def damaged(change: dict[str, object]) -> bool:
    path = next(p for p in SCHEDULES if p.stem == "fwd_hd128")
    return not validator().is_valid({**yaml.safe_load(path.read_text()), **change})


@pytest.mark.parametrize(
    "change",
    [
        {"kernels": "attention_forward"},
        {"kernel": "attention"},
        {"index": {"s": 9}},
        {"index": {}},
        {"roles": {"mma": {"warps": 1}}},
        {"roles": {"mma": {"warps": 1, "registers": 56, "regs": 1}}},
        {"steps": {"mma": {"block": "pv[0 qk"}}},
        {"operations": {"qk": {"op": "umma", "a": "q"}}},
        {"operations": {"qk": {"op": "fma"}}},
        {"barriers": {"s full": {"after": "a", "before": "b"}}},
        {"barriers": {"s_full": {"after": "a b", "before": "b"}}},
        {"levels": {"tile": {"over": "work_tiles"}}},
    ],
)
def test_damaged_schedules_are_not(change: dict[str, object]) -> None:
    assert damaged(change)


@pytest.mark.parametrize(
    "change",
    [
        {"roles": {"mma": {"warps": 1, "registers": {"full": 56, "causal": 64}}}},
        {"roles": {"mma": {"warps": "p + 1", "registers": 56}}},
        {"steps": {"mma": {"block": ["pv[0]", "qk[s]+1"]}}},
        {"barriers": {"x[s]": {"after": ["a[s].0", "b[s]"], "before": "c[s] | d.rest"}}},
        {
            "serves": {
                "head_dim": {"multiple_of": 8, "from": 8, "to": 256, "default": 64},
                "dtype": "bf16",
                "causal": True,
            }
        },
    ],
)
def test_other_forms_are_valid(change: dict[str, object]) -> None:
    assert not damaged(change)


def test_it_is_json() -> None:
    assert json.loads(json.dumps(json_schema())) == json_schema()


def test_every_option_of_a_kind_is_in_the_language() -> None:
    assert {o for k in KINDS.values() for o in k.options} == set(OPTIONS)


def test_every_key_says_what_it_means() -> None:
    assert all(key.doc for key in (*ROOT.keys.values(), *LEVELS.keys.values(), *OPTIONS.values()))
