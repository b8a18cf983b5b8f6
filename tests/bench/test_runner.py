"""The kit's runner without a GPU: its judgement on the CPU, its watchdog with bad workers."""

import itertools
import json
import math
import sys
import time
from types import SimpleNamespace

import pytest

from fa4gen.bench.cases import cases
from fa4gen.bench.runner import work
from fa4gen.bench.runner.problem import LAYOUTS, launcher, reference, sdpa
from fa4gen.bench.runner.supervise import Worker, supervise
from fa4gen.bench.runner.table import collect, rows, summary
from fa4gen.bench.runner.work import Bench, balanced_orders

WORKER = """
import json, sys, time
def send(m): print(json.dumps(m), flush=True)
send({"ready": {"device": "none"}})
for u in json.loads(sys.argv[1]):
    send({"start": u["id"]})
    if u["id"].startswith("hang"): time.sleep(60)
    if u["id"].startswith("die"): sys.exit(9)
    if u["id"].startswith("lose"):
        send({"done": u["id"], "faults": ["lost"], "lost_context": True}); break
    send({"done": u["id"], "faults": []})
"""


def supervised(ids, seconds=20.0):
    """Runs units with these names (kernel: second word); returns reports, what is left, starts."""
    units = [{"id": i, "kind": "check", "kernels": [i.split()[1]]} for i in ids]
    reports, starts = [], []

    def start(left):
        starts.append(len(left))
        return Worker([sys.executable, "-c", WORKER, json.dumps(left)], None)

    deadline = time.monotonic() + seconds
    left = supervise(start, units, {"check": 2.0}, deadline, reports.append)
    return [r for r in reports if "done" in r], left, starts


def test_a_hang_costs_its_limit_and_the_rest_goes_on():
    reports, left, starts = supervised(["ok a", "hang a", "ok b", "die b", "lose a", "ok c"])
    assert [bool(r["faults"]) for r in reports] == [False, True, False, True, True, False]
    assert "hang" in reports[1]["faults"][0]
    assert "status 9" in reports[3]["faults"][0]
    assert not left
    assert starts == [6, 4, 2, 1]


def test_a_kernel_that_hung_twice_is_not_tried_again():
    reports, _, starts = supervised(["hang a 1", "hang a 2", "ok b", "ok a"])
    assert [r["done"] for r in reports] == ["hang a 1", "hang a 2", "ok a", "ok b"]
    assert "skipped" in reports[2]["faults"][0]
    assert len(starts) == 3


def test_the_budget_ends_the_run_in_time():
    begin = time.monotonic()
    reports, left, _ = supervised([f"hang {n}" for n in range(9)], seconds=5.0)
    assert time.monotonic() - begin < 8.0
    assert len(reports) + len(left) == 9
    assert left


@pytest.fixture(scope="module")
def torch():
    """Torch on one thread: the problems here are small."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    return torch


def bench_on_cpu(torch, monkeypatch, kernel):
    """A worker's state whose only kernel is a Python function."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    bench = object.__new__(Bench)
    bench.torch, bench.device, bench.seed, bench.num_sms = torch, "cpu", "1", 1
    bench.functions = {"k": kernel}
    names = ["q", "k", "v", "o", "lse", "softmax_scale", "num_sms"]
    bench.kernels = {"k": {"name": "k", "arguments": names}}
    return bench


def attention(torch, causal, spoil=id):
    """A kernel in torch: PyTorch's own output, LSE by float64, then `spoil` of both by name."""

    def kernel(q, k, v, o, lse, scale, num_sms):
        assert num_sms == 1
        shape = {"seqlen_q": q.shape[1], "seqlen_k": k.shape[1], "causal": causal}
        heads = {"batch": q.shape[0], "heads": q.shape[2], "heads_kv": k.shape[2]}
        dims = {"head_dim": q.shape[3], "head_dim_v": v.shape[3], "softmax_scale": scale}
        case = {**shape, **heads, **dims}
        call, start = sdpa(torch, q, k, v, case)
        o.zero_()
        o[:, start:] = call().transpose(1, 2)
        lse.copy_(reference(torch, q, k, v, case)[1].view(lse.shape))
        spoil({"o": o, "lse": lse})

    return kernel


