"""Qwen2 with key biases as large as trained ones, over a cache of 8 bits.

Suffixes: N prompts, V vocabulary, C head dim.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.contracts import KernelProvider
from inferno.testing import (
    Toy,
    alike,
    generate,
    like_trained,
    load_catalog,
    load_toy,
    transformers_model,
)

HEAD = 64
CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 256,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
    "vocab_size": 160,
}
FAST, SLOW, SEVERAL = (0,), (31,), (2, 3, 17, 40, 63)
"""Channels of a head; channels 0 and 32 turn by a radian per token, 31 and 63 hardly."""
BOUND = 0.02
"""Mean Kullback-Leibler divergence from the exact cache, in nats."""


def stored(folder: Path, offset: float, channels: tuple[int, ...]) -> Path:
    """Save a model whose attention is sharp, with this bias in these channels of every key head,
    and return its path. Other channels have biases of about 1."""
    generator = torch.Generator().manual_seed(5)
    reference: Any = transformers_model(CONFIG)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                parameter.normal_(0, 0.1, generator=generator)
            elif name.endswith("k_proj.bias"):
                parameter.normal_(0, 1, generator=generator)
                parameter.view(-1, HEAD)[:, list(channels)] += offset
            elif name.endswith("lm_head.weight"):
                parameter.normal_(0, 0.2, generator=generator)
    reference.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float32"}))
    return folder


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(6)
    return [torch.randint(3, 160, (n,), generator=generator).tolist() for n in range(10, 250, 10)]


def log_probabilities(path: Path, **options: Any) -> Tensor:
    """Return those of the token after each prompt, (N, V)."""
    outcomes = generate(load_toy(path, max_model_len=512, **options), prompts())
    return torch.cat([outcome.logits_NV for outcome in outcomes]).double().log_softmax(-1)


@alike
@pytest.mark.parametrize("channels", [FAST, SLOW, SEVERAL])
@pytest.mark.parametrize("offset", [100.0, 300.0, -500.0])
def test_int8_keys_keep_their_small_channels(
    tmp_path: Path, offset: float, channels: tuple[int, ...]
) -> None:
    path = stored(tmp_path, offset, channels)
    exact_NV = log_probabilities(path)
    ours_NV = log_probabilities(path, kv_cache_dtype="int8")
    divergence_N = (exact_NV.exp() * (exact_NV - ours_NV)).sum(-1)
    assert divergence_N.mean() <= BOUND


def divergence(path: Path, exact_NV: Tensor, **options: Any) -> float:
    ours_NV = log_probabilities(path, **options)
    return float((exact_NV.exp() * (exact_NV - ours_NV)).sum(-1).mean())


@pytest.mark.slow
def test_of_the_error_in_bfloat16_int8_keys_are_the_smaller_part(tmp_path: Path) -> None:
    """Weights like trained ones, at +300, beside float32. A cache of bfloat16 stores the bias with
    the keys, in steps of 2; one of int8 stores the rest of them. Large values cost less."""
    model: Any = transformers_model(CONFIG)
    like_trained(model, key_offset=300.0)
    for value_offset in (0.0, 100.0):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if name.endswith("v_proj.bias"):
                    parameter.view(-1, HEAD)[:, 3] += value_offset
        path = tmp_path / str(value_offset)
        model.save_pretrained(path)
        (path / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float32"}))
        exact_NV = log_probabilities(path, dtype="float32")
        alone = divergence(path, exact_NV, dtype="float32", kv_cache_dtype="int8")
        half, both = (
            divergence(path, exact_NV, dtype="bfloat16", kv_cache_dtype=cache)
            for cache in ("auto", "int8")
        )
        assert alone <= BOUND / 2
        assert both <= max(half / 4, BOUND / 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_chunks_prefix_hits_and_captures_change_no_bit(tmp_path: Path, dtype: str) -> None:
    path = stored(tmp_path, 300.0, SEVERAL)
    options: dict[str, Any] = {"dtype": dtype, "kv_cache_dtype": "int8", "max_model_len": 512}
    options["device"] = "cpu"  # on GPUs a product's sums depend on the number of rows
    whole = load_toy(path, **options)
    wanted = [generate(whole, [prompt], 12)[0] for prompt in prompts()[-3:]]
    chunked = generate(load_toy(path, **options, max_num_batched_tokens=48), prompts()[-3:], 12)
    for ours, theirs in zip(chunked, wanted, strict=True):
        assert torch.equal(ours.logits_NV, theirs.logits_NV)
    engine = whole.engine(captures(whole))
    for round in range(2):
        outcomes = generate(whole, prompts()[-3:], 12, engine=engine)
        assert all(outcome.num_cached > 0 for outcome in outcomes) == (round == 1)
        for ours, theirs in zip(outcomes, wanted, strict=True):
            assert ours.token_ids == theirs.token_ids
            assert torch.equal(ours.logits_NV, theirs.logits_NV)


def captures(toy: Toy) -> Any:
    """Return a capture of the toy's kernels, or None if they have none."""
    if (use := toy.plan.capture) is None:
        return None
    capture = load_catalog().named(KernelProvider, use.name).item.capture
    return None if capture is None else capture()
