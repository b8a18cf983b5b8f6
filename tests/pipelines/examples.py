"""Three whole pipelines in small statements: a Blackwell forward, a Hopper forward, a CTA pair."""

from dataclasses import replace

from tests.pipelines.small import (
    SECTIONS,
    Barrier,
    Pipeline,
    R,
    Role,
    Stmt,
    W,
    arrive,
    commit,
    fence,
    free,
    issue,
    load,
    pending,
    prev,
    settle,
    sync,
    touch,
    wait,
)

ORDER = ("PV0", "QK0", "PV1", "QK1")


def fa4(stages=3, order=ORDER, empty="contract", inorder=True):  # noqa: C901 (a whole kernel in one place)
    bars = {"kvf": Barrier(stages=stages), "kve": Barrier(stages=stages)}
    buffers = {"kv": stages}
    for s in "01":
        for b in ("qf", "qe", "sf", "pl", "of", "se", "oef", "oee"):
            bars[b + s] = Barrier()
        bars["po" + s] = Barrier(
            count=2
        )  # softmax: first part of P; correction: O rescaled (or free)
        bars["st" + s] = Barrier(count=2, named=True)
        for b in ("q", "s", "pa", "pb", "sc", "o", "so"):
            buffers[b + s] = 1

    K, V = {"a": 2, "b": 0}, {"a": 2, "b": 1}  # K and V alternate in the ring

    def qk(s):
        return issue("tc", R("q" + s, a=0), R("kv", **K), W("s" + s), W("pa" + s), W("pb" + s))

    def pv(s, part):
        rank = {"a": 1, "b": 2}[part]
        return issue("tc", R("p" + part + s, rank=3), R("kv", **V), W("o" + s, rank=rank))

    load_role = Role(
        "load",
        first=(
            free("kve"),
            load("kvf", W("kv", **K)),
            free("qe0"),
            load("qf0", W("q0", a=0)),
            free("qe1"),
            load("qf1", W("q1", a=0)),
            free("kve"),
            load("kvf", W("kv", **V)),
        ),
        rest=(free("kve"), load("kvf", W("kv", **K)), free("kve"), load("kvf", W("kv", **V))),
        end=(*[free("kve")] * stages, free("qe0"), free("qe1")),
    )

    rest, issued = [], []
    for op in order:
        kind, s = op[:2], op[2]
        if not issued:
            rest += prev(wait("kvf"))  # V of the block before comes before this K in the ring
        if kind == "PV":
            rest += prev(wait("po" + s), pv(s, "a"), wait("pl" + s), pv(s, "b"))
        else:
            rest += [] if "QK" in issued else [wait("kvf")]
            rest += [qk(s), commit("tc", "sf" + s)]
        issued.append(kind)
        if issued.count(kind) == 2:  # the second use frees the slot
            rest += [commit("tc", "kve")]
    mma = Role(
        "mma",
        first=(
            wait("qf0"),
            wait("kvf"),
            qk("0"),
            commit("tc", "sf0"),
            wait("qf1"),
            qk("1"),
            commit("tc", "sf1"),
            commit("tc", "kve"),
        ),
        rest=tuple(rest),
        last=(
            commit("tc", "qe0"),
            commit("tc", "qe1"),
            wait("kvf"),
            wait("po0"),
            pv("0", "a"),
            wait("pl0"),
            pv("0", "b"),
            commit("tc", "of0"),
            wait("po1"),
            pv("1", "a"),
            wait("pl1"),
            pv("1", "b"),
            commit("tc", "of1"),
            commit("tc", "kve"),
        ),
    )

    def softmax(s):
        def block(scale):
            return (
                wait("sf" + s),
                touch(R("s" + s), R("pa" + s), R("pb" + s)),
                *scale,
                arrive("st" + s),
                touch(W("pa" + s, rank=2)),
                arrive("po" + s),
                touch(W("pb" + s, rank=2)),
                arrive("pl" + s),
                free("se" + s),
            )

        contract = (free("se" + s), arrive("st" + s)) if empty == "contract" else ()
        return Role(
            "softmax" + s,
            first=(free("se" + s), *block(())),
            rest=block((touch(W("sc" + s)),)),
            last=(touch(W("sc" + s, rank=2)), arrive("st" + s)),
            none=contract,
            end=(free("se" + s),),
        )

    def rescale(s, other):
        return (
            sync("st" + s),
            touch(R("sc" + s), W("o" + s)),
            arrive("po" + s),
            arrive("se" + other),
        )

    def final(s):
        return (
            sync("st" + s),
            touch(R("sc" + s, rank=3)),
            arrive("se" + s),
            wait("of" + s),
            free("oee" + s),
            touch(R("o" + s, rank=3), W("so" + s, a=0)),
            arrive("po" + s),
            arrive("oef" + s),
        )

    def zeros(s):
        return (
            sync("st" + s),
            arrive("se" + s),
            free("oee" + s),
            touch(W("so" + s, a=0)),
            arrive("oef" + s),
        )

    correction = Role(
        "correction",
        start=(arrive("po0"), arrive("po1")),
        first=(sync("st0"), arrive("se0"), sync("st1")),
        rest=(*rescale("0", "1"), *rescale("1", "0")),
        last=(arrive("se1"), *final("0"), *final("1")),
        none=(*zeros("0"), *zeros("1")) if empty == "contract" else (),
        end=(free("oee0"), free("oee1")),
    )
    store = (
        wait("oef0"),
        issue("store", R("so0", a=0)),
        wait("oef1"),
        issue("store", R("so1", a=0)),
        pending("store", 1),
        arrive("oee0"),
        pending("store", 0),
        arrive("oee1"),
    )
    epilogue = Role("epilogue", last=store, none=store if empty == "contract" else ())
    return Pipeline(
        "fa4",
        (load_role, mma, softmax("0"), softmax("1"), correction, epilogue),
        bars,
        buffers,
        {"tc": inorder, "store": False},
    )


