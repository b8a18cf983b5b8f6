"""Small pipelines on which the naive graph check is wrong, and what sets each of them right."""

from dataclasses import replace

from tests.pipelines.examples import hopper
from tests.pipelines.small import (
    SECTIONS,
    Barrier,
    Pipeline,
    R,
    Role,
    W,
    arrive,
    commit,
    free,
    issue,
    load,
    pending,
    same,
    sync,
    touch,
    wait,
)


def mixed_arrivals(depth=2):
    """U1. `full` counts two arrivals, from A (held back `depth` blocks later) and B (one). A twice
    completes a phase.
    """
    bars = {"full": Barrier(2), "ea": Barrier(stages=depth), "eb": Barrier()}
    a = Role("A", **same(free("ea"), touch(W("x")), arrive("full")), end=(free("ea"),) * depth)
    b = Role("B", **same(free("eb"), touch(W("y")), arrive("full")), end=(free("eb"),))
    c = Role("C", **same(wait("full"), touch(R("x"), R("y")), arrive("ea"), arrive("eb")))
    return Pipeline("U1 arrivals of two rounds mix", (a, b, c), bars, {"x": depth, "y": 1})


def last_block(o_full=False):
    """U2. O(i) is read when S(i+1) is there: in-order pipe. The last block has no S(i+1): FA4's
    O_full.
    """
    bars = {"s": Barrier(), "p": Barrier(), "of": Barrier()}
    mma = Role(
        "mma",
        first=(issue("tc", W("s")), commit("tc", "s")),
        rest=(
            wait("p"),
            issue("tc", R("s", 3, b=-1), W("o", b=-1)),
            issue("tc", W("s")),
            commit("tc", "s"),
        ),
        last=(wait("p"), issue("tc", R("s", 3), W("o")), *([commit("tc", "of")] if o_full else [])),
    )
    soft = Role(
        "softmax",
        first=(wait("s"), touch(R("s", 1), W("s", 2)), arrive("p")),
        rest=(wait("s"), touch(R("s", 1), W("s", 2), R("o", b=-1)), arrive("p")),
        last=(
            *([wait("of")] if o_full else []),
            touch(R("o")),
        ),
    )
    return Pipeline(
        "U2 order by the next block, at the last block" + " (repaired)" * o_full,
        (mma, soft),
        bars,
        {"s": 1, "o": 1},
        {"tc": True},
    )


def empty_tile(both=False):
    """U3. A tile without blocks: the producer still shakes hands, the consumer skips it."""
    shake = (free("e"), touch(W("x", a=0)), arrive("f"))
    take = (wait("f"), touch(R("x", a=0)), arrive("e"))
    return Pipeline(
        "U3 empty tile, one side skips" + " (repaired)" * both,
        (
            Role("A", last=shake, none=shake, end=(free("e"),)),
            Role("B", last=take, none=take if both else ()),
        ),
        {"f": Barrier(), "e": Barrier()},
        {"x": 1},
    )


def parity_restarts(fixed=False):
    """U4. A ring of two whose position starts again with each tile (helion#3621): odd tiles race
    with the next.

    Every tile starts in slot 0, with an empty slot taken for granted; the next block goes to slot
    1.
    """
    bars = {"f0": Barrier(), "e0": Barrier(), "f1": Barrier(), "e1": Barrier()}
    a = Role(
        "A",
        first=(*([free("e0")] if fixed else []), load("f0", W("x0"))),
        rest=(free("e1"), load("f1", W("x1"))),
    )
    b = Role(
        "B",
        first=(wait("f0"), touch(R("x0")), *([arrive("e0")] if fixed else [])),
        rest=(wait("f1"), touch(R("x1")), arrive("e1")),
    )
    return Pipeline(
        "U4 ring position restarts with the tile" + " (repaired)" * fixed,
        (a, b),
        bars,
        {"x0": 1, "x1": 1},
    )


def warps_of_a_role(warps=1, elected=True):
    """U5. One of a role's warps arrives for all: one node per role hides the warp that still
    reads.
    """
    readers = [
        Role(
            f"reader.w{w}",
            **same(wait("f"), touch(R("x")), *([arrive("e")] if not elected or w == 0 else [])),
        )
        for w in range(warps)
    ]
    a = Role("A", **same(free("e"), load("f", W("x"))), end=(free("e"),))
    name = (
        "a role as one node"
        if warps == 1
        else "the same, two warps, one arrives"
        if elected
        else "(repaired: each arrives)"
    )
    return Pipeline(
        "U5 " + name,
        (a, *readers),
        {"f": Barrier(), "e": Barrier(1 if elected else warps)},
        {"x": 1},
    )


def one_name_two_pairs(shared=True):
    """U6. Two producer-consumer pairs on one named barrier id: rounds of the one complete with
    arrivals of the other.
    """
    ids = ("n", "n") if shared else ("n0", "n1")
    roles = []
    for k, n in enumerate(ids):
        roles.append(
            Role(f"A{k}", **same(free(f"e{k}"), touch(W(f"x{k}")), arrive(n)), end=(free(f"e{k}"),))
        )
        roles.append(Role(f"B{k}", **same(sync(n), touch(R(f"x{k}")), arrive(f"e{k}"))))
    bars = {n: Barrier(2, named=True) for n in ids} | {"e0": Barrier(), "e1": Barrier()}
    name = "U6 two pairs share a named barrier" + " (repaired)" * (not shared)
    return Pipeline(name, tuple(roles), bars, {"x0": 1, "x1": 1})


