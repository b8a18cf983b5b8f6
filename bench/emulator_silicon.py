"""Compares the emulator with a GPU: the same object, the same inputs, outputs within a bf16 ulp.

    python bench/emulator_silicon.py emulate FOLDER... --out DIR     here, no GPU
    python bench/emulator_silicon.py compare DIR [--runtime FILE] [--json FILE]     on the GPU

`emulate` runs each Hopper forward of the folders (named as bench/emulator_peers.py has them) and
writes inputs, outputs and the shared object to DIR. `compare` needs torch, tvm_ffi and this file;
if the objects need the DSL's runtime library, --runtime names it. Exit code 1 if fewer than 99.9 %
of the outputs lie within one ulp of each other in any case.
"""

import argparse
import ctypes
import json
import shutil
import sys
from pathlib import Path

import torch

WITHIN = 0.999


def emulate(folders: list[Path], out: Path, match: str) -> int:
    """Writes one case a file, and the objects beside them."""
    from emulator_peers import FORWARD, forward, kernels, problems

    from fa4gen.emulator.api import Emulator
    from fa4gen.emulator.attention import make_inputs

    out.mkdir(parents=True, exist_ok=True)
    for path in kernels(folders):
        if "sm_90" not in path.name or not FORWARD.search(path.name) or match not in path.name:
            continue
        shutil.copyfile(path, out / path.name)
        for n, problem in enumerate(problems(path.name)):
            x = make_inputs(problem, n)
            made: list[torch.Tensor] = []
            emulator = Emulator(target="sm_90a", seed=n, races=False)
            report, verdicts = forward(emulator, path, problem, x, made)
            report.raise_if_faulty()
            case = {"object": path.name, "scale": problem.scale, "q": x.q, "k": x.k, "v": x.v}
            case |= {"out": made[0], "lse": made[1]}
            torch.save(case, out / f"{path.stem}_{n}.pt")
            print(path.stem, problem.seqlen_q, problem.seqlen_k, *verdicts)
    return 0


def ordered(values: torch.Tensor) -> torch.Tensor:
    """bf16 or fp16 bits as integers in the order of the values, so that neighbours differ by 1."""
    bits = values.view(torch.int16).to(torch.int32)
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def compare(folder: Path, runtime: Path | None, written: Path | None) -> int:
    """Runs every case on the GPU."""
    import tvm_ffi

    if runtime:
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    rows = []
    for file in sorted(folder.glob("*.pt")):
        case = torch.load(file)
        fwd = tvm_ffi.load_module(str(folder / case["object"]))["fwd"]
        q, k, v = (case[n].cuda() for n in "qkv")
        out, lse = torch.full_like(case["out"], float("nan")).cuda(), case["lse"].cuda() * 0
        fwd(q, k, v, out, lse, case["scale"], *[None] * 9, (None, None), None, None)
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
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, default=Path("silicon"))
    parser.add_argument("--match", default="")
    parser.add_argument("--runtime", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.verb == "emulate":
        return emulate(args.folders, args.out, args.match)
    return compare(args.folders[0], args.runtime, args.json)


if __name__ == "__main__":
    sys.exit(main())
