"""The runtime on a GPU machine without the DSL: values, PyTorch's machinery, refusals, host time.

    python3 tests/gpu/run_runtime.py --kit KIT --pack PACK --out DIR [--match TEXT]

KIT: a folder with the apache-tvm-ffi wheel, the DSL's runtime library and, if host times are to be
compared, a peer's kernel in its manifest. PACK: `fa4gen pack --target sm_90a --head-dims 64,128`.
Each check prints a line as it ends; DIR gets `runtime.json`. The exit code is 1 if any failed.
"""

import argparse
import copy
import importlib.util
import json
import lzma
import os
import sys
import tempfile
import threading
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
CHECKS: list[tuple[str, Callable[[], Any]]] = []
SHAPES = (  # batch, seqlen_q, seqlen_k, heads, heads_k
    (1, 1, 1, 1, 1),
    (1, 1, 16, 2, 2),  # fewer keys than a tile, full: padding must not count
    (2, 63, 65, 4, 4),
    (2, 64, 64, 3, 1),
    (1, 127, 129, 4, 2),
    (1, 129, 127, 7, 7),
    (1, 5, 5, 9, 3),
    (2, 1000, 1000, 8, 2),
    (1, 1025, 1025, 4, 4),
    (1, 2048, 1024, 2, 2),  # causal: rows without keys
    (1, 333, 1, 4, 4),
    (3, 200, 777, 40, 4),
    (1, 4, 2000, 32, 1),
    (1, 4096, 4096, 4, 4),
)


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    """Lists a check; it passes unless it raises, and may return facts to record."""
    CHECKS.append((function.__name__, function))
    return function


def prepare(kit: Path, home: Path) -> None:
    """tvm_ffi from the kit's wheel, the runtime library where fa4gen looks for it."""
    for wheel in kit.glob("apache_tvm_ffi*.whl"):
        with zipfile.ZipFile(wheel) as z:
            z.extractall(home / "site")
        sys.path.insert(0, str(home / "site"))
    library = home / "libcute_dsl_runtime.so"
    library.write_bytes(lzma.decompress((kit / f"{library.name}.xz").read_bytes()))
    os.environ["FA4GEN_RUNTIME_LIBRARY"] = str(library)
    os.environ["FA4GEN_NO_JIT"] = "1"
    os.environ["FA4GEN_CACHE_DIR"] = str(home / "cache")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kit", type=Path, required=True)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--match", default="", help="only checks whose name has this text")
    return parser.parse_args()


GIVEN = arguments()
HOME = Path(tempfile.mkdtemp(prefix="fa4gen-runtime."))
prepare(GIVEN.kit, HOME)

import fa4gen  # noqa: E402

LAZY = not {"torch", "cutlass", "tvm_ffi", "yaml"} & set(sys.modules)

import torch  # noqa: E402
import tvm_ffi  # noqa: E402, F401 - the time to import it is not ours

from bench.host_time import calls, measure  # noqa: E402
from fa4gen.bench.runner.judge import compare  # noqa: E402

BF16, F32 = torch.bfloat16, torch.float32


def tensors(
    b: int, sq: int, sk: int, h: int, hk: int, d: int, dtype: Any = BF16, dv: int = 0
) -> tuple[Any, Any, Any]:
    """Random q, k, v on the GPU."""
    dims = ((b, sq, h, d), (b, sk, hk, d), (b, sk, hk, dv or d))
    q, k, v = (torch.randn(x, device="cuda").to(dtype) for x in dims)
    return q, k, v


def right(q: Any, k: Any, v: Any, o: Any, lse: Any, causal: bool, **more: Any) -> dict[str, float]:
    """Raises unless the answer stands beside float64 and PyTorch's own error; returns errors."""
    case = {
        "batch": q.shape[0],
        "seqlen_q": q.shape[1],
        "seqlen_k": k.shape[1],
        "heads": q.shape[2],
        "heads_kv": k.shape[2],
        "head_dim": q.shape[3],
        "head_dim_v": v.shape[3],
        "causal": causal,
        **more,
    }
    # PyTorch's own kernels fault on views that are not aligned: the yardstick takes copies
    q, k, v = (t.clone(memory_format=torch.contiguous_format) for t in (q, k, v))
    found, faults = compare(torch, {"q": q, "k": k, "v": v, "o": o, "lse": lse}, case)
    assert not faults, f"{faults} for {case}"
    return found


