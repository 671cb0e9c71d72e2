"""Packed matrices of models under other classes (`contracts.Spelling`) that hold queries, keys and
values: InternLM2's, one key/value head after the other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inferno.errors import UnsupportedError
from inferno.testing import generate, load_toy, ragged_prompts, transformers_model
from inferno.testing.converting import convert
from inferno.testing.gguf_twins import tiny_tokenizer
from inferno.testing.tiny import same_bits

GROUPS = 2
TWIN: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 160,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": GROUPS,
    "head_dim": 128,
    "max_position_embeddings": 160,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
NAMES = {
    "embed_tokens": "tok_embeddings",
    "self_attn.o_proj": "attention.wo",
    "self_attn": "attention",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "lm_head": "output",
}
AXES: dict[str, dict[str, int | None]] = {
    "gptq-int4": {"qweight": 1, "qzeros": 1, "scales": 1, "g_idx": None},
    "awq-int4": {"qweight": 1, "qzeros": 1, "scales": 1},
    "fp8": {"weight": 0, "weight_scale_inv": 0},
    "compressed-tensors": {"weight_packed": 0, "weight_scale": 0, "weight_zero_point": 0},
}
"""The axis of each tensor along which the rows lie, as these formats have it; None: it is the same
for all rows."""


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dense")
    model: Any = transformers_model(TWIN)
    model.save_pretrained(path)
    (path / "config.json").write_text(json.dumps({**TWIN, "dtype": "float32"}))
    (path / "tokenizer.json").write_bytes(tiny_tokenizer())
    return path


def quantized(dense: Path, form: str, folder: Path) -> tuple[Path, Path]:
    """Return the model in a format, and the same with InternLM2's names and fused matrices."""
    twin, fused = folder / "twin", folder / "fused"
    convert(str(dense), form, twin)
    fused.mkdir()
    save_file(joined(load_file(twin / "model.safetensors"), form), fused / "model.safetensors")
    config = json.loads((twin / "config.json").read_text())
    own = {"architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2"}
    (fused / "config.json").write_text(json.dumps({**config, **own}))
    return twin, fused


def joined(tensors: dict[str, Tensor], form: str) -> dict[str, Tensor]:
    result = dict[str, Tensor]()
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if module.endswith(("k_proj", "v_proj")):
            continue
        if module.endswith("q_proj"):
            several = [tensors[name.replace("q_proj", f"{qkv}_proj")] for qkv in "qkv"]
            tensor, name = fuse(several, AXES[form].get(part)), name.replace("q_proj", "wqkv")
        for ours, theirs in NAMES.items():
            name = re.sub(re.escape(ours), theirs, name)
        result[name] = tensor.clone().contiguous()
    return result


def fuse(several: list[Tensor], axis: int | None) -> Tensor:
    if axis is None:
        return several[0]
    parts = [each.chunk(GROUPS, axis) for each in several]
    return torch.cat([each[g] for g in range(GROUPS) for each in parts], axis)


@pytest.mark.parametrize("form", AXES)
def test_packed_queries_keys_and_values_in_one_matrix_are_those_apart(
    form: str, dense: Path, tmp_path: Path
) -> None:
    twin, fused = quantized(dense, form, tmp_path)
    prompts = ragged_prompts(160, (5, 33))
    ours, theirs = (generate(load_toy(path), prompts, 6) for path in (fused, twin))
    assert same_bits(ours, theirs)


def test_a_part_that_would_cut_a_block_is_refused(dense: Path, tmp_path: Path) -> None:
    """FP8's blocks of 128 rows, with heads of 64."""
    _, fused = quantized(dense, "fp8", tmp_path)
    config = json.loads((fused / "config.json").read_text())
    smaller = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64}
    (fused / "config.json").write_text(json.dumps({**config, **smaller}))
    with pytest.raises(UnsupportedError, match="not begin and end with blocks of 128") as caught:
        load_toy(fused)
    assert "matrices are apart" in caught.value.remedy