def hopper(stages=2, pingpong=True, overlap=True):
    bars = {
        "qf": Barrier(),
        "qe": Barrier(count=2),
        "kf": Barrier(stages=stages),
        "ke": Barrier(2, stages),
        "vf": Barrier(stages=stages),
        "ve": Barrier(2, stages),
    }
    buffers, units = {"k": stages, "v": stages}, {}
    for c in "01":
        bars["turn" + c] = Barrier(count=2, named=True)
        buffers |= {x + c: 1 for x in ("q", "s", "p", "o")}
        units |= {"wg" + c: False, "store" + c: False}

    producer = Role(
        "producer",
        first=(free("qe"), load("qf", W("q0", a=0), W("q1", a=0)), free("ke"), load("kf", W("k"))),
        rest=(free("ke"), load("kf", W("k")), *prev(free("ve"), load("vf", W("v")))),
        last=(free("ve"), load("vf", W("v"))),
        end=(*[free("ke"), free("ve")] * stages, free("qe")),
    )

    def consumer(c):
        unit, other = "wg" + c, str(1 - int(c))
        qk = issue(unit, R("q" + c, a=0), R("k"), W("s" + c))
        pv = issue(unit, R("p" + c), R("v"), W("o" + c, rank=1))
        read_s, write_p = touch(R("s" + c)), touch(R("s" + c), W("p" + c))
        rescale = touch(W("o" + c))  # before PV of this block
        turn, pass_on = ((sync("turn" + c),), (arrive("turn" + other),)) if pingpong else ((), ())
        if overlap:
            rest = (
                wait("kf"),
                *turn,
                qk,
                *prev(wait("vf"), pv),
                *pass_on,
                pending(unit, 1),
                arrive("ke"),
                read_s,
                pending(unit, 0),
                arrive("ve"),
                write_p,
                rescale,
            )
        else:
            rest = (
                *prev(wait("vf"), pv),
                pending(unit, 0),
                arrive("ve"),
                wait("kf"),
                *turn,
                qk,
                *pass_on,
                pending(unit, 0),
                arrive("ke"),
                read_s,
                write_p,
                rescale,
            )
        return Role(
            "consumer" + c,
            start=(arrive("turn0"),) if pingpong and c == "0" else (),
            first=(wait("qf"), wait("kf"), qk, pending(unit, 0), arrive("ke"), read_s, write_p),
            rest=rest,
            last=(
                wait("vf"),
                pv,
                pending(unit, 0),
                arrive("ve"),
                touch(R("o" + c, rank=2), W("q" + c, rank=2, a=0)),
                issue("store" + c, R("q" + c, rank=3, a=0)),
                pending("store" + c, 0),
                arrive("qe"),
            ),
        )

    return Pipeline("hopper", (producer, consumer("0"), consumer("1")), bars, buffers, units)