def called(q: Any, k: Any, v: Any, causal: bool = False, **more: Any) -> Any:
    """One call, judged."""
    o, lse = fa4gen.attention(q, k, v, causal=causal, return_lse=True, **more)
    right(q, k, v, o, lse, causal, **more)
    return o, lse


def refused(code: str, call: Callable[[], Any]) -> str:
    """Raises unless the call is refused with that code; returns the message."""
    said = ""
    try:
        call()
    except fa4gen.Fa4genError as e:
        said = str(e)
    assert code in said, f"expected {code}, not: {said or 'a result'}"
    return said


# ------------------------------------------------------------------------------- loading, values
@check
def import_is_lazy() -> None:
    assert LAZY


@check
def cold_start_with_a_pack() -> dict[str, float]:
    q, k, v = tensors(1, 128, 128, 2, 2, 128)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    fa4gen.load(GIVEN.pack)
    o, lse = fa4gen.attention(q, k, v, return_lse=True)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    right(q, k, v, o, lse, False)
    assert seconds < 0.3, seconds
    return {"seconds": seconds}


@check
def values() -> dict[str, Any]:
    count, worst = 0, 0.0
    for shape in SHAPES:
        for d in (64, 128):
            for dtype in (BF16, torch.float16):
                for causal in (False, True):
                    q, k, v = tensors(*shape, d, dtype)
                    out = torch.full((*q.shape[:3], d), float("nan"), dtype=dtype, device="cuda")
                    lse = torch.full((shape[0], shape[3], shape[1]), float("nan"), device="cuda")
                    o, rows = fa4gen.attention(
                        q, k, v, causal=causal, return_lse=True, out=out, lse=lse
                    )
                    assert o is out
                    assert rows is lse
                    found = right(q, k, v, o, rows, causal)
                    worst = max(worst, found.get("lse", 0.0))
                    again, _ = fa4gen.attention(q, k, v, causal=causal, return_lse=True)
                    assert torch.equal(o, again), "two runs differ"
                    count += 1
    return {"cases": count, "largest LSE error": worst}


@check
def views() -> dict[str, int]:
    b, s, h, d = 2, 130, 4, 64
    packed = torch.randn(b, s, 3, h, d, device="cuda").to(BF16)
    flat = torch.randn(b * s * h * d + 64, device="cuda").to(BF16)
    wide = torch.randn(b, s, h, 2 * d, device="cuda").to(BF16)
    ragged = torch.randn(b, s, h, d + 1, device="cuda").to(BF16)
    one = torch.randn(1, s, h, d, device="cuda").to(BF16)
    plain = tensors(b, s, s, h, h, d)
    cases = {
        "packed qkv": packed.unbind(2),
        "heads first": tuple(t.transpose(1, 2).contiguous().transpose(1, 2) for t in plain),
        "sequence first": tuple(t.transpose(0, 1).contiguous().transpose(0, 1) for t in plain),
        "offset of 2 bytes": tuple(flat[1 : 1 + b * s * h * d].view(b, s, h, d) for _ in range(3)),
        "offset of 16 bytes": tuple(flat[8 : 8 + b * s * h * d].view(b, s, h, d) for _ in range(3)),
        "every other element": tuple(wide[..., ::2] for _ in range(3)),
        "half of the width": (wide[..., :d], wide[..., d:], wide[..., :d]),
        "rows of odd length": tuple(ragged[..., :d] for _ in range(3)),
        "expanded batch": (plain[0], *(one.expand(b, s, h, d) for _ in range(2))),
        "expanded heads": (plain[0], *(one[:, :, :1].expand(b, s, h, d) for _ in range(2))),
        "size 1, odd strides": tuple(
            t.as_strided((1, 1, 1, d), (3, 5, 7, 1)) for t in (plain[0], plain[1], plain[2])
        ),
        "reversed sequence": tuple(t.flip(1) for t in plain),
    }
    for name, (q, k, v) in cases.items():
        for causal in (False, True):
            try:
                o, lse = called(q, k, v, causal)
            except Exception as e:
                raise AssertionError(f"{name}: {e}") from e
            dense = fa4gen.attention(*(t.contiguous().clone() for t in (q, k, v)), causal=causal)
            assert torch.equal(o, dense), name
    out = torch.empty(b, h, s, d, dtype=BF16, device="cuda").transpose(1, 2)
    odd = torch.zeros(b * s * h * d + 1, dtype=BF16, device="cuda")[1:].view(b, s, h, d)
    for place in (out, odd):
        o, lse = fa4gen.attention(*plain, return_lse=True, out=place)
        assert o is place
        right(*plain, o, lse, False)
    return {"layouts": len(cases) + 2}


