"""Qwen3 with norms of keys that make a few channels large, as trained ones do, over int8 keys.

Suffixes: N prompts, V vocabulary.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from inferno.testing import generate, load_toy, transformers_model

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 160,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": False,
}
BOUND = 0.02
"""Mean Kullback-Leibler divergence from the exact cache, in nats."""


def stored(folder: Path, times: float) -> Path:
    """Save a model some of whose key channels are this many times as large as others, and those of
    its queries as many times smaller, and return its path."""
    generator, reference = torch.Generator().manual_seed(5), transformers_model(CONFIG)
    with torch.no_grad():
        for name, parameter in reference.named_parameters():
            if name.endswith("lm_head.weight"):
                parameter.normal_(0, 0.2, generator=generator)
            elif name.endswith(("q_norm.weight", "k_norm.weight")):
                parameter.fill_(1.5)
                parameter[[3, 40]] *= times if "k_norm" in name else 1 / times
    folder.mkdir()
    save: Any = reference
    save.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({**CONFIG, "torch_dtype": "float32"}))
    return folder


def log_probabilities(path: Path, **options: Any) -> Tensor:
    """Return those of the token after each prompt, (N, V)."""
    generator = torch.Generator().manual_seed(6)
    prompts = [torch.randint(3, 160, (n,), generator=generator).tolist() for n in range(8, 150, 7)]
    outcomes = generate(load_toy(path, **options), prompts)
    return torch.cat([outcome.logits_NV for outcome in outcomes]).double().log_softmax(-1)


@pytest.mark.parametrize("times", [10.0, 60.0])
def test_int8_keys_keep_their_small_channels(tmp_path: Path, times: float) -> None:
    path = stored(tmp_path / "model", times)
    exact_NV = log_probabilities(path)
    ours_NV = log_probabilities(path, kv_cache_dtype="int8")
    divergence_N = (exact_NV.exp() * (exact_NV - ours_NV)).sum(-1)
    assert divergence_N.mean() <= BOUND