def loads_in_order(wait_both=False):
    """U7. Two TMA loads, and a wait for the second only: loads complete in any order."""
    a = Role("A", **same(free("e"), load("fa", W("x")), load("fb", W("y"))), end=(free("e"),))
    b = Role(
        "B",
        **same(
            *([wait("fa")] if wait_both else []), wait("fb"), touch(R("x"), R("y")), arrive("e")
        ),
    )
    return Pipeline(
        "U7 waiting for the later load" + " (repaired)" * wait_both,
        (a, b),
        {"fa": Barrier(), "fb": Barrier(), "e": Barrier()},
        {"x": 1, "y": 1},
    )


def exit_early(tail=False):
    """U8. Roles end while a bulk store still reads shared memory."""
    a = Role("A", **same(touch(W("x")), issue("store", R("x")), pending("store", 0 if tail else 1)))
    return Pipeline(
        "U8 exit with a store in flight" + " (repaired)" * tail,
        (a,),
        {},
        {"x": 2},
        {"store": False},
    )


def once_a_tile(every_block=True):
    """U11. The barrier completes with every block, the waiter asks once a tile: its parity means
    another phase.
    """
    block = (touch(W("x")), *([arrive("f")] if every_block else []))
    a = Role(
        "A",
        first=(free("e"), *block),
        rest=block,
        last=() if every_block else (arrive("f"),),
        end=(free("e"),),
    )
    b = Role("B", last=(wait("f"), touch(R("x")), arrive("e")))
    return Pipeline(
        "U11 waiting once a tile for a phase a block" + " (repaired)" * (not every_block),
        (a, b),
        {"f": Barrier(), "e": Barrier()},
        {"x": 1},
    )


def watcher():
    """R1. A role that waits for each phase of a barrier but holds nobody back: lapped, and then it
    hangs.
    """
    a = Role("A", **same(free("e"), touch(W("x")), arrive("f")), end=(free("e"),))
    b = Role("B", **same(wait("f"), touch(R("x")), arrive("e")))
    c = Role("watcher", **same(wait("f")))
    return Pipeline(
        "R1 a watcher that nobody waits for", (a, b, c), {"f": Barrier(), "e": Barrier()}, {"x": 1}
    )


def shared_turns():
    """I1. Ping-pong on one named barrier: turns mix, but no data depends on them."""

    def one(statements):
        return tuple(replace(x, bar="turn0") if x.bar == "turn1" else x for x in statements)

    s = hopper()
    roles = tuple(replace(r, **{sec: one(getattr(r, sec)) for sec in SECTIONS}) for r in s.roles)
    return replace(s, name="I1 ping-pong on one named barrier", roles=roles)


def ring_depth(buffer, bar):
    """U9. The barriers' ring is deeper than the buffer's."""
    a = Role("A", **same(free("e"), load("f", W("x"))), end=(free("e"),) * bar)
    b = Role("B", **same(wait("f"), touch(R("x")), arrive("e")))
    bars = {"f": Barrier(stages=bar), "e": Barrier(stages=bar)}
    return Pipeline(f"U9 {bar} barriers for {buffer} slots", (a, b), bars, {"x": buffer})


def ring_order(right=False):
    """U10. One ring, filled K V K V; the consumer uses V(i-1) after K(i): it must still wait and
    release in ring order.
    """
    k, v = R("kv", a=2), R("kv", a=2, b=-1)
    a = Role(
        "A",
        first=(free("e"), load("f", W("kv", a=2)), free("e"), load("f", W("kv", a=2, b=1))),
        rest=(free("e"), load("f", W("kv", a=2)), free("e"), load("f", W("kv", a=2, b=1))),
        end=(free("e"),) * 3,
    )
    body = (
        (wait("f"), wait("f"), touch(k), touch(v), arrive("e"), arrive("e"))
        if right
        else (wait("f"), touch(k), arrive("e"), wait("f"), touch(v), arrive("e"))
    )
    last = (wait("f"), touch(R("kv", a=2, b=1)), arrive("e"))
    b = Role("B", first=(wait("f"), touch(k), arrive("e")), rest=body, last=last)
    return Pipeline(
        "U10 a ring used in another order than filled" + " (repaired)" * right,
        (a, b),
        {"f": Barrier(stages=3), "e": Barrier(stages=3)},
        {"kv": 3},
    )


def scheduler(consumers=3, count=3):
    """B1. A dynamic tile scheduler is a ring like any other: every role that reads the answer must
    release it.
    """
    ask = (free("e"), load("f", W("answer", a=0)))
    roles = [Role("scheduler", last=ask, none=ask, end=(free("e"),))]
    for k in range(3):
        back = [arrive("e")] if k < consumers else []
        body = (wait("f"), touch(R("answer", a=0)), *back)
        roles.append(Role(f"role{k}", last=body, none=body))
    return Pipeline(
        f"B1 tile scheduler, {consumers} of 3 readers release, {count} counted",
        tuple(roles),
        {"f": Barrier(), "e": Barrier(count)},
        {"answer": 1},
    )


EXAMPLES = [
    mixed_arrivals(),
    mixed_arrivals(1),
    last_block(),
    last_block(True),
    empty_tile(),
    empty_tile(True),
    parity_restarts(),
    parity_restarts(True),
    warps_of_a_role(),
    warps_of_a_role(2),
    warps_of_a_role(2, False),
    one_name_two_pairs(),
    one_name_two_pairs(False),
    loads_in_order(),
    loads_in_order(True),
    exit_early(),
    exit_early(True),
    ring_depth(1, 2),
    ring_depth(2, 2),
    ring_order(),
    ring_order(True),
    once_a_tile(),
    once_a_tile(False),
    watcher(),
    shared_turns(),
    scheduler(),
    scheduler(2, 2),
    scheduler(2, 3),
]
