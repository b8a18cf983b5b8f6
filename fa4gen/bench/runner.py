#!/usr/bin/env python3
"""Checks and times attention kernels on a GPU machine that has torch and none of our package.

    python3 KIT/runner.py --out DIR [--budget SECONDS] [--only check,time,host] [--match TEXT]

KIT is a folder that `fa4gen build --kit` or `fa4gen bench --kit` wrote: this file, `manifest.json`,
shared objects, the apache-tvm-ffi wheel and the DSL's runtime library. Results go to DIR as they
come (`results.jsonl`), then as a whole (`results.json`, `table.txt`). Each piece of work runs in a
worker process under a time limit: a kernel that hangs costs that limit, never the session.

What is measured is in the manifest: `kernels` (shared object, function, what it serves, and its
`arguments`: names of values, nulls and lists thereof, in the order of its call) and `cases`
(problems of a `kind`: check, time, host). Tensors are (batch, seqlen, heads, head_dim), LSE is
(batch, heads, seqlen_q) in float32; causal masks are aligned bottom-right.

A check passes if, against float64 on fresh random inputs, the root-mean-square error is at most
1.1 and the largest error at most 1.5 times that of PyTorch's attention in the same dtype, plus
1e-5; LSE is within 1e-4; rows without keys are 0 and -inf; two runs are bitwise equal; nothing
outside the outputs was written. `--peers` checks the peers' kernels too, which tests the checker.
Exit code: 0 all passed, 1 something failed, 3 the budget ended first.
"""

import argparse
import ctypes
import datetime
import json
import lzma
import math
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import time
import zipfile
from collections import Counter
from pathlib import Path

RMS_FACTOR, MAX_FACTOR, FLOOR, LSE_LIMIT = 1.1, 1.5, 1e-5, 1e-4
GUARD = 4096  # elements on either side of each tensor, poisoned and looked at afterwards
MEASURE_MS = 25.0  # device time of one measurement: many times the events' resolution (0.5 us)
START_LIMIT_S = 240.0  # importing torch and making a context on a cold machine took about 60 s


# ------------------------------------------------------------------------------------- the kit
def prepare(kit):
    """Makes tvm_ffi importable and the DSL's runtime visible to the kernels; returns nothing."""
    home = Path.home() / ".cache" / "fa4gen-kit"
    home.mkdir(parents=True, exist_ok=True)
    for wheel in kit.glob("*.whl"):
        site = home / wheel.stem
        if not site.exists():
            partial = site.with_suffix(f".{os.getpid()}")
            with zipfile.ZipFile(wheel) as z:
                z.extractall(partial)
            partial.rename(site)
        sys.path.insert(0, str(site))
    for packed in kit.glob("*.so.xz"):
        library = home / packed.stem
        if not library.exists():
            partial = home / f"{packed.stem}.{os.getpid()}"
            partial.write_bytes(lzma.decompress(packed.read_bytes()))
            partial.rename(library)
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def serves(kernel, case):
    """Whether a kernel of the manifest takes the case's problem; a key left out serves all."""
    fixed = ("dtype", "head_dim", "head_dim_v", "causal")
    ratio = case["heads"] // case["heads_kv"]
    return (
        all(kernel.get(key, case[key]) == case[key] for key in fixed)
        and kernel.get("gqa_ratio", ratio) == ratio
        and case["seqlen_q"] >= kernel.get("min_seqlen_q", 0)
        and case["seqlen_k"] >= kernel.get("min_seqlen_k", 0)
    )


def work_list(manifest, only, match, peers=False):
    """Units of work, in order: checks of each kernel of ours, timings of a case, host times."""
    units = []
    ours = [k for k in manifest["kernels"] if peers or not k.get("peer")]
    for kind in only:
        for case in (c for c in manifest["cases"] if c["kind"] == kind):
            fit = [k["name"] for k in ours if serves(k, case)]
            if not fit:
                continue
            for names in [[n] for n in fit] if kind == "check" else [fit]:
                label = f"{kind} {names[0] if kind == 'check' else 'all'} {case['name']}"
                if match in label:
                    units.append({"id": label, "kind": kind, "kernels": names, "case": case})
    return units


