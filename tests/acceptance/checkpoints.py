"""Checkpoints of a few kilobytes whose text side is real: a byte-level tokenizer with the markers
of a chat template as added tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tests.fake_engine import byte_backend

_SPECIAL = re.compile(r"<\|[\w:]+\|>|<｜[\w▁]+｜>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>")
_PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value)>")
"""Qwen and GLM list these as added tokens that stay in the text."""

_HIDDEN, _HEADS, _VOCABULARY = 32, 2, 512


def write_checkpoint(
    folder: Path,
    template: str,
    *,
    end: str = "</s>",
    more_ends: Sequence[str] = (),
    bos: str = "",
    response_template: Mapping[str, Any] | None = None,
) -> Path:
    """Write a toy Qwen3 with that chat template, whose turns end with the token `end`, and which is
    an embedding model too. Its weights are zeros."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = byte_backend()
    special = sorted({end, *more_ends, *filter(None, [bos]), *_SPECIAL.findall(template)})
    backend.add_special_tokens(special)
    plain = sorted(set(_PLAIN.findall(template)))
    backend.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in plain])
    backend.save(str(folder / "tokenizer.json"))
    text = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": end,
        "bos_token": bos or None,
        "chat_template": template,
        "response_template": response_template,
    }
    _write(folder / "tokenizer_config.json", text)
    _write(
        folder / "config.json",
        {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            "vocab_size": _VOCABULARY,
            "hidden_size": _HIDDEN,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": _HEADS,
            "num_key_value_heads": _HEADS,
            "head_dim": 16,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "max_position_embeddings": 32768,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "eos_token_id": [backend.token_to_id(each) for each in (end, *more_ends)],
        },
    )
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (path, kind) in enumerate(
            [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        )
    ]
    _write(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write(folder / "1_Pooling" / "config.json", {"pooling_mode": "mean"})
    save_file(_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _weights() -> dict[str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (_VOCABULARY, _HIDDEN),
        "model.norm.weight": (_HIDDEN,),
    }
    layer = "model.layers.0"
    for name in ("q", "k", "v", "o"):
        shapes[f"{layer}.self_attn.{name}_proj.weight"] = (_HIDDEN, _HIDDEN)
    for name in ("q", "k"):
        shapes[f"{layer}.self_attn.{name}_norm.weight"] = (_HIDDEN // _HEADS,)
    for name in ("gate", "up"):
        shapes[f"{layer}.mlp.{name}_proj.weight"] = (64, _HIDDEN)
    shapes[f"{layer}.mlp.down_proj.weight"] = (_HIDDEN, 64)
    for name in ("input", "post_attention"):
        shapes[f"{layer}.{name}_layernorm.weight"] = (_HIDDEN,)
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")
