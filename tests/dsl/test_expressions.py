"""Expressions: integers, names of parameters, four operations, and nothing else."""

import pytest

from fa4gen.diag import Bag
from fa4gen.dsl.expressions import Environment, nearest
from fa4gen.dsl.reader import Map, Scalar, read

PARAMS = """
tile: 128
double: tile * 2
mix: {degree: 3}
by_mask: {full: 1, causal: 2}
a: b
b: c
c: a
share: 0.5
stages: max
"""


def environment(mask: str = "full") -> Environment:
    params = read(PARAMS, "p.yaml")
    return Environment(
        params=params, problem={"head_dim": 64, "dtype": "bf16"}, mask=mask, bag=Bag()
    )


def value(text: str, env: Environment) -> int | None:
    node = read(f"k: {text}", "f.yaml").get("k")
    assert node is not None
    return env.integer(node)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7", 7),
        ("tile", 128),
        ("double", 256),
        ("tile * 2 + head_dim // 64", 257),
        ("(tile + 1) % 2", 1),
        ("-tile", -128),
        ("mix.degree", 3),
        ("by_mask", 1),
        ("7 // 2 * 2", 6),
    ],
)
def test_values(text: str, expected: int) -> None:
    env = environment()
    assert value(text, env) == expected
    assert env.bag.found == []


def test_the_mask_picks() -> None:
    assert value("by_mask", environment("causal")) == 2


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("tiles", "FA0204"),
        ("tile // 0", "FA0210"),
        ("a", "FA0210"),
        ("share", "FA0106"),
        ("0.5", "FA0106"),
        ("1e3", "FA0106"),
        ("010", "FA0106"),
        ("true", "FA0106"),
        ("tile / 2", "FA0106"),
        ("tile ** 9", "FA0106"),
        ("__import__('os')", "FA0106"),
        ("tile if tile else 1", "FA0106"),
        ("[1]", "FA0106"),
        ("dtype", "FA0204"),
        ("mix", "FA0106"),
    ],
)
def test_anything_else_is_an_error(text: str, code: str) -> None:
    env = environment()
    value(text, env)
    assert [d.code for d in env.bag.found] == [code]


def test_a_quoted_expression_is_still_one() -> None:
    assert value("'tile + 1'", environment()) == 129
    assert value("'7'", environment()) == 7


def test_resolving_follows_names_to_what_they_stand_for() -> None:
    env = environment()
    stages = env.resolve(Scalar(text="stages", span=env.params.span))
    mix = env.resolve(Scalar(text="mix", span=env.params.span))
    assert isinstance(stages, Scalar)
    assert stages.text == "max"
    assert isinstance(mix, Map)


def test_a_bare_word_is_no_known_expression() -> None:
    env = environment()
    assert env.known("tile + mix.degree")
    assert env.known("max(tile, 2)")
    assert not env.known("max")
    assert not env.known("lots")


def test_the_nearest_name_is_suggested() -> None:
    assert nearest("registrs", ["warps", "registers"]) == "write `registers`"
    assert nearest("xyz", ["warps", "registers"]) == "one of `warps`, `registers`"
