"""GGUF models from Hugging Face names, by gguf-py's own map of names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.constants import GGMLQuantizationType as Type
from torch import Tensor

from inferno.contracts import Architecture
from inferno.testing import load_catalog
from inferno_gguf.checkpoint import GgufCheckpoint

ARCHITECTURES = {
    "Qwen3ForCausalLM": gguf.MODEL_ARCH.QWEN3,
    "LlamaForCausalLM": gguf.MODEL_ARCH.LLAMA,
}

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 32,
    "vocab_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000.0,
    "tie_word_embeddings": True,
}
LLAMA = {**CONFIG, "architectures": ["LlamaForCausalLM"]}


def architectures() -> list[Architecture]:
    return [offer.item for offer in load_catalog().of("inferno_architectures")]


def opened(path: Path) -> GgufCheckpoint:
    return GgufCheckpoint.open(path, architectures())


def names_in_file(config: Mapping[str, Any], names: Mapping[str, Any]) -> dict[str, str]:
    """The file's name of each tensor, by gguf-py's own map."""
    layers = config.get("num_hidden_layers", 1)
    mapping = gguf.get_tensor_name_map(ARCHITECTURES[config["architectures"][0]], layers)
    gguf_names = {}
    for name in names:
        theirs = mapping.get_name(name, (".weight", ".bias"))
        assert theirs is not None, name
        gguf_names[name] = theirs
    return gguf_names


def as_llama_cpp(name: str, weight: Tensor, config: Mapping[str, Any]) -> Tensor:
    """llama.cpp's converter reorders the rows of Llama's queries and keys: rotary pairs side by
    side."""
    if config["architectures"] != ["LlamaForCausalLM"] or not re.search(r"[qk]_proj", name):
        return weight
    heads = config["num_attention_heads"]
    if "k_proj" in name:
        heads = config.get("num_key_value_heads", heads)
    heads = heads[0] if isinstance(heads, list) else heads
    shape = (heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return weight.reshape(shape).swapaxes(1, 2).reshape(weight.shape).contiguous()


def add_tensor(writer: gguf.GGUFWriter, name: str, weight: Tensor, kind: Type) -> None:
    if weight.dtype == torch.uint8:  # blocks already
        writer.add_tensor(name, weight.numpy(), raw_dtype=kind)
    elif kind == Type.BF16:
        halves = weight.bfloat16().contiguous().view(torch.int16).numpy()
        if writer.endianess == gguf.GGUFEndian.BIG:
            halves = halves.byteswap()
        writer.add_tensor(
            name, halves.view(np.uint8).reshape(*weight.shape[:-1], -1), raw_dtype=kind
        )
    else:
        data = gguf.quants.quantize(
            weight.float().numpy(), kind
        ).copy()  # the writer swaps bytes in place
        writer.add_tensor(name, data, raw_dtype=kind)


def stored_type(tensor: Tensor) -> Type:
    return {torch.float32: Type.F32, torch.float16: Type.F16, torch.bfloat16: Type.BF16}[
        tensor.dtype
    ]


def write_gguf(
    path: Path,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    *,
    types: Mapping[str, Type] | None = None,
    add: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    **options: Any,
) -> Path:
    """A GGUF model of tensors by their Hugging Face names. `types` gives a tensor's ggml type by
    that name; others keep their own. `add` gets the writer before the tensors are added; `options`
    are the writer's."""
    architecture = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["architectures"][0]]]
    writer = gguf.GGUFWriter(path, architecture, **options)
    keys = {
        "hidden_size": writer.add_embedding_length,
        "intermediate_size": writer.add_feed_forward_length,
        "num_hidden_layers": writer.add_block_count,
        "num_attention_heads": writer.add_head_count,
        "num_key_value_heads": writer.add_head_count_kv,
        "head_dim": writer.add_key_length,
        "max_position_embeddings": writer.add_context_length,
        "rms_norm_eps": writer.add_layer_norm_rms_eps,
        "rope_theta": writer.add_rope_freq_base,
    }
    for key, method in keys.items():
        if key in config:
            method(config[key])
    add(writer)
    for name, theirs in names_in_file(config, tensors).items():
        tensor = tensors[name]
        kind = (types or {}).get(name, stored_type(tensor) if tensor.dtype != torch.uint8 else None)
        assert kind is not None, f"{name} is packed: its type must be given"
        add_tensor(writer, theirs, as_llama_cpp(name, tensor, config), kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