# ---------------------------------------------------------------------------------- the problem
def poisoned(torch, shape, order, dtype, device, slack=0):
    """A tensor of NaN amid guards of NaN, its dimensions laid out in `order` (outermost first).

    `slack` widens the innermost dimension's storage, so that rows are not adjacent.
    """
    sizes = [shape[i] for i in order]
    sizes[-1] += slack
    store = torch.full((math.prod(sizes) + 2 * GUARD,), float("nan"), dtype=dtype, device=device)
    view = store[GUARD : GUARD + math.prod(sizes)].view(sizes)[..., : shape[order[-1]]]
    return store, view.permute([order.index(i) for i in range(len(order))])


LAYOUTS = {  # order of the dimensions (batch, seqlen, heads, head_dim) in memory, slack of a row
    "contiguous": ((0, 1, 2, 3), 0),
    "heads_first": ((0, 2, 1, 3), 0),
    "sequence_first": ((1, 0, 2, 3), 0),
    "padded_rows": ((0, 1, 2, 3), 8),
}


def make_inputs(torch, case, device, generator):
    """Fresh random q, k, v in the case's layout, and poisoned o and lse with what guards them."""
    c, dtype = case, getattr(torch, case["dtype"])
    order, slack = LAYOUTS[case.get("layout", "contiguous")]
    shapes = {
        "q": (c["batch"], c["seqlen_q"], c["heads"], c["head_dim"]),
        "k": (c["batch"], c["seqlen_k"], c["heads_kv"], c["head_dim"]),
        "v": (c["batch"], c["seqlen_k"], c["heads_kv"], c["head_dim_v"]),
        "o": (c["batch"], c["seqlen_q"], c["heads"], c["head_dim_v"]),
    }
    made, stores = {}, {}
    for name, shape in shapes.items():
        stores[name], made[name] = poisoned(torch, shape, order, dtype, device, slack)
    stores["lse"], made["lse"] = poisoned(
        torch, (c["batch"], c["heads"], c["seqlen_q"]), (0, 1, 2), torch.float32, device
    )
    for name in "qkv":
        values = torch.randn(shapes[name], device=device, generator=generator)
        made[name].copy_(values * (case.get("spread", 1.0) if name == "q" else 1.0))
    return made, stores


def softmax_scale(case):
    """The scale of the scores; 1 / sqrt(head_dim) unless the case has its own."""
    return case.get("softmax_scale", case["head_dim"] ** -0.5)


