"""Compares the emulator with a GPU: the same object, the same inputs, outputs within a bf16 ulp.

    python bench/emulator_silicon.py emulate [FOLDER...] [--own] --out DIR        here, no GPU
    python bench/emulator_silicon.py compare DIR [--kit KIT] [--json FILE]        on the GPU

`emulate` runs Hopper forwards: the peers' in the folders (named as bench/emulator_peers.py has
them) and with --own this project's; it writes inputs, outputs and the shared objects to DIR.
`compare` needs torch, tvm_ffi and this checkout; --kit names a folder of `fa4gen build --kit`, for
its wheel and its runtime library. Exit code 1 if fewer than 99.9 % of the outputs lie within one
ulp of each other in any case.
"""

import argparse
import itertools
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch

WITHIN = 0.999
# name, how it is called, shared object, PTX files, AttentionProblem (not known to `compare`)
Case = tuple[str, str, Path, list[Path], object]


def peers(folders: list[Path], match: str) -> Iterator[Case]:
    """The peers' forwards, each on its shapes."""
    from emulator_peers import FORWARD, kernels, problems

    for path in kernels(folders):
        if "sm_90" in path.name and FORWARD.search(path.name) and match in path.name:
            ptx = sorted(path.with_suffix("").glob("*.ptx"))
            yield from ((path.stem, "peer", path, ptx, p) for p in problems(path.name))


def own(match: str) -> Iterator[Case]:
    """This project's Hopper forwards, each on the shapes of the peers'."""
    from emulator_own import build, shipped
    from emulator_peers import PAIRS

    from fa4gen.emulator.attention import AttentionProblem

    for request in shipped():
        if "sm90" not in request or match not in request:
            continue
        checked, made = build(request)
        s = checked.schedule
        for sq, sk in PAIRS:
            problem = AttentionProblem(
                heads=2,
                heads_kv=1,
                seqlen_q=sq,
                seqlen_k=sk,
                head_dim=s.head_dim,
                head_dim_v=s.head_dim_v,
                causal=s.causal,
            )
            name = request.replace(":causal=true", "_causal")
            yield name, "own", made.shared_object, [made.ptx], problem


def emulate(cases: Iterable[Case], out: Path) -> int:
    """Writes one case a file, and the objects beside them."""
    from emulator_peers import tail

    from fa4gen.emulator.api import Emulator
    from fa4gen.emulator.attention import judge_forward, make_inputs

    out.mkdir(parents=True, exist_ok=True)
    for n, (name, call, path, ptx, p) in enumerate(cases):
        shutil.copyfile(path, out / f"{name}.so")
        x = make_inputs(p, n)
        made = torch.full((p.batch, p.seqlen_q, p.heads, p.head_dim_v), float("nan")).bfloat16()
        lse = torch.full((p.batch, p.heads, p.seqlen_q), float("nan"))
        fwd = Emulator(target="sm_90a", seed=n, races=False).load(path, ptx=ptx)["fwd"]
        rest = tail(call, "sm_90a", p)
        fwd(x.q, x.k, x.v, made, lse, *rest).raise_if_faulty()
        case = {"object": f"{name}.so", "rest": rest, "q": x.q, "k": x.k, "v": x.v}
        torch.save(
            {**case, "out": made, "lse": lse},
            out / f"{name}_q{p.seqlen_q}_k{p.seqlen_k}_b{p.batch}.pt",
        )
        print(name, p.seqlen_q, p.seqlen_k, *judge_forward(p, x, made, lse), flush=True)
    return 0


def ordered(values: torch.Tensor) -> torch.Tensor:
    """bf16 or fp16 bits as integers in the order of the values, so that neighbours differ by 1."""
    bits = values.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def compare(folder: Path, kit: Path | None, written: Path | None) -> int:
    """Runs every case on the GPU."""
    if kit:
        from fa4gen.bench.runner.work import prepare

        prepare(kit)
    import tvm_ffi

    rows = []
    for file in sorted(folder.glob("*.pt")):
        case = torch.load(file)
        fwd = tvm_ffi.load_module(str(folder / case["object"]))["fwd"]
        q, k, v = (case[n].cuda() for n in "qkv")
        out, lse = torch.full_like(case["out"], float("nan")).cuda(), case["lse"].cuda() * 0
        fwd(q, k, v, out, lse, *case["rest"])
        torch.cuda.synchronize()
        ulps = (ordered(out.cpu()) - ordered(case["out"])).abs()
        finite = case["lse"].isfinite()
        row = {
            "case": file.stem,
            "elements": ulps.numel(),
            "equal": (ulps == 0).float().mean().item(),
            "within_one_ulp": (ulps <= 1).float().mean().item(),
            "largest_difference": (out.cpu().float() - case["out"].float()).abs().max().item(),
            "lse_difference": (lse.cpu() - case["lse"])[finite].abs().max().item(),
        }
        rows.append(row)
        print(row, flush=True)
    if written:
        device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        written.write_text(json.dumps({**device, "rows": rows}, indent=1) + "\n")
    return 0 if rows and all(r["within_one_ulp"] >= WITHIN for r in rows) else 1


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("verb", choices=("emulate", "compare"))
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--own", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("silicon"))
    parser.add_argument("--match", default="")
    parser.add_argument("--kit", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.verb == "emulate":
        cases = itertools.chain(
            peers(args.folders, args.match), own(args.match) if args.own else ()
        )
        return emulate(cases, args.out)
    return compare(args.folders[0], args.kit, args.json)


if __name__ == "__main__":
    sys.exit(main())
