#!/usr/bin/env python3
"""Compiles FlashAttention-4's forward kernels on a machine without a GPU, to be timed beside ours.

    python bench/compile_peer.py --target sm_90a --out DIR 128:128:full 128:128:causal 64:64:full:8

A configuration is head_dim:head_dim_v:mask[:ratio of query heads to KV heads]. Each becomes
`DIR/fa4_<target>_d..._dv..._<mask>.so`, which `fa4gen.bench.peers` reads; with --keep, also a
folder with its PTX and cubin, to count instructions in. Needs, in the environment that runs it,
`pip install "flash-attn-4==4.0.0b36" einops triton` besides torch and nvidia-cutlass-dsl: the peer
is measured, none of it is part of this project.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

SMS = {"sm_90a": 132, "sm_100a": 148}  # multiprocessors of H200 and B200: what the host would ask


def main() -> None:
    """Starts a process for each configuration: the DSL reads its environment once."""
    p = argparse.ArgumentParser(description="Compiles the peer's kernels without a GPU.")
    p.add_argument("configurations", nargs="+")
    p.add_argument("--target", default="sm_90a", choices=sorted(SMS))
    p.add_argument("--out", type=Path, required=True)
    p.add_argument("--keep", action="store_true", help="keep PTX and cubin as well")
    p.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = p.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    if args.one:
        compile_one(args.configurations[0], args.target, args.out)
        return
    for c in args.configurations:
        name = name_of(c, args.target)
        env = os.environ | {
            "CUTE_DSL_ARCH": args.target,
            "FLASH_ATTENTION_ARCH": args.target.rstrip("af"),
            "FLASH_ATTENTION_FAKE_TENSOR": "1",
            "FLASH_ATTENTION_NUM_SMS": str(SMS[args.target]),
        }
        if args.keep:
            (args.out / name).mkdir(exist_ok=True)
            env |= {"CUTE_DSL_KEEP": "ptx,cubin", "CUTE_DSL_DUMP_DIR": str(args.out / name)}
        command = [sys.executable, __file__, "--one", "--target", args.target, "--out", args.out, c]
        subprocess.run(list(map(str, command)), check=True, env=env)
        print(args.out / f"{name}.so")


def name_of(configuration: str, target: str) -> str:
    """`128:128:full:8` -> `fa4_sm_90a_d128_dv128_full_gqa8`."""
    d, dv, mask, *ratio = configuration.split(":")
    if mask not in ("full", "causal"):
        raise SystemExit(f"{configuration}: the mask is full or causal")
    return f"fa4_{target}_d{d}_dv{dv}_{mask}" + (f"_gqa{ratio[0]}" if ratio else "")


def compile_one(configuration: str, target: str, out: Path) -> None:
    """Calls the peer's interface on fake tensors, catches what it compiles, and exports that."""
    import cutlass
    import torch
    from flash_attn.cute import interface
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Hardware:
        """Stands in for the driver query, which needs a GPU."""

        def get_max_active_clusters(self, cluster_size: int) -> int:
            return SMS[target] // cluster_size

        def get_device_multiprocessor_count(self) -> int:
            return SMS[target]

    class Recorder:
        """Stands in for `cute.compile`, with or without options in brackets; keeps the result."""

        def __init__(self, wrapped, kept):
            self.wrapped, self.kept = wrapped, kept

        def __call__(self, *args, **kwargs):
            self.kept.append(self.wrapped(*args, **kwargs))
            return self.kept[-1]

        def __getitem__(self, options):
            return Recorder(self.wrapped[options], self.kept)

    cutlass.utils.HardwareInfo = Hardware
    kept: list = []
    interface.cute.compile = Recorder(interface.cute.compile, kept)
    d, dv, mask, *more = configuration.split(":")
    ratio, length = int(more[0]) if more else 1, 4096
    heads_kv = 16 // ratio
    heads = heads_kv * ratio
    like = {"dtype": torch.bfloat16, "device": "cuda"}
    with FakeTensorMode():
        q = torch.empty(2, length, heads, int(d), **like)
        k = torch.empty(2, length, heads_kv, int(d), **like)
        v = torch.empty(2, length, heads_kv, int(dv), **like)
        interface._flash_attn_fwd(q, k, v, causal=mask == "causal", return_lse=True)
    name = name_of(configuration, target)
    kept[0].export_to_c(str(out / f"{name}.o"), function_name="fwd")
    link = ["gcc", "-shared", "-o", str(out / f"{name}.so"), str(out / f"{name}.o")]
    subprocess.run(link, check=True)
    (out / f"{name}.o").unlink()


if __name__ == "__main__":
    main()
