"""Files as llama.cpp's converter lays them out: linear layers' inputs apart, and of Qwen3.5 the
value heads in another order.

Suffixes: J key heads, R value heads of each, K and V their widths.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from inferno.configs import FULL
from inferno.testing import (
    generate,
    gguf_dialect,
    load_toy,
    torch_only,
    transformers_model,
    write_gguf,
)
from inferno_qwen3_next.config import LINEAR

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "layer_types": [LINEAR, FULL, LINEAR],
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_value_head_dim": 48,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
}
NEXT = {
    **SIZES,
    "architectures": ["Qwen3NextForCausalLM"],
    "model_type": "qwen3_next",
    "mlp_only_layers": [0, 1, 2],
    "num_experts": 0,
    "rope_theta": 10_000_000.0,
    "partial_rotary_factor": 0.25,
}
Q35 = {
    **SIZES,
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "rope_parameters": {
        "mrope_interleaved": True,
        "mrope_section": [2, 1, 1],
        "partial_rotary_factor": 0.25,
        "rope_theta": 10_000_000,
        "rope_type": "default",
    },
}
J, R, K, V = 2, 3, 64, 48


def apart(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Divide what Qwen3-Next stores key head by key head."""
    if "in_proj_qkvz" not in name:
        return {name: tensor}
    rows = torch.arange(len(tensor)).view(J, -1).split([K, K, R * V, R * V], 1)
    *qkv, z = (each.flatten() for each in rows)
    stem = name.removesuffix("qkvz.weight")
    return {f"{stem}qkv.weight": tensor[torch.cat(qkv)], f"{stem}z.weight": tensor[z]}


def tiled(name: str, tensor: Tensor) -> dict[str, Tensor]:
    """Order value heads by their number in their key head first."""
    heads = torch.arange(J * R).view(J, R).T.flatten()
    rows = (heads[:, None] * V + torch.arange(V)).flatten()
    part = name.rpartition("linear_attn.")[2]
    if part.startswith(("in_proj_qkv", "conv1d")):
        return {name: torch.cat([tensor[: 2 * J * K], tensor[2 * J * K :][rows]])}
    if part.startswith("in_proj_z"):
        return {name: tensor[rows]}
    if part.startswith("out_proj"):
        return {name: tensor[:, rows]}
    if part in ("A_log", "dt_bias") or part.startswith(("in_proj_a", "in_proj_b")):
        return {name: tensor[heads]}
    return {name: tensor}


@pytest.mark.parametrize(("config", "laid_out"), [(NEXT, apart), (Q35, tiled)])
def test_files_of_llama_cpps_layout_give_the_same_tokens(
    config: dict[str, Any], laid_out: Any, tmp_path: Path
) -> None:
    transformers_model(config).save_pretrained(tmp_path)  # type: ignore[operator]
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    tensors: dict[str, Tensor] = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        tensors |= laid_out(name, tensor)
    dialect = gguf_dialect(torch_only(), config["architectures"][0])
    assert dialect is not None
    fields = {
        **{"rope_theta": 10_000_000.0, "partial_rotary_factor": 0.25, **config},
        "recurrent": [kind == LINEAR for kind in config["layer_types"]],
        "inner_size": J * R * V,
    }
    write_gguf(tmp_path / "toy.gguf", dialect, fields, tensors, "F32")
    prompts = [[5, 6, 7, 8], [9] * 20, list(range(3, 70))]
    ours, theirs = (
        generate(load_toy(path, dtype="float32"), prompts, 16)
        for path in (tmp_path / "toy.gguf", tmp_path)
    )
    for one, other in zip(ours, theirs, strict=True):
        assert one.token_ids == other.token_ids
        torch.testing.assert_close(one.logits_NV, other.logits_NV, rtol=1e-3, atol=1e-3)
