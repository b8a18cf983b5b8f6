"""Compares the emulator with a GPU: the same objects, the same inputs, and what each difference is.

    python bench/emulator_silicon.py prepare [FOLDER...] --out KIT         here: objects, cases
    python bench/emulator_silicon.py measure KIT --runtime KIT2 --out FILE on the GPU: outputs
    python bench/emulator_silicon.py compare KIT FILE [--json FILE]        here: emulates, explains

Hopper forwards: this project's, and the peers' in the folders (named as bench/emulator_peers.py has
them). `measure` needs torch, tvm_ffi and this checkout; --runtime names a folder of `fa4gen build
--kit`, for its wheel and runtime library.

PTX bounds some results and does not define them: ex2, lg2, rcp, and the sums of wgmma. `compare`
displaces each within its bound, alone and then all together, by seeds. A difference is explained by
an approximation if the GPU's value lies between those that its displacements reach. Exit code 1 if
fewer than 99.9 % of a case's outputs lie within one ulp, or a difference is not explained.
"""

import argparse
import hashlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fa4gen.emulator.attention import AttentionProblem, make_inputs

if TYPE_CHECKING:
    from fa4gen.emulator.attention import Inputs

WITHIN = 0.999
LENGTHS = ((129, 300), (300, 500), (256, 1024))
SCHEDULES = ("fwd_hd128_sm90", "fwd_hd64_sm90")
ALONE, TOGETHER = 4, 128  # seeds of each displacement, as long as a difference is left
Case = dict[str, object]


# here, before -------------------------------------------------------------------------------------


def prepare(folders: list[Path], match: str, out: Path) -> int:
    """Writes objects, PTX and the list of cases."""
    from emulator_peers import tail

    out.mkdir(parents=True, exist_ok=True)
    cases: list[Case] = []
    for name, call, so, ptx, dims in (*own(match), *peers(folders, match)):
        shutil.copyfile(so, out / f"{name}.so")
        (out / f"{name}.ptx").write_text(ptx)
        for n, (sq, sk) in enumerate(LENGTHS):
            p = AttentionProblem(**dims, seqlen_q=sq, seqlen_k=sk)  # type: ignore[arg-type]
            cases.append(
                {"kernel": name, "seed": n, "problem": asdict(p), "rest": tail(call, "sm_90a", p)}
            )
        print(name, flush=True)
    (out / "cases.json").write_text(json.dumps(cases, indent=1) + "\n")
    return 0


Kernel = tuple[str, str, Path, str, dict[str, object]]


def own(match: str) -> Iterator[Kernel]:
    """This project's: name, call, object, PTX, and what is fixed of the problem."""
    from emulator_own import build

    for schedule in SCHEDULES:
        for mask in ("", ":causal=true"):
            name = f"{schedule}{mask}".replace(":causal=true", "_causal")
            if match in name:
                checked, made = build(f"{schedule}{mask}")
                s = checked.schedule
                dims = {"head_dim": s.head_dim, "head_dim_v": s.head_dim_v, "causal": s.causal}
                heads = {"heads": 2, "heads_kv": 1}
                yield name, "own", made.shared_object, made.ptx.read_text(), dims | heads


def peers(folders: list[Path], match: str) -> Iterator[Kernel]:
    """The peers' forwards without grouped heads."""
    from emulator_peers import FORWARD, kernels

    for path in kernels(folders):
        found = FORWARD.search(path.name)
        if found and found[1] == "sm_90a" and not found[5] and match in path.name:
            (ptx,) = path.with_suffix("").glob("*.ptx")
            dims = {"head_dim": int(found[2]), "head_dim_v": int(found[3])}
            heads = {"heads": 2, "heads_kv": 2, "causal": found[4] == "causal"}
            yield path.stem, "peer", path, ptx.read_text(), dims | heads


# on the GPU ---------------------------------------------------------------------------------------


def measure(kit: Path, runtime: Path | None, out: Path) -> int:
    """Runs every case and keeps what came out."""
    if runtime:
        from fa4gen.bench.runner.work import prepare as prepare_runtime

        prepare_runtime(runtime)
    import tvm_ffi

    found = []
    for case in json.loads((kit / "cases.json").read_text()):
        p, x = problem(case)
        fwd = tvm_ffi.load_module(str(kit / f"{case['kernel']}.so"))["fwd"]
        made, lse = (t.cuda() for t in empty(p))
        fwd(x.q.cuda(), x.k.cuda(), x.v.cuda(), made, lse, *arguments(case))
        torch.cuda.synchronize()
        found.append({"inputs": digest(x), "out": made.cpu(), "lse": lse.cpu()})
    about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    out.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"about": about, "found": found}, out)
    print(f"{len(found)} cases, {out.stat().st_size} bytes, {about}")
    return 0


def problem(case: Case) -> "tuple[AttentionProblem, Inputs]":
    """The problem of a case, and its inputs."""
    p = AttentionProblem(**case["problem"])  # type: ignore[arg-type]
    return p, make_inputs(p, int(str(case["seed"])))


def arguments(case: Case) -> list[object]:
    """What follows the tensors; a list of JSON is a tuple of the call."""
    rest = case["rest"]
    assert isinstance(rest, list)
    return [tuple(r) if isinstance(r, list) else r for r in rest]