@check
def expanded_then_contiguous() -> None:
    q = tensors(1, 65, 129, 4, 4, 64)[0]
    base = torch.randn(1, 129, 1, 64, device="cuda").to(BF16)
    k = base.expand(1, 129, 4, 64)
    for a, b in ((k, k.contiguous()), (k.contiguous(), k)):
        first, second = fa4gen.attention(q, a, a), fa4gen.attention(q, b, b)
        assert torch.equal(first, second)
        called(q, a, a)


@check
def empty_tensors() -> None:
    for b, sq, sk, h, hk in ((0, 5, 5, 2, 2), (2, 0, 5, 2, 2), (2, 5, 0, 2, 2), (2, 5, 5, 0, 0)):
        q, k, v = tensors(b, sq, sk, h, hk, 64)
        o, lse = fa4gen.attention(q, k, v, return_lse=True, causal=True)
        assert o.shape == q.shape
        assert lse.shape == (b, h, sq)
        assert not o.any()
        assert bool((lse == float("-inf")).all())


@check
def reported_cases() -> dict[str, int]:
    q, k, v = tensors(1, 2048, 1024, 2, 2, 128)
    o, lse = called(q, k, v, causal=True)
    assert not o[:, :1024].any()
    assert bool((lse[:, :, :1024] == float("-inf")).all())
    called(*tensors(1, 1, 16, 4, 4, 64))
    q, k, v = tensors(1, 5, 5, 9, 3, 64)
    called(q, k, v, causal=True)
    one = torch.full((1, 1, 1, 64), 3.0, dtype=BF16, device="cuda")
    assert torch.equal(fa4gen.attention(one, one, one), one)
    row = torch.full((1, 1, 32, 128), 64.0, dtype=BF16, device="cuda")
    o, lse = fa4gen.attention(row, -row, torch.ones_like(row), return_lse=True)
    assert bool((o == 1).all())
    assert torch.allclose(lse, torch.tensor(-(64.0**2) * 128**0.5, device="cuda"), rtol=1e-5)
    q, k, v = tensors(2, 2, 300, 40, 4, 128)
    called(q, k, v, causal=True)  # two queries of a decode stay causal
    for scale in (0.5, 0.01, 1.0):
        called(q, k, v, softmax_scale=scale)
    for length in (320, 256, 192, 128):
        called(*tensors(1, length, length, 2, 2, 64))
    return {"cases": 12}