def test_a_librarys_own_call_is_judged_by_what_it_returns(torch, monkeypatch, tmp_path):
    (tmp_path / "library.py").write_text(
        "def make(path):\n"
        "    assert path.name == 'k.so'\n"
        "    def attention(q, k, v, causal):\n"
        "        a = q.new_full((q.shape[0], q.shape[1], q.shape[2], v.shape[3]), 0.5)\n"
        "        return a, a[..., 0].transpose(1, 2).float()\n"
        "    return attention\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    bench = bench_on_cpu(torch, monkeypatch, None)
    bench.functions, bench.kit = {}, tmp_path
    entry = {"name": "k", "file": "k.so", "python": "library:make", "returns": ["o", "lse"]}
    bench.kernels = {"k": {**entry, "arguments": ["q", "k", "v", "causal"]}}
    tensors, _ = bench.inputs(small_cases(False)[0])
    bench.answer("k", tensors, small_cases(False)[0])
    assert bool((tensors["o"] == 0.5).all())
    assert bool((tensors["lse"] == 0.5).all())


class Clock:
    """Stands in for a CUDA event: host time, which on the CPU is the work's."""

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return (end.at - self.at) * 1e3


def test_a_timing_compares_ours_the_peer_its_control_and_pytorch(torch, monkeypatch):
    bench = bench_on_cpu(torch, monkeypatch, attention(torch, True))
    monkeypatch.setattr(torch.cuda, "Event", Clock)
    monkeypatch.setattr(work, "WARM_MS", 0.1)
    monkeypatch.setattr(work, "MEASURE_MS", 0.1)
    monkeypatch.setattr(work, "HOST_BATCHES", 1)
    monkeypatch.setattr(work, "HOST_CALLS", 2)
    bench.properties = SimpleNamespace(L2_cache_size=1 << 16)
    bench.functions["theirs"] = attention(torch, True)
    bench.functions["refuses"] = lambda *_: (_ for _ in ()).throw(RuntimeError("not this one"))
    arguments = bench.kernels["k"]["arguments"]
    for name in ("theirs", "refuses"):
        bench.kernels[name] = {"name": name, "peer": True, "arguments": arguments}
    unit = {"id": "x", "kernels": ["k"], "case": {**small_cases(True)[0], "rounds": 2}}
    timed = bench.time(unit)
    assert timed["faults"] == []
    assert timed["base"] == "theirs"
    assert set(timed["rows"]) == {"k", "theirs", "theirs (again)", "sdpa flash"}
    assert timed["rows"]["theirs"]["ratio"] == 1.0
    assert len({len(t) for t in timed["times_ms"].values()}) == 1
    assert set(bench.host(unit)["host_us"]) == set(timed["rows"])


def small_cases(causal):
    served = {"dtype": "bfloat16", "head_dim": 64, "head_dim_v": 64, "causal": causal}
    found = [c for c in cases([served]) if c["kind"] == "check"]
    return [c for c in found if c["seqlen_q"] * c["seqlen_k"] < 20000]


@pytest.mark.parametrize("causal", [False, True])
def test_a_right_kernel_passes_in_every_layout(torch, monkeypatch, causal):
    bench = bench_on_cpu(torch, monkeypatch, attention(torch, causal))
    seen = set()
    for case in small_cases(causal):
        result = bench.check({"id": "x", "kernels": ["k"], "case": case})
        assert result["faults"] == [], case["name"]
        seen.add(case["layout"])
    assert seen == set(LAYOUTS)


def outside(out):
    """Writes one element past the end of the output's storage."""
    o = out["o"]
    last = o.storage_offset() + sum((n - 1) * s for n, s in zip(o.shape, o.stride(), strict=True))
    o.as_strided((1,), (1,), last + 1).fill_(1.0)


def noise(out):
    out["o"].mul_(1 + 2**-7)


CALLS = iter(range(100))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (noise, "rms error"),
        (lambda out: out["o"][0, 1, 0].fill_(math.nan), "max error"),
        (lambda out: out["o"][0, 1, 0, 3].add_(0.25), "max error"),
        (lambda out: out["lse"][0, 0, 1].add_(2e-4), "lse error"),
        (lambda out: out["o"][0, 0, 1, 0].add_(2**-7 * (next(CALLS) % 2)), "two runs differ"),
        (outside, "memory around `o` was written"),
    ],
)
def test_a_wrong_kernel_is_found(torch, monkeypatch, spoil, said):
    bench = bench_on_cpu(torch, monkeypatch, attention(torch, False, spoil))
    case = next(c for c in small_cases(False) if c["seqlen_q"] == 127 and c["seqlen_k"] == 127)
    faults = bench.check({"id": "x", "kernels": ["k"], "case": case})["faults"]
    assert any(said in f for f in faults), faults