def pair(q_stages=2, inorder=True):  # noqa: C901
    bars = {
        "qf": Barrier(2, q_stages),
        "dof": Barrier(2),
        "pe": Barrier(2),
        "dst": Barrier(2),
        "dsf": Barrier(2),
        "dqe": Barrier(2),
        "xl": Barrier(2),
        "acce": Barrier(2),
    }
    buffers, units = {"dv": 1, "dk": 1}, {"tc": inorder}
    for r in "01":
        bars |= {"qe" + r: Barrier(stages=q_stages)}
        bars |= {b + r: Barrier() for b in ("doe", "sf", "dpf", "dse", "xf", "dqf", "accf")}
        buffers |= {"q" + r: q_stages, "dq_out" + r: 2}
        buffers |= {b + r: 1 for b in ("do", "s_lo", "s_hi", "dp", "ds_own", "ds_peer", "xchg")}
        units["red" + r] = False

    def both(make):
        return tuple(x for r in "01" for x in make(r))

    def mma(*acc):
        return issue("tc", *acc)

    def multicast(bar):
        return tuple(commit("tc", bar + r) for r in "01")

    # versions: everything by block; ranks order the uses of one version
    S = mma(*both(lambda r: (R("q" + r), W("s_lo" + r), W("s_hi" + r))))
    dP = mma(*both(lambda r: (R("do" + r), W("dp" + r))))
    dV = mma(*both(lambda r: (R("do" + r), R("s_lo" + r, rank=3))), W("dv"))
    dK = mma(*both(lambda r: (R("q" + r), R("dp" + r, rank=3))), W("dk"))

    def dQ(  # noqa: N802 - mathematics
        rank, b
    ):  # in the loop, dQ of block i is written over S of block i + 1, once that has been read
        return mma(*both(lambda r: (R("ds_own" + r), R("ds_peer" + r), W("s_hi" + r, rank, b=b))))

    def loader(r):
        q = (free("qe" + r), load("qf", W("q" + r)))
        do = (free("doe" + r), load("dof", W("do" + r)))
        return Role(
            "load" + r,
            first=q + do,
            rest=q + do,
            end=(*[free("qe" + r)] * q_stages, free("doe" + r)),
        )

    leader = Role(
        "mma",
        first=(
            free("dqe"),
            wait("qf"),
            S,
            *multicast("sf"),
            wait("dof"),
            free("acce"),
            dP,
            *multicast("dpf"),
            wait("pe"),
            dV,
            *multicast("doe"),
        ),
        rest=(
            wait("qf"),
            S,
            *multicast("sf"),
            *prev(wait("dst"), dK, *multicast("qe")),
            wait("dof"),
            dP,
            *multicast("dpf"),
            *prev(wait("dsf"), wait("xl"), dQ(2, 1), *multicast("dqf"), *multicast("dse")),
            wait("pe"),
            dV,
            *multicast("doe"),
            free("dqe"),
        ),
        last=(
            wait("dst"),
            dK,
            *multicast("qe"),
            wait("dsf"),
            wait("xl"),
            dQ(4, 0),
            *multicast("dqf"),
            *multicast("dse"),
            *multicast("accf"),
        ),
        end=(free("dqe"),),
    )

    def compute(r):
        other = str(1 - int(r))

        def block(pass_on):
            return (
                wait("sf" + r),
                touch(R("s_lo" + r), R("s_hi" + r)),
                *pass_on,
                touch(W("s_lo" + r, rank=2)),
                arrive("pe"),
                wait("dpf" + r),
                touch(R("dp" + r)),
                free("dse" + r),
                touch(W("dp" + r, rank=2), W("ds_own" + r)),
                arrive("dst"),
                touch(W("xchg" + r)),
                load("xf" + other, R("xchg" + r), W("ds_peer" + other)),
            )

        return Role(
            "compute" + r,
            first=block(()),
            rest=block(
                (arrive("dsf"),)
            ),  # dS of the block before may be used now: S of this one has been read
            last=(arrive("dsf"), wait("accf" + r), touch(R("dv"), R("dk")), arrive("acce")),
            end=(free("dse" + r),),
        )

    def reducer(r):
        def out(rank, b):
            return (
                wait("dqf" + r),
                touch(R("s_hi" + r, rank, b=b)),
                arrive("dqe"),
                touch(W("dq_out" + r)),
                issue("red" + r, R("dq_out" + r)),
                pending("red" + r, 1),
            )

        return Role(
            "reduce" + r, rest=tuple(prev(*out(3, 1))), last=out(5, 0), end=(pending("red" + r, 0),)
        )

    def relayer(r):
        pass_on = (wait("xf" + r), arrive("xl"))
        return Role("relay" + r, first=pass_on, rest=pass_on)

    roles = [
        loader("0"),
        loader("1"),
        leader,
        compute("0"),
        compute("1"),
        reducer("0"),
        reducer("1"),
    ]
    roles += [relayer("0"), relayer("1")]
    return Pipeline("pair", tuple(roles), bars, buffers, units)


TENSOR = ("s", "pa", "pb", "o")  # of the Blackwell forward, in tensor memory


def fenced(p: Pipeline) -> Pipeline:
    """The Blackwell forward with its fences: tcgen05.wait after every access to tensor memory, a
    proxy fence after every write of the output to shared memory."""

    def put(section: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out = []
        for s in section:
            out.append(s)
            if s.kind == "touch":
                tensor = [x for x in s.acc if x.buffer.rstrip("01") in TENSOR]
                out += [settle("load")] if any(not x.write for x in tensor) else []
                out += [settle("store")] if any(x.write for x in tensor) else []
                out += [fence()] if any(x.write and x.buffer[:2] == "so" for x in s.acc) else []
        return tuple(out)

    roles = tuple(replace(r, **{n: put(r.section(n)) for n in SECTIONS}) for r in p.roles)
    spaces = {b: "tmem" for b in p.buffers if b.rstrip("01") in TENSOR}
    return replace(p, roles=roles, spaces=spaces)
