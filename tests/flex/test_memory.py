"""A function that was traced is not traced again, unless it may compute something else."""

from typing import Any

import torch

from fa4gen.flex import trace
from fa4gen.flex.memory import Memory

SHIFT = 3


def test_only_what_may_have_changed_is_traced_again(monkeypatch: Any) -> None:
    runs = []
    own = trace.run
    monkeypatch.setattr(trace, "run", lambda *a: runs.append(a) or own(*a))
    bias, size, times = torch.zeros(5), 7, 2

    def mod(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
        for _ in range(times):
            s = s + bias[h] * size
        return s + SHIFT

    memory = Memory()
    first = memory.score_mod(mod)
    assert memory.score_mod(mod) == first
    size = 9
    assert sorted(memory.score_mod(mod).numbers) == [3, 9]
    monkeypatch.setitem(mod.__globals__, "SHIFT", 4)
    assert sorted(memory.score_mod(mod).numbers) == [4, 9]
    assert len(runs) == 1
    times = 3  # Python looks at it
    assert str(memory.score_mod(mod).expression) != str(first.expression)
    assert len(runs) == 2
    bias = torch.ones(5)
    assert memory.score_mod(mod).tensors[0] is bias
    assert len(runs) == 3
    size = 0.5
    assert str(memory.score_mod(mod).expression) != str(first.expression)
    assert len(runs) == 4


def test_what_cannot_be_watched_is_traced_each_time() -> None:
    class Holder:
        factor = 2.0

    holder, sizes, table = Holder(), [1.0], torch.ones(3)
    memory = Memory()
    mods = [
        lambda s, b, h, q, k: s * holder.factor,
        lambda s, b, h, q, k: s * sizes[0],
        lambda s, b, h, q, k: s * table.exp()[h],
    ]
    before = [memory.score_mod(m) for m in mods]
    Holder.factor, sizes[0] = 3.0, 5.0
    table += 1
    after = [memory.score_mod(m) for m in mods]
    assert str(before[0].expression) != str(after[0].expression)
    assert before[1].numbers != after[1].numbers
    assert not torch.equal(before[2].tensors[0], after[2].tensors[0])
