"""Ordered accumulation across CTAs, against every interleaving, and as attention would use it."""

import random

import pytest

from fa4gen.scheduler.semaphores import Accumulation, Residency, check_semaphores, residency


def brute(a: Accumulation, workers: int) -> bool:  # noqa: C901 (all of it in one place)
    """Whether no interleaving of so many CTAs gets stuck; written without the checker."""
    steps = []
    for n, visits in enumerate(a.visits):
        body, late = [], None
        for m in visits:
            body.append(("wait", m, list(a.ranks[m]).index(n)))
            if late is not None:
                body.append(("add", late, 0))
            late = m
            if not a.late:
                body.append(("add", m, 0))
                late = None
        steps.append(body + ([("add", late, 0)] if late is not None else []))
    start = (0, (-1,) * len(steps))
    seen, stack = {start}, [start]
    while stack:
        claimed, at = stack.pop()
        counter: dict[int, int] = {}
        for n, p in enumerate(at):
            for kind, m, _ in steps[n][: max(p, 0)]:
                counter[m] = counter.get(m, 0) + (kind == "add")
        busy = sum(0 <= p < len(steps[n]) for n, p in enumerate(at))
        after = []
        if claimed < len(steps) and busy < workers:
            after.append((claimed + 1, (*at[:claimed], 0, *at[claimed + 1 :])))
        for n, p in enumerate(at):
            if 0 <= p < len(steps[n]):
                kind, m, rank = steps[n][p]
                if kind == "add" or counter.get(m, 0) == rank:
                    after.append((claimed, (*at[:n], p + 1, *at[n + 1 :])))
        if not after and any(p < len(steps[n]) for n, p in enumerate(at)):
            return False
        stack += [s for s in after if s not in seen]
        seen |= set(after)
    return True


@pytest.mark.parametrize("seed", range(100))
def test_against_every_interleaving(seed: int) -> None:
    rng = random.Random(seed)
    tiles, places = rng.randint(2, 4), rng.randint(1, 3)
    visits = [rng.sample(range(places), rng.randint(1, places)) for _ in range(tiles)]
    ranks = {m: [n for n in range(tiles) if m in visits[n]] for m in range(places)}
    for order in ranks.values():
        if rng.random() < 0.5:
            rng.shuffle(order)
    a = Accumulation(visits=visits, ranks=ranks, late=rng.random() < 0.5)
    runs = [brute(a, n) for n in range(1, tiles + 1)]
    least = runs.index(True) + 1 if True in runs else None
    assert residency(a) == Residency(always=all(runs), least=least)


def attention(blocks: int, *, claims: str, ranks: str, start: str = "first") -> Accumulation:
    """Backward: tile n (a block of keys) adds to dQ of every block m of queries."""
    order = {"up": list(range(blocks)), "down": list(range(blocks))[::-1]}
    claimed = order[claims]
    visits = [
        sorted(range(blocks), key=lambda m, n=n: (m - n) % blocks if start == "shift" else m)
        for n in claimed
    ]
    by_rank = {
        m: [
            claimed.index(n)
            for n in sorted(
                range(blocks), key=lambda n, m=m: (m - n) % blocks if ranks == "shift" else n
            )
        ]
        for m in range(blocks)
    }
    if ranks == "down":
        by_rank = {m: tiles[::-1] for m, tiles in by_rank.items()}
    return Accumulation(visits=visits, ranks=by_rank)


@pytest.mark.parametrize(
    ("a", "least"),
    [
        (attention(8, claims="up", ranks="up"), 1),
        (attention(8, claims="down", ranks="down"), 1),
        (attention(8, claims="down", ranks="up"), 8),
        (attention(8, claims="up", ranks="shift", start="shift"), 8),
    ],
)
def test_attention(a: Accumulation, least: int) -> None:
    assert residency(a).least == least
    assert [d.code for d in check_semaphores(a)] == ([] if least == 1 else ["FA0323"])


def test_an_order_with_a_circle() -> None:
    a = Accumulation(visits=[[0, 1], [1, 0]], ranks={0: [1, 0], 1: [0, 1]})
    assert residency(a) == Residency(always=False, least=None)
    (found,) = check_semaphores(a)
    assert "without a circle" in found.title


def test_ranks_that_are_not_the_visitors() -> None:
    """Under a causal mask some tiles do not come."""
    a = Accumulation(visits=[[0, 1], [1]], ranks={0: [0, 1], 1: [0, 1]})
    (found,) = check_semaphores(a)
    assert found.code == "FA0324"
    assert "accumulator 0" in found.title
    assert "[0], ranked are [0, 1]" in found.title


@pytest.mark.parametrize(
    ("a", "words"),
    [
        (Accumulation(visits=[[0], [0, 1]], ranks={0: [0, 1]}), "accumulator 1 is visited by"),
        (Accumulation(visits=[[0, 0]], ranks={0: [0]}), "visited twice by a tile"),
        (Accumulation(visits=[[0], [0]], ranks={0: [0, 0, 1]}), "ranked are [0, 0, 1]"),
    ],
)
def test_visitors_without_a_turn_of_their_own(a: Accumulation, words: str) -> None:
    (found,) = check_semaphores(a)
    assert found.code == "FA0324"
    assert words in found.title
