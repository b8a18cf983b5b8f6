"""A small kernel, written as the body of an entry, run in the emulator."""

import ctypes
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fa4gen.emulator import machine
from fa4gen.emulator.ptx.parser import load_ptx
from fa4gen.emulator.report import Report

HEADER = """.version 8.8
.target {target}
.address_size 64
.extern .shared .align 1024 .b8 smem[];
.visible .entry kernel({params})
{{
.reg .pred %p<16>;
.reg .b16 %h<32>;
.reg .b32 %r<160>;
.reg .b64 %rd<64>;
{loads}
mov.b32 %r0, smem;
mov.u32 %r1, %tid.x;
"""

Execute = Callable[..., Report]


@pytest.fixture
def execute() -> Execute:
    """`execute(body, a, b, ...)` runs `body`; %rd0, %rd1, ... are the addresses of the arrays, or
    the windows of tensor maps (128 bytes given as `maps`; then `known` says which arrays may be
    touched, if any does). %r0 is shared memory, %r1 the thread."""

    def run(
        body: str,
        *arrays: np.ndarray,
        maps: Sequence[bytes] = (),
        target: str = "sm_100a",
        threads: int = 32,
        grid: tuple[int, int, int] = (1, 1, 1),
        cluster: tuple[int, int, int] = (1, 1, 1),
        smem: int = 65536,
        seed: int = 0,
        perturb: tuple[str, ...] = (),
        races: bool = True,
        processes: int = 1,
        initialised: bool = True,
        known: Sequence[np.ndarray] = (),
    ) -> Report:
        params = [f".param .u64 a{i}" for i in range(len(arrays))]
        params += [f".param .align 64 .b8 m{i}[128]" for i in range(len(maps))]
        loads = [f"ld.param.b64 %rd{i}, [a{i}];" for i in range(len(arrays))]
        for i in range(len(maps)):
            at = len(arrays) + i
            loads += [f"mov.b64 %rd{at}, m{i};", f"cvta.param.u64 %rd{at}, %rd{at};"]
        head = HEADER.format(target=target, params=", ".join(params), loads="\n".join(loads))
        module = load_ptx(f"{head}{body}\nret;\n}}\n", "small.ptx")
        given = [bytes(ctypes.c_uint64(a.ctypes.data)) for a in arrays] + list(maps)
        return machine.run(
            module,
            "kernel",
            target=target,
            grid=grid,
            block=(threads, 1, 1),
            cluster=cluster,
            dynamic_smem_bytes=smem,
            params=given,
            memory=[(a.ctypes.data, a.nbytes, f"a{i}", initialised) for i, a in enumerate(arrays)]
            if not maps
            else [(a.ctypes.data, a.nbytes, "known", True) for a in known],
            seed=seed,
            perturb=perturb,
            races=races,
            processes=processes,
        )

    return run
