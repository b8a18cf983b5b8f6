"""The reader: every node with its place, and nothing silently turned into something else."""

import pytest

from fa4gen.diag import Fa4genError
from fa4gen.dsl.reader import MAX_DEPTH, Map, Scalar, Seq, read


def refused(text: str) -> list[tuple[str, int, int]]:
    with pytest.raises(Fa4genError) as caught:
        read(text, "f.yaml")
    return [(d.code, d.span.line, d.span.col) for d in caught.value.diagnostics if d.span]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("no", "no"),
        ("010", "010"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0", 0),
        ("-3", -3),
        ("1e3", 1000.0),
        ("0.125", 0.125),
        (".5", ".5"),
        ("true", True),
        ("false", False),
        ("True", "True"),
        ("null", None),
        ("~", None),
        ("", None),
        ("'1'", "1"),
        ('"true"', "true"),
        ("2001-01-01", "2001-01-01"),
    ],
)
def test_scalars_have_the_type_that_they_look_like(text: str, value: object) -> None:
    node = read(f"k: {text}", "f.yaml").get("k")
    assert isinstance(node, Scalar)
    assert node.value == value
    assert type(node.value) is type(value)


def test_places_are_kept_for_keys_values_and_parts_of_texts() -> None:
    tree = read('a: 1\nsteps:\n  mma: {block: "pv[0] qk[0]+1"}\n', "f.yaml")
    steps = tree.get("steps")
    assert isinstance(steps, Map)
    mma = steps.get("mma")
    assert isinstance(mma, Map)
    block = mma.get("block")
    assert isinstance(block, Scalar)
    assert (mma.keys(), block.span.line, block.span.col) == (["block"], 3, 16)
    part = block.part(6, 13)  # behind the quotation mark
    assert (part.line, part.col, part.end_col) == (3, 23, 30)


def test_a_text_over_several_lines_is_pointed_at_as_a_whole() -> None:
    node = read("k: one\n   two\n", "f.yaml").get("k")
    assert isinstance(node, Scalar)
    assert node.text == "one two"
    assert node.part(4, 7) == node.span


def test_an_escaped_text_is_pointed_at_as_a_whole() -> None:
    node = read('k: "a\\tb"', "f.yaml").get("k")
    assert isinstance(node, Scalar)
    assert node.part(2, 3) == node.span


def test_a_duplicate_key_names_both_places() -> None:
    with pytest.raises(Fa4genError) as caught:
        read("a: 1\nb: {c: 1, c: 2}\na: 3\n", "f.yaml")
    found = caught.value.diagnostics
    assert [(d.code, d.span and d.span.line) for d in found] == [("FA0102", 2), ("FA0102", 3)]
    assert found[1].notes[0].span
    assert found[1].notes[0].span.line == 1


def test_anchors_aliases_tags_and_merge_keys_are_refused() -> None:
    assert refused("a: &x 1\nb: *x\n") == [("FA0103", 1, 4), ("FA0103", 2, 4)]
    assert refused("a: !!int 1\n") == [("FA0103", 1, 4)]
    assert ("FA0103", 2, 5) in refused("a: &x {b: 1}\n<<: *x\n")


def test_keys_are_text() -> None:
    assert refused("a: b\ntrue: b\n? [c]\n: d\n") == [("FA0104", 2, 1), ("FA0104", 3, 3)]
    bounds = read("up_to: {64: a, 128: b}\n", "f.yaml").get("up_to")
    assert isinstance(bounds, Map)
    assert bounds.keys() == ["64", "128"]


def test_what_is_no_yaml_is_refused_at_its_place() -> None:
    assert refused("a: [1,\nb: 2")[0][0] == "FA0101"
    assert refused("a: 1\n\tb: 2\n")[0] == ("FA0101", 2, 1)
    assert refused("a: 1\n---\nb: 2\n") == [("FA0101", 3, 1)]
    assert refused("a: \x07\n")[0][0] == "FA0101"


def test_the_root_is_a_mapping() -> None:
    assert refused("- 1\n") == [("FA0106", 1, 1)]
    assert refused("") == [("FA0106", 1, 1)]


def test_depth_is_bounded() -> None:
    assert refused("a: " + "[" * 4000 + "]" * 4000)[0][0] == "FA0101"
    deep = MAX_DEPTH - 1
    node = read("a: " + "[" * deep + "]" * deep, "f.yaml").get("a")
    assert isinstance(node, Seq)