@check
def large_sizes() -> dict[str, int]:
    q, k, v = tensors(70000, 16, 16, 1, 1, 64)
    for causal in (False, True):
        o, lse = fa4gen.attention(q, k, v, causal=causal, return_lse=True)
        for b in (0, 65534, 65535, 65536, 69999):
            cut = slice(b, b + 1)
            right(q[cut], k[cut], v[cut], o[cut], lse[cut], causal)
    del q, k, v, o, lse
    q, k, v = tensors(1, 2, 2, 70000, 35000, 64)
    o, lse = fa4gen.attention(q, k, v, causal=True, return_lse=True)
    for h in (0, 65534, 65536, 69998):
        own, shared = slice(h, h + 2), slice(h // 2, h // 2 + 1)
        args = (q[:, :, own], k[:, :, shared], v[:, :, shared], o[:, :, own], lse[:, own])
        right(*args, True)
    del q, k, v, o, lse
    q, k, v = tensors(1, 2048, 4194304, 8, 1, 128)
    o, lse = fa4gen.attention(q, k, v, causal=True, return_lse=True)
    cut = slice(2040, 2048)
    right(q[:, cut, :1], k, v, o[:, cut, :1], lse[:, :1, cut], True)
    return {"cases": 4}


# ------------------------------------------------------------------------- PyTorch's machinery
def block(q: Any, k: Any, v: Any) -> Any:
    """A use amid other operations."""
    return fa4gen.attention(q * 2, k, v, causal=True).float().sum(-1)


def recompiled(backend: str) -> dict[str, Any]:
    """Counts compilations over batches and lengths, all right."""
    torch._dynamo.reset()
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(block, fullgraph=True, dynamic=True, backend=counter)
    for b, s in ((3, 128), (2, 200), (5, 77), (2, 1025), (4, 320), (4, 256)):
        q, k, v = tensors(b, s, s + 3, 4, 2, 64)
        assert torch.allclose(compiled(q, k, v), block(q, k, v), atol=2e-2), (b, s)
    assert counter.frame_count == 1, f"{counter.frame_count} compilations"
    static = torch.compile(block, fullgraph=True, dynamic=False, backend=backend)
    q, k, v = tensors(2, 128, 128, 4, 4, 64)
    assert torch.allclose(static(q, k, v), block(q, k, v), atol=2e-2)
    return {"compilations over 6 shapes": counter.frame_count}


@check
def compiled_aot_eager() -> dict[str, Any]:
    return recompiled("aot_eager")


@check
def compiled_inductor() -> dict[str, Any]:
    return recompiled("inductor")


@check
def compiled_reduce_overhead() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for _ in range(4):
        q, k, v = tensors(2, 128, 128, 4, 4, 64)
        assert torch.allclose(compiled(q, k, v).clone(), block(q, k, v), atol=2e-2)


@check
def opcheck() -> None:
    q, k, v = tensors(2, 65, 70, 4, 2, 64)
    torch.library.opcheck(torch.ops.fa4gen.forward.default, (q, k, v, True, None))
    torch.library.opcheck(torch.ops.fa4gen.forward.default, (q, k, v, False, 0.3))
    out, lse = torch.empty_like(q), torch.empty(2, 4, 65, device="cuda")
    torch.library.opcheck(torch.ops.fa4gen.forward_into.default, (q, k, v, out, lse, True, None))


@check
def exported() -> None:
    class Model(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any) -> Any:
            return block(q, k, v)

    q, k, v = tensors(2, 128, 160, 4, 2, 64)
    b, s, t = (torch.export.Dim(n, min=2, max=4096) for n in "bst")
    shapes = ({0: b, 1: s}, {0: b, 1: t}, {0: b, 1: t})
    program = torch.export.export(Model(), (q, k, v), dynamic_shapes=shapes)
    q, k, v = tensors(3, 77, 99, 4, 2, 64)
    assert torch.allclose(program.module()(q, k, v), block(q, k, v), atol=2e-2)


@check
def cuda_graph() -> None:
    q, k, v = tensors(2, 300, 300, 4, 4, 128)
    out, lse = torch.empty_like(q), torch.empty(2, 4, 300, device="cuda")
    fa4gen.attention(q, k, v, causal=True, out=out, lse=lse)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fa4gen.attention(q, k, v, causal=True, out=out, lse=lse)
        inner, rows = fa4gen.attention(q, k, v, causal=True, return_lse=True)
    for _ in range(3):
        for t in (q, k, v):
            t.copy_(torch.randn_like(t))
        for t in (out, lse, inner, rows):
            t.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        right(q, k, v, out, lse, True)
        right(q, k, v, inner, rows, True)


@check
def side_stream() -> None:
    q, k, v = tensors(1, 512, 512, 4, 4, 128)
    late = torch.zeros_like(q)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)  # on another stream the call would read zeros
        late.copy_(q)
        o, lse = fa4gen.attention(late, k, v, return_lse=True)
    torch.cuda.current_stream().wait_stream(side)
    right(q, k, v, o, lse, False)


@check
def eight_threads() -> None:
    faults: list[str] = []

    def work(number: int) -> None:
        torch.manual_seed(number)
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for i in range(20):
                    d, causal = (64, 128)[(number + i) % 2], bool(i % 3)
                    q, k, v = tensors(1, 64 + 17 * number, 90, 4, 2, d)
                    called(q, k, v, causal)
        except Exception as e:
            faults.append(f"thread {number}: {e}")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults, faults[0]


