"""Compiled host code insists itself on what recognised calls leave to it: ValueError, no launch.

The real shared object on the emulator's stand-in for the CUDA runtime; tensors that say they are on
a GPU.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fa4gen.driver import check
from fa4gen.emit.render import render
from fa4gen.emulator import capture
from fa4gen.emulator.tensors import present
from fa4gen.options import Options
from fa4gen.runtime.compile import Compiled, Request, compile_cached

SCHEDULE = Path(__file__).parents[2] / "schedules" / "fwd_hd64_sm90.yaml"
H200 = capture.Device(multiprocessors=132, smem_optin_bytes=232448, capability=9)
BF16 = torch.bfloat16
pytestmark = pytest.mark.dsl


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    checked = check(SCHEDULE, settings={"causal": "false"})
    schedule, text = checked.schedule, render(checked.program).text
    request = Request(name=schedule.name, target=schedule.target, text=text)
    return compile_cached(request, Options.from_environment())


@pytest.fixture(scope="module")
def call(compiled: Compiled) -> Callable[..., int]:
    """Calls the function with these tensors; how many launches that made."""
    stand_in, functions = capture.load_exported(compiled.shared_object)
    function = functions("fwd")

    def run(*tensors: Any) -> int:
        launches: list[Any] = []
        shown, _ = present((*tensors, 0.125, 132))
        with stand_in.capturing(H200, lambda _name: (), launches.append):
            function(*shown)
        return len(launches)

    return run


def tensors(**other: Any) -> list[Any]:
    q, o = (torch.zeros(2, 100, 4, 64, dtype=BF16) for _ in range(2))
    k, v = (torch.zeros(2, 60, 2, 64, dtype=BF16) for _ in range(2))
    return list({"q": q, "k": k, "v": v, "o": o, "lse": torch.zeros(2, 4, 100), **other}.values())


def test_what_fits_is_launched(call: Callable[..., int]) -> None:
    assert call(*tensors()) == 1


BAD = {
    "2 bytes on": {"q": torch.zeros(2 * 100 * 4 * 64 + 1, dtype=BF16)[1:].view(2, 100, 4, 64)},
    "output 2 bytes on": {
        "o": torch.zeros(2 * 100 * 4 * 64 + 1, dtype=BF16)[1:].view(2, 100, 4, 64)
    },
    "stride of 65": {"k": torch.zeros(2, 60, 2, 65, dtype=BF16)[..., :64]},
    "last stride of 2": {"v": torch.zeros(2, 60, 2, 128, dtype=BF16)[..., ::2]},
    "type": {"k": torch.zeros(2, 60, 2, 64, dtype=torch.float16)},
    "type of the LSE": {"lse": torch.zeros(2, 4, 100, dtype=BF16)},
    "length of V": {"v": torch.zeros(2, 61, 2, 64, dtype=BF16)},
    "batch of K": {"k": torch.zeros(1, 60, 2, 64, dtype=BF16)},
    "head dim": {"q": torch.zeros(2, 100, 4, 128, dtype=BF16)},
    "length of the output": {"o": torch.zeros(2, 101, 4, 64, dtype=BF16)},
    "heads of V": {"v": torch.zeros(2, 60, 1, 64, dtype=BF16)},
    "batch of V": {"v": torch.zeros(3, 60, 2, 64, dtype=BF16)},
    "head dim of V": {"v": torch.zeros(2, 60, 2, 72, dtype=BF16)},
    "head dim of K": {"k": torch.zeros(2, 60, 2, 128, dtype=BF16)},
    "batch of the output": {"o": torch.zeros(1, 100, 4, 64, dtype=BF16)},
    "heads of the output": {"o": torch.zeros(2, 100, 2, 64, dtype=BF16)},
    "head dim of the output": {"o": torch.zeros(2, 100, 4, 128, dtype=BF16)[..., :72]},
    "last stride of the output": {"o": torch.zeros(2, 100, 4, 128, dtype=BF16)[..., ::2]},
    "batch of the LSE": {"lse": torch.zeros(3, 4, 100)},
    "heads of the LSE": {"lse": torch.zeros(2, 2, 100)},
    "length of the LSE": {"lse": torch.zeros(2, 4, 101)},
    "last stride of the LSE": {"lse": torch.zeros(2, 4, 200)[..., ::2]},
    "rank of the LSE": {"lse": torch.zeros(2, 4)},
    "rank": {"q": torch.zeros(100, 4, 64, dtype=BF16)},
}


@pytest.mark.parametrize("name", BAD)
def test_what_does_not_fit_is_a_value_error(call: Callable[..., int], name: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        call(*tensors(**BAD[name]))