def test_rows_without_keys_are_judged(torch, monkeypatch):
    def spoil(out):
        out["o"][0, 0, 0, 0] = 1.0
        out["lse"][0, 0, 0] = 0.0

    bench = bench_on_cpu(torch, monkeypatch, attention(torch, True, spoil))
    case = next(c for c in small_cases(True) if c["seqlen_q"] == 129 and c["seqlen_k"] < 129)
    faults = bench.check({"id": "x", "kernels": ["k"], "case": case})["faults"]
    assert faults == ["rows without keys are not 0", "LSE of rows without keys is not -inf"]


def test_the_reference_agrees_with_a_plain_softmax(torch):
    case = {"batch": 1, "heads": 2, "heads_kv": 1, "seqlen_q": 3, "seqlen_k": 5, "causal": True}
    case |= {"head_dim": 4, "head_dim_v": 4}
    q, k, v = (torch.randn(1, n, h, 4) for n, h in ((3, 2), (5, 1), (5, 1)))
    o, lse = reference(torch, q, k, v, case)
    for row in range(3):
        keys = row + 3  # bottom-right aligned: the last row sees all five
        s = (k[0, :keys, 0].double() @ q[0, row, 1].double()) * 0.5
        assert torch.allclose(o[1, row], torch.softmax(s, 0) @ v[0, :keys, 0].double())
        assert torch.allclose(lse[1, row], s.exp().sum().log())


def test_arguments_are_data():
    case = {"head_dim": 64, "seqlen_q": 7, "causal": True}
    kernel = {"arguments": ["q", None, [None, "num_sms"], "max_seqlen_q", "scale_log2"]}
    got = launcher(kernel, lambda *a: a, {"q": "Q"}, case, 132)()
    assert got == ("Q", None, (None, 132), 7, pytest.approx(0.125 * math.log2(math.e)))


def test_ratios_are_paired_by_round():
    case = {"batch": 1, "heads": 1, "seqlen_q": 100, "seqlen_k": 100, "causal": True}
    case |= {"head_dim": 64, "head_dim_v": 64}
    table = rows({"ours": [1.0, 2.0, 4.0], "peer": [2.0, 2.0, 2.0]}, "peer", case)
    assert table["ours"]["ratio"] == 1.0
    assert table["ours"]["range"] == [0.5, 2.0]
    assert table["ours"]["quartiles"] == [0.5, 2.0]
    assert table["ours"]["tflops"] == pytest.approx(2 * 5000 * 128 / 2.0 / 1e9)


@pytest.mark.parametrize("count", [2, 3, 5, 6])
def test_in_balanced_orders_each_follows_each_other_equally_often(count):
    orders = balanced_orders(count, 10)
    assert len(orders) >= 10
    assert all(sorted(o) == list(range(count)) for o in orders)
    follows = {}
    for order in orders:
        for pair in itertools.pairwise(order):
            follows[pair] = follows.get(pair, 0) + 1
    assert len(follows) == count * (count - 1)
    assert len(set(follows.values())) == 1


def test_a_record_that_was_cut_short_still_reads():
    done = {"done": "check k a", "faults": ["rms error"], "rms": 2.0, "torch_rms": 1.0}
    record = collect([{"run": {"seed": "s", "kit": {}}}, {"ready": {"device": "d"}}, done])
    assert (record["seed"], record["machine"]["device"]) == ("s", "d")
    text = summary(record)
    assert "FAIL check k a: rms error" in text
    assert "k: 0 of 1 checks passed; largest rms error 2.000" in text


def test_the_lowest_ratio_of_each_contender_is_named():
    def timed(name, ratio):
        row = {"ms": 1.0, "tflops": 1.0, "ratio": ratio, "quartiles": [ratio, ratio]}
        return {"done": f"time all {name}", "faults": [], "base": "peer", "rows": {"ours": row}}

    text = summary(collect([timed("a", 1.1), timed("b", 0.9), timed("c", 1.0)]))
    assert "lowest of ours: 0.900 of peer in time all b" in text