@check
def another_device() -> str:
    if torch.cuda.device_count() < 2:
        return "NOT RUN: one GPU"
    assert torch.cuda.current_device() == 0
    q, k, v = (t.to("cuda:1") for t in tensors(2, 200, 300, 4, 2, 128))
    called(q, k, v, True)
    return "cuda:1 while cuda:0 is current"


# ------------------------------------------------------------------------- entry points, refusals
@check
def entry_points() -> None:
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for sq, sk in ((100, 100), (100, 160), (160, 100), (1, 50)):
        q, k, v = (t.transpose(1, 2) for t in tensors(2, sq, sk, 4, 4, 64))
        for causal in (False, True):
            mine = fa4gen.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.2)
            mask = torch.ones(sq, sk, dtype=torch.bool, device="cuda").tril() if causal else None
            theirs = sdpa(q.double(), k.double(), v.double(), attn_mask=mask, scale=0.2)
            assert torch.allclose(mine.double(), theirs, atol=2e-2), (sq, sk, causal)
    q, k, v = tensors(2, 70, 90, 4, 2, 128)
    o, lse = fa4gen.flash_attn_func(q, k, v, window_size=(-1, 0), return_lse=True)
    right(q, k, v, o, lse, True)
    assert fa4gen.flash_attn_func(q, k, v)[1] is None
    o, lse = fa4gen.flash_attn_varlen_func(q, k, v, causal=True, return_lse=True)
    right(q, k, v, o, lse, True)
    _, keys, values_ = tensors(2, 1, 100, 4, 2, 128)
    new = tensors(2, 3, 3, 4, 2, 128)
    full = (torch.cat([keys[:, :50], new[1]], 1), torch.cat([values_[:, :50], new[2]], 1))
    o, lse = fa4gen.flash_attn_with_kvcache(
        new[0],
        keys,
        values_,
        new[1],
        new[2],
        cache_seqlens=50,
        causal=True,
        return_softmax_lse=True,
    )
    right(new[0], *full, o, lse, True)
    assert torch.equal(keys[:, 50:53], new[1])


@check
def refusals() -> dict[str, int]:
    q, k, v = tensors(2, 64, 64, 4, 2, 64)
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("FA0802", lambda: fa4gen.attention(q[0], k, v)),
        ("FA0802", lambda: fa4gen.attention(q, k[:1], v[:1])),
        ("FA0802", lambda: fa4gen.attention(q, k, v[:, :5])),
        ("FA0802", lambda: fa4gen.attention(q[:, :, :3], k, v)),
        ("FA0802", lambda: fa4gen.attention(q, k[..., :32], v)),
        ("FA0803", lambda: fa4gen.attention(q.float(), k.float(), v.float())),
        ("FA0803", lambda: fa4gen.attention(q, k.half(), v)),
        ("FA0804", lambda: fa4gen.attention(q.cpu(), k.cpu(), v.cpu())),
        ("FA0804", lambda: fa4gen.attention(q, k.cpu(), v)),
        ("FA0806", lambda: fa4gen.attention(q, k, v, softmax_scale=torch.tensor(1.0))),
        ("FA0806", lambda: fa4gen.attention(q, k, v, softmax_scale=float("nan"))),
        ("FA0807", lambda: fa4gen.attention(q.clone().requires_grad_(), k, v, out=q + 0)),
        ("FA0808", lambda: fa4gen.attention(q, k, v, out=q)),
        ("FA0808", lambda: fa4gen.attention(q, k, v, out=q.float())),
        ("FA0808", lambda: fa4gen.attention(q, k, v, out=q[:, :1].expand_as(q))),
        ("FA0808", lambda: fa4gen.attention(q, k, v, lse=torch.empty(2, 4, 63, device="cuda"))),
        ("FA0809", lambda: fa4gen.flash_attn_func(q, k, v, dropout_p=0.1)),
        ("FA0809", lambda: fa4gen.flash_attn_func(q, k, v, score_mod=print)),
    ]
    for code, call in calls:
        refused(code, call)
    with torch.no_grad():
        leaf = q.clone().requires_grad_()
        called(leaf, k, v)
    x = torch.randn(1, 8, 1, 72, device="cuda").to(BF16)
    refused("FA0814" if importlib.util.find_spec("yaml") else "FA0810", lambda: called(x, x, x))
    return {"refused": len(calls) + 1}


