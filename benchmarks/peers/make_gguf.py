"""Writes a checkpoint of `models.py` as GGUF, with the metadata of llama.cpp's own converter, or
has llama.cpp quantize that.

python make_gguf.py FOLDER bf16|Q8_0|Q4_K_M OUTPUT

Beside the file, OUTPUT with the suffix .json says how many bytes its weights have.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import gguf
import llama_cpp as L
import numpy as np

Array = np.ndarray[Any, Any]

_FILE_TYPES = {"Q8_0": L.LLAMA_FTYPE_MOSTLY_Q8_0, "Q4_K_M": L.LLAMA_FTYPE_MOSTLY_Q4_K_M}


def convert(folder: Path, path: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    architecture = config["model_type"].replace("_", "")
    writer = gguf.GGUFWriter(str(path), architecture)
    _describe(writer, config, folder.name)
    _add_tokenizer(writer, json.loads((folder / "tokenizer.json").read_text()), config)
    names = _names(architecture, config["num_hidden_layers"])
    for name, raw in _stacked(_tensors(folder / "model.safetensors")):
        _add_tensor(writer, f"{names[name.removesuffix('.weight')]}.weight", raw, config)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _describe(writer: gguf.GGUFWriter, config: dict[str, Any], name: str) -> None:
    writer.add_name(name)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    if "num_experts" in config:
        writer.add_expert_count(config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _add_tokenizer(
    writer: gguf.GGUFWriter, tokenizer: dict[str, Any], config: dict[str, Any]
) -> None:
    special = {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    tokens = {index: token for token, index in tokenizer["model"]["vocab"].items()} | special
    merges = [
        merge if isinstance(merge, str) else " ".join(merge)
        for merge in tokenizer["model"]["merges"]
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([tokens[i] for i in range(len(tokens))])
    writer.add_token_types(
        [
            gguf.TokenType.CONTROL if i in special else gguf.TokenType.NORMAL
            for i in range(len(tokens))
        ]
    )
    writer.add_token_merges(merges)
    writer.add_eos_token_id(config["eos_token_id"])
    writer.add_bos_token_id(config["eos_token_id"])  # required by readers, and never put first:
    writer.add_add_bos_token(False)


def _add_tensor(writer: gguf.GGUFWriter, name: str, raw: Array, config: dict[str, Any]) -> None:
    if config["model_type"] == "llama" and name.endswith(
        ("attn_q.weight", "attn_k.weight")
    ):  # its rotation pairs neighbours
        count = config[
            "num_attention_heads" if name.endswith("attn_q.weight") else "num_key_value_heads"
        ]
        raw = np.ascontiguousarray(raw.reshape(count, 2, -1, raw.shape[1]).swapaxes(1, 2)).reshape(
            raw.shape
        )
    if raw.ndim == 1 or name.endswith("ffn_gate_inp.weight"):
        writer.add_tensor(name, (raw.astype(np.uint32) << 16).view(np.float32))
    else:
        writer.add_tensor(name, raw.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def _names(architecture: str, num_layers: int) -> gguf.TensorNameMap:
    return gguf.get_tensor_name_map(
        {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}[architecture], num_layers
    )


def _stacked(tensors: Iterable[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    """The same matrix of all experts of a layer as one tensor, without their numbers in its
    name."""
    stacks: defaultdict[str, dict[int, Array]] = defaultdict(dict)
    for name, raw in tensors:
        if match := re.search(r"\.experts\.(\d+)", name):
            stacks[name.replace(match[0], ".experts")][int(match[1])] = raw
        else:
            yield name, raw
    for name, members in stacks.items():
        yield name, np.stack([members[i] for i in range(len(members))])


def _tensors(path: Path) -> Iterator[tuple[str, Array]]:
    """A bf16 safetensors file's tensors, as 16-bit patterns."""
    data = np.memmap(path, np.uint8, "r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    for name, info in json.loads(bytes(data[8:start])).items():
        if name != "__metadata__":
            begin, end = info["data_offsets"]
            yield (
                name,
                np.asarray(data[start + begin : start + end])
                .view(np.uint16)
                .reshape(info["shape"]),
            )


def quantize(source: Path, variant: str, path: Path) -> None:
    params = L.llama_model_quantize_default_params()
    params.ftype, params.nthread = _FILE_TYPES[variant], 1
    if L.llama_model_quantize(str(source).encode(), str(path).encode(), ctypes.byref(params)):
        raise SystemExit(f"llama.cpp did not quantize {source}")


def weight_bytes(path: Path) -> int:
    """Of all tensors: a tied embedding is the head, and read as that."""
    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)


def write(folder: Path, variant: str, path: Path) -> None:
    part = path.with_suffix(".part")
    if variant == "bf16":
        convert(folder, part)
    else:
        source = path.with_name(path.name.replace(variant, "bf16"))
        if not source.exists():
            write(folder, "bf16", source)
        quantize(source, variant, part)
    part.rename(path)
    path.with_suffix(".json").write_text(json.dumps({"weight_bytes": weight_bytes(path)}) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
