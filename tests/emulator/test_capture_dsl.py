"""Launches of what the DSL itself compiled: in this process (JIT), and exported."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fa4gen.emulator import capture, native
from fa4gen.emulator.ptx.parser import load_ptx
from fa4gen.emulator.tensors import present

SCRIPT = Path(__file__).parent / "fixtures" / "jit_kernel.py"


@pytest.mark.dsl
def test_a_kernel_that_the_dsl_compiles_is_captured_jit_and_exported(tmp_path: Path) -> None:
    pytest.importorskip("cutlass")
    dump = tmp_path / "dump"
    dump.mkdir()
    environment = {**os.environ, **capture.jit_environment("sm_90a", dump)}
    command = [sys.executable, str(SCRIPT), str(tmp_path / "k.o")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    jit = json.loads(done.stdout.splitlines()[-1])
    assert (jit["grid"], jit["block"], jit["cluster"]) == ([8, 1, 1], [128, 1, 1], [2, 1, 1])
    assert jit["smem"] == 1024
    assert jit["pointers"] == jit["tensors"]
    assert jit["extents"] == [1000, 1000]
    assert jit["factor"] == "00002040"  # 2.5

    native.link([tmp_path / "k.o"], tmp_path / "k.so")
    stand_in, function = capture.load_exported(tmp_path / "k.so")
    (ptx,) = (load_ptx(p.read_text(), p.name) for p in dump.glob("*.ptx"))
    launches: list[capture.Launch] = []
    a, b = torch.zeros(1000), torch.zeros(1000)
    device = capture.Device(multiprocessors=132, smem_optin_bytes=232448, capability=9)
    with stand_in.capturing(
        device, lambda name: [p.bytes for p in ptx.entries[name].params], launches.append
    ):
        function("scale")(*present((a, b, 2.5))[0])
    (launch,) = launches
    assert (launch.grid, launch.cluster) == ((8, 1, 1), (2, 1, 1))
    assert launch.params[0][:8] == a.data_ptr().to_bytes(8, "little")
    assert launch.params[1][:8] == b.data_ptr().to_bytes(8, "little")