@check
def bad_packs() -> None:
    manifest = json.loads((GIVEN.pack / "pack.json").read_text())
    for name, change in (("foreign", True), ("damaged", False), ("cut", None)):
        folder = HOME / name
        folder.mkdir()
        mine = copy.deepcopy(manifest)
        for i, entry in enumerate(mine["kernels"]):
            data = bytearray((GIVEN.pack / entry["file"]).read_bytes())
            if change is False and i == 0:
                data[len(data) // 2] ^= 1
            (folder / entry["file"]).write_bytes(data)
        if change:
            mine["target"] = "sm_100a"
        text = json.dumps(mine)
        (folder / "pack.json").write_text(text if change is not None else text[:100])
        refused("FA0811", lambda folder=folder: fa4gen.load(folder))


# -------------------------------------------------------------------------------------- host time
@check
def host_time() -> dict[str, float]:
    """Medians of batches in turn; the GPU is idle at the start of each, so nothing waits for it."""
    from fa4gen.api.session import CURRENT

    q, k, v = tensors(1, 128, 128, 2, 2, 128)
    out, lse = called(q, k, v)
    kernels = CURRENT.get().kernels.items()
    kernel = next(x for key, x in kernels if (key[0], key[3], key[6]) == (BF16, 128, False))
    ways = calls("cuda", kernel.function, kernel.num_sms) | peer_call(q, k, v, out, lse)
    times = measure(ways, settle=torch.cuda.synchronize)
    found = {name: t["median"] for name, t in times.items()}
    print(json.dumps(times, indent=1))
    assert found["attention, outputs given"] <= 7, found
    assert found["operator"] <= 20, found
    return found


def peer_call(q: Any, k: Any, v: Any, out: Any, lse: Any) -> dict[str, Callable[[], Any]]:
    """A raw tvm-ffi call of the kit's peer for the same problem, if there is one."""
    from fa4gen.bench.runner.problem import launcher

    path = GIVEN.kit / "manifest.json"
    kernels = json.loads(path.read_text())["kernels"] if path.exists() else []
    for entry in kernels:
        fits = entry.get("peer") and not entry["causal"] and entry["head_dim"] == 128
        if fits and entry.get("gqa_ratio", 1) == 1 and entry["dtype"] == "bfloat16":
            import tvm_ffi

            function = tvm_ffi.load_module(str(GIVEN.kit / entry["file"]))[entry["function"]]
            given = {"q": q, "k": k, "v": v, "o": out, "lse": lse}
            case = {"head_dim": 128, "seqlen_q": q.shape[1], "causal": False}
            sms = torch.cuda.get_device_properties(0).multi_processor_count
            return {"the peer's own function": launcher(entry, function, given, case, sms).call}
    return {}


def main() -> int:
    """Runs the checks in order; a failed one does not stop the others."""
    GIVEN.out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name(0)
    print(device, torch.__version__, sys.version.split()[0], flush=True)
    record: dict[str, Any] = {"device": device, "torch": torch.__version__, "checks": {}}
    failed = 0
    fa4gen.load(GIVEN.pack) if GIVEN.match else None
    for name, call in CHECKS:
        if GIVEN.match not in name:
            continue
        torch.manual_seed(1)
        begin = time.perf_counter()
        try:
            result, verdict = call(), "ok"
        except BaseException as e:
            traceback.print_exc()
            result, verdict, failed = f"{type(e).__name__}: {e}"[:2000], "FAILED", failed + 1
        seconds = round(time.perf_counter() - begin, 2)
        record["checks"][name] = {"verdict": verdict, "result": result, "seconds": seconds}
        print(f"{verdict} {name} {seconds} s {result if verdict == 'ok' else ''}", flush=True)
        (GIVEN.out / "runtime.json").write_text(json.dumps(record, indent=1, default=str))
    print(f"{len(record['checks']) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