def empty(p: AttentionProblem) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE, not written yet."""
    out = torch.full((p.batch, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).bfloat16()
    return out, torch.full((p.batch, p.heads, p.seqlen_q), float("nan"))


def digest(x: "Inputs") -> str:
    """The same numbers on both machines?"""
    joined = b"".join(t.contiguous().view(torch.int16).numpy().tobytes() for t in (x.q, x.k, x.v))
    return hashlib.sha256(joined).hexdigest()


# here, after --------------------------------------------------------------------------------------


def compare(kit: Path, measured: Path, written: Path | None) -> int:
    """One line a case."""
    given = torch.load(measured)
    cases = json.loads((kit / "cases.json").read_text())
    rows = []
    for case, found in zip(cases, given["found"], strict=True):
        rows.append(one(kit, case, found))
        print(json.dumps(rows[-1]), flush=True)
    differing = sum(sum(r["explained_by"].values()) + r["unexplained"] for r in rows)
    unexplained = sum(r["unexplained"] for r in rows)
    ok = bool(rows) and unexplained == 0 and all(r["within_one_ulp"] >= WITHIN for r in rows)
    print(
        f"{len(rows)} cases, {sum(r['elements'] for r in rows)} outputs, {differing} differ, "
        f"{unexplained} of them unexplained; least share within an ulp "
        f"{min((r['within_one_ulp'] for r in rows), default=0):.6f}: {'ok' if ok else 'NOT OK'}"
    )
    if written:
        written.write_text(json.dumps({**given["about"], "rows": rows}, indent=1) + "\n")
    return 0 if ok else 1


def one(kit: Path, case: Case, found: dict[str, object]) -> dict[str, object]:
    """The shares of one case, and its differences by approximation."""
    p, x = problem(case)
    if found["inputs"] != digest(x):
        raise SystemExit(f"{case['kernel']}: other inputs there; torch.randn is another one?")
    gpu, gpu_lse = found["out"], found["lse"]
    assert isinstance(gpu, torch.Tensor)
    assert isinstance(gpu_lse, torch.Tensor)
    out, lse = emulate(kit, case)
    ulps = (ordered(gpu) - ordered(out)).abs()
    finite = lse.isfinite()
    explained, unexplained = explain(kit, case, gpu, out)
    return {
        "kernel": case["kernel"],
        "lengths": f"{p.seqlen_q}x{p.seqlen_k}",
        "elements": ulps.numel(),
        "equal": (ulps == 0).float().mean().item(),
        "within_one_ulp": (ulps <= 1).float().mean().item(),
        "largest_difference": (gpu.float() - out.float()).abs().max().item(),
        "lse_difference": (gpu_lse - lse)[finite].abs().max().item(),
        "same_blind_rows": bool((gpu_lse[~finite] == lse[~finite]).all()),
        "explained_by": explained,
        "unexplained": unexplained,
    }


def explain(
    kit: Path, case: Case, gpu: torch.Tensor, out: torch.Tensor
) -> tuple[dict[str, int], int]:
    """Differences by the approximation that reaches the GPU's value (`together` if none alone
    does), and how many none reaches."""
    from fa4gen.emulator.machine import APPROXIMATIONS

    value, base = ordered(gpu), ordered(out)
    left = value != base
    counts: Counter[str] = Counter()
    trials = [(name, (name,), ALONE) for name in APPROXIMATIONS]
    for name, names, seeds in (*trials, ("together", APPROXIMATIONS, TOGETHER)):
        low, high = base.clone(), base.clone()
        for seed in range(seeds):
            if not left.any():
                break
            moved = ordered(emulate(kit, case, names, seed)[0])
            low, high = torch.minimum(low, moved), torch.maximum(high, moved)
            reached = left & (low <= value) & (value <= high)
            counts[name] += int(reached.sum())
            left &= ~reached
    return {n: c for n, c in counts.items() if c}, int(left.sum())


def emulate(
    kit: Path, case: Case, perturb: tuple[str, ...] = (), seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and LSE of one run."""
    from fa4gen.emulator.api import Emulator

    p, x = problem(case)
    emulator = Emulator(target="sm_90a", seed=seed, perturb=perturb, races=False)
    kernel = kit / str(case["kernel"])
    fwd = emulator.load(kernel.with_suffix(".so"), ptx=[kernel.with_suffix(".ptx")])["fwd"]
    out, lse = empty(p)
    fwd(x.q, x.k, x.v, out, lse, *arguments(case)).raise_if_faulty()
    return out, lse


def ordered(values: torch.Tensor) -> torch.Tensor:
    """bf16 bits as integers in the order of the values, so that neighbours differ by 1."""
    bits = values.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("prepare", "measure", "compare"))
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("silicon"))
    parser.add_argument("--match", default="")
    parser.add_argument("--runtime", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.verb == "prepare":
        return prepare(args.paths, args.match, args.out)
    if args.verb == "measure":
        return measure(args.paths[0], args.runtime, args.out)
    return compare(args.paths[0], args.paths[1], args.json)


if __name__ == "__main__":
    sys.exit(main())
