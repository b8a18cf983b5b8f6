"""A small Llama made from its configuration: logits and generation beside PyTorch's attention."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fa4gen.diag import Fa4genError
from tests.api.kernels import Reference, on_cpu

transformers = pytest.importorskip("transformers")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[Any, Reference]]:
    with on_cpu(monkeypatch) as made:
        yield made


def model(attention: str, kind: str = "Llama", **more: Any) -> Any:
    from fa4gen.integrations.transformers import register

    register()
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=256,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        vocab_size=100,
        **more,
    )
    torch.manual_seed(0)
    made = getattr(transformers, f"{kind}ForCausalLM")._from_config(
        config, attn_implementation=attention, dtype=torch.bfloat16
    )
    return made.eval()


@torch.no_grad()
def test_logits_and_generation_are_those_of_sdpa(kernels: dict[Any, Reference]) -> None:
    ids = torch.randint(0, 100, (2, 17), generator=torch.Generator().manual_seed(1))
    ours, theirs = model("fa4gen"), model("sdpa")
    assert torch.allclose(ours(ids).logits, theirs(ids).logits, atol=5e-2)
    assert sum(r.calls for r in kernels.values()) == 2
    cached = ours(ids[:, :16], use_cache=True).past_key_values
    step = ours(ids[:, 16:], past_key_values=cached).logits
    assert torch.allclose(step[:, 0], theirs(ids).logits[:, 16], atol=5e-2)


@torch.no_grad()
@pytest.mark.usefixtures("kernels")
def test_padding_and_windows_are_refused() -> None:
    ids = torch.zeros(2, 9, dtype=torch.long)
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    with pytest.raises(Fa4genError, match=r"FA0809.*padding"):
        model("fa4gen")(ids, attention_mask=padded)
    with pytest.raises(Fa4genError, match="FA0809"):
        model("fa4gen", "Mistral", sliding_window=4)(ids)


@pytest.mark.usefixtures("kernels")
def test_gradients_flow() -> None:
    ours = model("fa4gen")
    ours(torch.zeros(1, 4, dtype=torch.long)).logits.float().square().mean().backward()
    assert all(p.grad is not None for p in ours.parameters())