def reference(torch, q, k, v, case, pairs=None):
    """Attention in float64: o (n, sq, dv) and lse (n, sq) of the (batch, head) pairs asked for."""
    ratio = case["heads"] // case["heads_kv"]
    sq, sk = case["seqlen_q"], case["seqlen_k"]
    pairs = pairs or [(b, h) for b in range(case["batch"]) for h in range(case["heads"])]
    o = torch.zeros(len(pairs), sq, case["head_dim_v"], dtype=torch.float64, device=q.device)
    lse = torch.full((len(pairs), sq), -math.inf, dtype=torch.float64, device=q.device)
    hidden = None
    if case["causal"]:
        rows = torch.arange(sq, device=q.device)[:, None] + (sk - sq)
        hidden = torch.arange(sk, device=q.device)[None, :] > rows
    for n, (b, h) in enumerate(pairs if sk else []):
        s = q[b, :, h].double() @ k[b, :, h // ratio].double().T * softmax_scale(case)
        if hidden is not None:
            s.masked_fill_(hidden, -math.inf)
        lse[n] = torch.logsumexp(s, -1)
        p = torch.exp(s - torch.where(lse[n] == -math.inf, 0.0, lse[n])[:, None])
        o[n] = p @ v[b, :, h // ratio].double()
    return o, lse


def sdpa(torch, q, k, v, case, backends=("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")):
    """A call of PyTorch's attention on this problem, by the first of the backends that takes it."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.bias import causal_lower_right

    sq, sk = case["seqlen_q"], case["seqlen_k"]
    start = max(0, sq - sk) if case["causal"] else 0  # rows before it have no keys
    t = [x.transpose(1, 2) for x in (q[:, start:], k, v)]
    gqa = {"enable_gqa": True} if case["heads"] != case["heads_kv"] else {}
    masked = {"is_causal": case["causal"]}
    if case["causal"] and sq < sk:
        ratio = case["heads"] // case["heads_kv"]
        t, gqa = [t[0], *(x.repeat_interleave(ratio, 1) for x in t[1:])], {}
        masked = {"attn_mask": causal_lower_right(sq, sk)}
    kernels = [getattr(SDPBackend, name) for name in backends]

    def call():
        with sdpa_kernel(kernels, set_priority=True):
            return torch.nn.functional.scaled_dot_product_attention(
                *t, scale=softmax_scale(case), **masked, **gqa
            )

    return call, start


def launcher(kernel, function, tensors, case, num_sms):
    """A call without arguments of one kernel on these tensors, as the manifest describes it."""
    scale = softmax_scale(case)
    values = {
        **tensors,
        "softmax_scale": scale,
        "scale_log2": scale * math.log2(math.e),
        "num_sms": num_sms,
        "max_seqlen_q": case["seqlen_q"],
    }

    def argument(a):
        return None if a is None else values[a] if isinstance(a, str) else tuple(map(argument, a))

    args = tuple(argument(a) for a in kernel["arguments"])
    return lambda: function(*args)


# ------------------------------------------------------------------------------------ judgement
def judge(o, lse, ref_o, ref_lse, torch_o):
    """Errors of (n, sq, dv) outputs and (n, sq) LSE against float64, and what is wrong, in words.

    `torch_o` is PyTorch's output in the same dtype for the rows that have keys, None without any.
    """
    faults = []
    live = ref_lse > -math.inf
    if not bool((o[~live] == 0).all()):
        faults.append("rows without keys are not 0")
    if not bool((lse[~live] == -math.inf).all()):
        faults.append("LSE of rows without keys is not -inf")
    found = {}
    if torch_o is not None and bool(live.any()):
        bad, theirs = (o - ref_o)[live].double(), (torch_o[live].double() - ref_o[live])
        found = {
            "rms": float(bad.square().mean().sqrt()),
            "max": float(bad.abs().max()),
            "torch_rms": float(theirs.square().mean().sqrt()),
            "torch_max": float(theirs.abs().max()),
            "lse": float((lse - ref_lse)[live].abs().max()),
        }
        limits = {
            "rms": RMS_FACTOR * found["torch_rms"] + FLOOR,
            "max": MAX_FACTOR * found["torch_max"] + FLOOR,
            "lse": LSE_LIMIT,
        }
        for name, limit in limits.items():
            if not found[name] <= limit:  # a NaN fails
                faults.append(f"{name} error {found[name]:.3g}, limit {limit:.3g}")
    return found, faults


def untouched(torch, stores, tensors, names):
    """Names of tensors around which something was written: there all must be NaN still."""
    touched = []
    for name in names:
        tensors[name].fill_(float("nan"))
        if not bool(torch.isnan(stores[name]).all()):
            touched.append(name)
    return touched


def compare(torch, tensors, case, pairs=None):
    """Judges the outputs that lie in `tensors`, for all or some (batch, head) pairs."""
    q, k, v, o, lse = (tensors[n] for n in ("q", "k", "v", "o", "lse"))
    ref_o, ref_lse = reference(torch, q, k, v, case, pairs)
    torch_o = None
    if case["seqlen_k"] and case["seqlen_q"]:
        call, start = sdpa(torch, q, k, v, case)
        torch_o = torch.zeros_like(ref_o, dtype=o.dtype)
        answer = call()  # (batch, heads, rows with keys, dv)
        if pairs is None:
            torch_o[:, start:] = answer.flatten(0, 1)
        else:
            torch_o[:, start:] = torch.stack([answer[b, h] for b, h in pairs])
    if pairs is None:
        flat_o, flat_lse = o.transpose(1, 2).flatten(0, 1), lse.flatten(0, 1)
    else:
        flat_o = torch.stack([o[b, :, h] for b, h in pairs])
        flat_lse = torch.stack([lse[b, h] for b, h in pairs])
    return judge(flat_o, flat_lse, ref_o, ref_lse, torch_o)


# ------------------------------------------------------------------------------- what a unit does
class Bench:
    """What a worker holds: torch, the loaded functions, and the random seed of this run."""

    device = "cuda"

    def __init__(self, kit, manifest, seed):
        import torch

        self.torch, self.kit, self.seed = torch, kit, seed
        self.kernels = {k["name"]: k for k in manifest["kernels"]}
        self.functions = {}
        self.properties = torch.cuda.get_device_properties(0)
        self.num_sms = self.properties.multi_processor_count

    def function(self, name):
        """The tvm-ffi function of a kernel, loaded at first use."""
        if name not in self.functions:
            import tvm_ffi

            kernel = self.kernels[name]
            module = tvm_ffi.load_module(str(self.kit / kernel["file"]))
            self.functions[name] = module[kernel["function"]]
        return self.functions[name]

    def call(self, name, tensors, case):
        """A launch of one kernel on these tensors."""
        return launcher(self.kernels[name], self.function(name), tensors, case, self.num_sms)

    def inputs(self, case, salt=0):
        """Fresh inputs of a case, the same for the same seed."""
        number = random.Random(f"{self.seed} {case['name']} {salt}").getrandbits(62)
        generator = self.torch.Generator(self.device).manual_seed(number)
        return make_inputs(self.torch, case, self.device, generator)

    def check(self, unit):
        """Values, bitwise repetition and guards of one kernel on one problem."""
        torch, case = self.torch, unit["case"]
        tensors, stores = self.inputs(case)
        launch = self.call(unit["kernels"][0], tensors, case)
        launch()
        torch.cuda.synchronize()
        errors, faults = compare(torch, tensors, case)
        first = {n: tensors[n].clone() for n in ("o", "lse")}
        for n in ("o", "lse"):
            tensors[n].fill_(float("nan"))
        launch()
        torch.cuda.synchronize()
        if any(not torch.equal(first[n], tensors[n]) for n in first):
            faults.append("two runs differ")
        touched = untouched(torch, stores, tensors, ("q", "k", "v", "o", "lse"))
        faults += [f"memory around `{n}` was written" for n in touched]
        return {**errors, "faults": faults}

    def contenders(self, unit, sets):
        """Name → list of calls, one for each input set: ours, the peers, the control, PyTorch's."""
        torch, case = self.torch, unit["case"]
        peers = [n for n, k in self.kernels.items() if k.get("peer") and serves(k, case)]
        names = dict.fromkeys([*unit["kernels"], *peers])
        calls = {n: [self.call(n, t, case) for t in sets] for n in names}
        for name in peers[:1]:
            calls[f"{name} (again)"] = calls[name]
        for name, backend in (("cudnn", "CUDNN_ATTENTION"), ("sdpa flash", "FLASH_ATTENTION")):
            theirs = [sdpa(torch, t["q"], t["k"], t["v"], case, [backend])[0] for t in sets]
            try:
                theirs[0]()
                torch.cuda.synchronize()
            except RuntimeError as refused:  # the backend does not take this problem
                print(f"{name}: {refused}", file=sys.stderr)
                continue
            calls[name] = theirs
        return calls, peers[0] if peers else "cudnn"

    def measure(self, calls, count):
        """Mean device time in ms of `count` launches in a row, over the input sets in turn."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for i in range(count):
            calls[i % len(calls)]()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / count

    def time(self, unit):
        """One alternating run of all contenders; ratios are paired, round by round."""
        torch, case = self.torch, unit["case"]
        size = sum(t.nbytes for t in self.inputs(case)[0].values())
        copies = max(2, math.ceil(2 * self.properties.L2_cache_size / size))
        sets = [self.inputs(case, i)[0] for i in range(copies)]
        faults, pairs = [], [(0, 0), (case["batch"] - 1, case["heads"] - 1)]
        for name in unit["kernels"]:
            self.call(name, sets[0], case)()
            torch.cuda.synchronize()
            faults += [f"{name}: {f}" for f in compare(torch, sets[0], case, pairs)[1]]
        calls, base = self.contenders(unit, sets)
        counts = {}
        for name, work in calls.items():
            self.measure(work, 3)
            counts[name] = max(3, math.ceil(MEASURE_MS / self.measure(work, 3)))
        times = {name: [] for name in calls}
        order = list(calls)
        for _ in range(case.get("rounds", 9)):
            for name in order:
                times[name].append(self.measure(calls[name], counts[name]))
            order = order[1:] + order[:1]
        return {"faults": faults, "base": base, "times_ms": times, "rows": rows(times, base, case)}

    def host(self, unit):
        """Host time of a call in us: the median over 50 batches of 50 calls, nothing waited for."""
        sets = [self.inputs(unit["case"])[0]]
        calls, base = self.contenders(unit, sets)
        times = {}
        for name, (call, *_) in calls.items():
            batches = []
            for _ in range(52):
                self.torch.cuda.synchronize()
                begin = time.perf_counter()
                for _ in range(50):
                    call()
                batches.append((time.perf_counter() - begin) / 50 * 1e6)
            times[name] = statistics.median(batches[2:])
        return {"faults": [], "base": base, "host_us": times}


def rows(times, base, case):
    """Name → median ms, TFLOP/s, and speed against `base`: median and range of the rounds."""
    sq, sk = case["seqlen_q"], case["seqlen_k"]
    pairs = sq * sk - (min(sq, sk) ** 2 / 2 if case["causal"] else 0)
    flop = 2 * case["batch"] * case["heads"] * pairs * (case["head_dim"] + case["head_dim_v"])
    table = {}
    for name, ms in times.items():
        ratios = [b / t for b, t in zip(times[base], ms, strict=True)] if base in times else []
        table[name] = {
            "ms": statistics.median(ms),
            "tflops": flop / statistics.median(ms) / 1e9,
            "ratio": statistics.median(ratios) if ratios else None,
            "spread": [min(ratios), max(ratios)] if ratios else None,
        }
    return table


# ------------------------------------------------------------------------- worker and supervisor
def work(kit, manifest, units, seed, send):
    """The worker: does the units in order and sends a line before and after each."""
    prepare(kit)
    bench = Bench(kit, manifest, seed)
    send({"ready": machine(bench.torch)})
    for unit in units:
        send({"start": unit["id"]})
        begin = time.perf_counter()
        try:
            result = getattr(bench, unit["kind"])(unit)
        except Exception as failure:
            result = {"faults": [f"{type(failure).__name__}: {str(failure)[:400]}"]}
            try:
                bench.torch.cuda.synchronize()
            except RuntimeError:  # the context is lost: a new worker has to take over
                result["lost_context"] = True
        send({"done": unit["id"], "seconds": time.perf_counter() - begin, **result})
        if result.get("lost_context"):
            return


def machine(torch):
    """What the numbers depend on, beside the kernels."""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        driver = subprocess.run(asked, capture_output=True, text=True, timeout=30).stdout.split()[0]
    except (OSError, IndexError, subprocess.TimeoutExpired):
        driver = "unknown"
    return {
        "device": torch.cuda.get_device_name(0),
        "num_sms": torch.cuda.get_device_properties(0).multi_processor_count,
        "driver": driver,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "python": sys.version.split()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


class Worker:
    """A worker process in a session of its own, and the lines that it sends."""

    def __init__(self, command, log):
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, start_new_session=True
        )
        self.pending = b""

    def line(self, seconds):
        """The next message; None if it ended or sent nothing for so long."""
        deadline = time.monotonic() + seconds
        while b"\n" not in self.pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return None
            chunk = os.read(self.process.stdout.fileno(), 65536)
            if not chunk:
                return None
            self.pending += chunk
        text, self.pending = self.pending.split(b"\n", 1)
        return json.loads(text)

    def stop(self):
        """Ends the worker; returns how it ended by itself, None if it was still running."""
        status = self.process.poll()
        if status is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:  # stuck in the driver: leave it, and say so
            print("a killed worker has not gone yet", file=sys.stderr)
        return status


def supervise(start, units, limits, deadline, report):
    """Runs all units in workers made by `start(units)`, within time limits by kind of unit.

    `report(message)` gets what workers send, and for a unit that hung, crashed or was skipped a
    message of the same form. After two hangs or crashes of a kernel, its other units are skipped.
    """
    left, bad = list(units), Counter()
    while left and time.monotonic() < deadline:
        worker = start(left)
        ready = worker.line(START_LIMIT_S)
        if ready is None:
            status = worker.stop()
            raise SystemExit(f"the worker did not start (status {status}): see worker.log")
        report(ready)
        while left:
            unit = left[0]
            limit = min(limits[unit["kind"]], deadline - time.monotonic())
            answer = worker.line(limit) if limit > 0 else None
            if answer and "start" in answer:
                answer = worker.line(limit)
            left.pop(0)
            if answer is None:
                over = time.monotonic() >= deadline
                status = worker.stop()
                how = "did not end in time (hang)" if status is None else f"died, status {status}"
                report({"done": unit["id"], "faults": ["budget ended" if over else how]})
                bad[unit["kernels"][0]] += not over
            else:
                report(answer)
            if answer is None or answer.get("lost_context"):
                break
        worker.stop()
        for unit in [u for u in left if bad[u["kernels"][0]] >= 2]:
            left.remove(unit)
            report({"done": unit["id"], "faults": ["skipped: this kernel hung or died twice"]})
    return left


# ---------------------------------------------------------------------------------------- report
def summary(results, not_run):
    """The table for people: failures, then how many checks passed, then timings."""
    lines = []
    checks = [r for r in results if r["done"].startswith("check ")]
    for r in results:
        lines += [f"FAIL {r['done']}: {'; '.join(r['faults'])}"] if r["faults"] else []
    kernels = Counter(r["done"].split()[1] for r in checks)
    for name, count in kernels.items():
        of = [r for r in checks if r["done"].split()[1] == name]
        worst = {n: max((r[n] for r in of if n in r), default=0.0) for n in ("max", "lse")}
        ratio = max((r["rms"] / (r["torch_rms"] or 1) for r in of if "rms" in r), default=0.0)
        passed = sum(not r["faults"] for r in of)
        lines.append(
            f"{name}: {passed} of {count} checks passed; largest rms error {ratio:.3f} of"
            f" PyTorch's, largest error {worst['max']:.3g}, largest LSE error {worst['lse']:.3g}"
        )
    for r in results:
        if "rows" in r:
            lines.append(f"{r['done']}  (speed against {r['base']})")
            for name, row in r["rows"].items():
                low, high = row["spread"] or (math.nan, math.nan)
                lines.append(
                    f"    {name:34s}{row['ms']:9.3f} ms {row['tflops']:7.1f} TFLOP/s"
                    f"  {row['ratio'] or math.nan:6.3f}  [{low:.3f} .. {high:.3f}]"
                )
        if "host_us" in r:
            lines.append(f"{r['done']}  (host time a call)")
            lines += [f"    {name:34s}{us:9.2f} us" for name, us in r["host_us"].items()]
    if not_run:
        lines.append(f"not run, the budget ended: {not_run}")
    return "\n".join(lines)


def arguments():
    """The command line."""
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--out", type=Path, required=True, help="folder for the results")
    p.add_argument("--budget", type=float, default=540.0, help="seconds in all")
    p.add_argument("--only", default="check,time,host", help="kinds of cases, in this order")
    p.add_argument("--match", default="", help="only work whose name contains this text")
    p.add_argument("--peers", action="store_true", help="check the peers' kernels as well")
    p.add_argument("--seed", default=None, help="repeat the random inputs of an earlier run")
    p.add_argument("--check-limit", type=float, default=20.0, help="seconds for a check")
    p.add_argument("--time-limit", type=float, default=60.0, help="seconds for a timing")
    p.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return p.parse_args()


def main():
    """Supervises, writes results as they come, and prints the table."""
    args, kit = arguments(), Path(__file__).resolve().parent
    manifest = json.loads((kit / "manifest.json").read_text())
    if args.worker:

        def send(message):
            os.write(channel, json.dumps(message).encode() + b"\n")

        channel = os.dup(1)
        os.dup2(2, 1)  # what libraries print must not mix with the messages
        work(kit, manifest, json.loads(args.worker.read_text()), args.seed, send)
        return 0
    args.out.mkdir(parents=True, exist_ok=True)
    seed = args.seed or os.urandom(8).hex()
    deadline = time.monotonic() + args.budget
    units = work_list(manifest, args.only.split(","), args.match, args.peers)
    record = {"seed": seed, "kit": manifest.get("about", {}), "machine": {}, "results": []}
    todo = args.out / "worker.json"
    with (args.out / "worker.log").open("ab") as log, (args.out / "results.jsonl").open("a") as out:

        def start(rest):
            todo.write_text(json.dumps(rest))
            me = [sys.executable, str(Path(__file__).resolve()), "--out", str(args.out)]
            return Worker([*me, "--seed", seed, "--worker", str(todo)], log)

        def report(message):
            out.write(json.dumps(message) + "\n")
            out.flush()
            if "ready" in message:
                record["machine"] = message["ready"]
            else:
                record["results"].append(message)
                print("!" if message["faults"] else ".", end="", flush=True)

        limits = {"check": args.check_limit, "time": args.time_limit, "host": args.time_limit}
        left = supervise(start, units, limits, deadline, report)
    todo.unlink(missing_ok=True)
    record["not_run"] = [u["id"] for u in left]
    (args.out / "results.json").write_text(json.dumps(record, indent=1))
    head = f"\n{json.dumps(record['machine'])}\nseed {seed}\n"
    text = head + summary(record["results"], len(left))
    (args.out / "table.txt").write_text(text)
    print(text)
    return 1 if any(r["faults"] for r in record["results"]) else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
