"""Steps, ends and names: the small languages inside texts, token by token."""

import pytest

from fa4gen.diag import Bag
from fa4gen.dsl import phrases
from fa4gen.dsl.reader import Node, Scalar, read


def node(text: str) -> Node:
    found = read(f"k: {text}", "f.yaml").get("k")
    assert found is not None
    return found


def test_steps_with_index_and_ahead_know_their_columns() -> None:
    bag = Bag()
    found = phrases.steps(node('"pv[0] qk[s]+1  sum"'), bag)
    assert [(t.name, t.at, t.ahead, t.span.col, t.span.end_col) for t in found] == [
        ("pv", 0, 0, 5, 10),
        ("qk", "s", 1, 11, 18),
        ("sum", None, 0, 20, 23),
    ]
    assert bag.found == []


def test_a_list_of_steps_is_the_same_as_a_text() -> None:
    as_text = phrases.steps(node("a b+1"), Bag())
    as_list = phrases.steps(node("[a, b+1]"), Bag())
    assert [(t.name, t.ahead) for t in as_text] == [(t.name, t.ahead) for t in as_list]


def test_ends_take_turns_or_come_together() -> None:
    turns = phrases.ends(node('"a[s] | b.0"'), Bag())
    together = phrases.ends(node('["a[s]", b.rest]'), Bag())
    assert [[(e.name, e.at, e.part) for e in x] for x in turns] == [
        [("a", "s", None)],
        [("b", None, 0)],
    ]
    assert [[(e.name, e.at, e.part) for e in x] for x in together] == [
        [("a", "s", None), ("b", None, "rest")]
    ]
    assert turns[1][0].span.col == 12


@pytest.mark.parametrize("text", ["qk+", "qk[0", "QK", "qk[-1]", "qk+1+1", "1qk", "qk-1"])
def test_unreadable_steps_are_reported_where_they_stand(text: str) -> None:
    bag = Bag()
    phrases.steps(node(f'"a {text} b"'), bag)
    assert [(d.code, d.span and d.span.col) for d in bag.found] == [("FA0108", 7)]


@pytest.mark.parametrize("text", ["a b", "a.x", "a |", "| a", "a.0[s]", "a+1"])
def test_unreadable_ends_are_reported(text: str) -> None:
    bag = Bag()
    phrases.ends(node(f'"{text}"'), bag)
    assert [d.code for d in bag.found] == ["FA0108"]


def test_names_of_barriers() -> None:
    def name(text: str) -> phrases.EdgeName | None:
        span = node(text).span
        return phrases.edge_name(Scalar(text=text, span=span), Bag())

    assert name("s_full[s]") == phrases.EdgeName(name="s_full", at="s")
    assert name("kv") == phrases.EdgeName(name="kv", at=None)
    assert name("s_full[0]") is None
    assert name("s full") is None
