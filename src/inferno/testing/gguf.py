"""A GGUF file of a toy model, as llama.cpp's converters would have written it; gguf-py writes it.

Names and keys come from the architecture's own map (`contracts.GgufNames`), turned around;
`check_names` holds that map against gguf-py's.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferno.configs import RopeConfig
from inferno.contracts import GgufNames

_NOT_QUANTIZED = ("ffn_gate_inp",)
"""Matrices that llama.cpp leaves in float32."""


def write_gguf(
    path: Path,
    names: GgufNames,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    kind: str,
) -> dict[str, Tensor]:
    """Write `tensors`, named as in the checkpoint, with their matrices as `kind`, F16 or Q8_0.
    Returns what the file holds, in float32 and under the same names."""
    import gguf

    writer = gguf.GGUFWriter(path, names.architecture)
    _write_config(writer, names, config)
    held: dict[str, Tensor] = {}
    stacks: defaultdict[str, dict[int, tuple[str, Tensor]]] = defaultdict(dict)
    for name, tensor in tensors.items():
        stored, member = gguf_name(names, name)
        stacks[stored][member or 0] = (name, tensor.float())
    for stored, members in stacks.items():
        ordered = [members[i] for i in range(len(members))]
        is_stack = gguf_name(names, ordered[0][0])[1] is not None
        rows = [_as_stored(names, config, stored, tensor) for _, tensor in ordered]
        whole = torch.stack(rows) if is_stack else rows[0]
        if _module(stored) in names.single_rows:
            whole = whole.squeeze(0)
        data, numbers = _encode(stored, whole, kind)
        writer.add_tensor(stored, data[0], raw_dtype=data[1])
        for i, (name, tensor) in enumerate(ordered):
            kept = numbers[i] if is_stack else numbers
            held[name] = _as_loaded(names, config, stored, kept).view(tensor.shape)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return held


def gguf_name(names: GgufNames, name: str) -> tuple[str, int | None]:
    """What the file calls a tensor of the checkpoint, and which of a stack it is."""
    path, _, part = name.rpartition(".")
    for stored, ours in names.modules.items():
        pattern = re.escape(ours).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{e\}", r"(?P<e>\d+)")
        whole = stored.endswith((".weight", ".bias"))
        if match := re.fullmatch(pattern, name if whole else path):
            found = match.groupdict()
            stored = stored.replace("{n}", found.get("n") or "")
            return stored if whole else f"{stored}.{part}", int(
                found["e"]
            ) if "e" in found else None
    raise AssertionError(f"{name}: GgufNames.modules has no name for it in a file")


def check_names(names: GgufNames) -> Iterator[str]:
    """What gguf-py, llama.cpp's own list of names, does not know of an architecture's map."""
    import gguf

    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    if names.architecture not in known:
        yield f"architecture {names.architecture}"
        return
    tensors = {
        gguf.TENSOR_NAMES[t].format(bid="{n}")
        for t in gguf.MODEL_TENSORS[known[names.architecture]]
    }
    for module in names.modules:
        if module not in tensors and module.rpartition(".")[0] not in tensors:
            yield f"tensor {module}"
    keys = {
        value.removeprefix("{arch}.")
        for group in vars(gguf.Keys).values()
        for value in getattr(group, "__dict__", {}).values()
        if isinstance(value, str)
    }
    for key in (*names.fields.values(), *names.rotary_pairs.values()):
        if key not in keys:
            yield f"key {key}"


def _write_config(writer: Any, names: GgufNames, config: Mapping[str, Any]) -> None:
    for name, key in names.fields.items():
        value = config.get(name)
        if value is None:
            continue
        spelt = {theirs: ours for ours, theirs in names.values.get(name, {}).items()}
        _add(writer, f"{names.architecture}.{key}", spelt.get(value, value) if spelt else value)
    rope, prefix = RopeConfig.from_json(config), f"{names.architecture}.rope"
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    _add(writer, f"{prefix}.freq_base", float(rope.rope_theta))
    if f"{prefix}.dimension_count" not in {
        f"{names.architecture}.{key}" for key in names.fields.values()
    }:
        _add(writer, f"{prefix}.dimension_count", int(head_dim * rope.partial_rotary_factor))
    if rope.original_max_position_embeddings:
        _add(
            writer,
            f"{prefix}.scaling.original_context_length",
            rope.original_max_position_embeddings,
        )
    if rope.rope_type in ("linear", "yarn"):
        _add(writer, f"{prefix}.scaling.type", rope.rope_type)
        _add(writer, f"{prefix}.scaling.factor", float(rope.factor))
    if rope.rope_type == "yarn":
        _add(writer, f"{prefix}.scaling.yarn_beta_fast", float(rope.beta_fast))
        _add(writer, f"{prefix}.scaling.yarn_beta_slow", float(rope.beta_slow))
    if rope.rope_type == "longrope":
        factors = {"long": rope.long_factor, "short": rope.short_factor}
        for length, values in factors.items():
            writer.add_tensor(f"rope_factors_{length}.weight", torch.tensor(values).numpy())
    if rope.rope_type == "llama3":
        from inferno.nn import Rope

        plain = Rope(head_dim, RopeConfig(rope_theta=rope.rope_theta), max_position_embeddings=1)
        stretched = Rope(head_dim, rope, max_position_embeddings=config["max_position_embeddings"])
        writer.add_tensor("rope_freqs.weight", (plain.inv_freq_E / stretched.inv_freq_E).numpy())


def _add(writer: Any, key: str, value: Any) -> None:
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, list(value))


def _as_stored(names: GgufNames, config: Mapping[str, Any], stored: str, tensor: Tensor) -> Tensor:
    heads = _rotary_heads(names, config, stored)
    if heads:
        tensor = tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    return tensor + names.added.get(_module(stored), 0.0)


def _as_loaded(names: GgufNames, config: Mapping[str, Any], stored: str, tensor: Tensor) -> Tensor:
    tensor = tensor - names.added.get(_module(stored), 0.0)
    heads = _rotary_heads(names, config, stored)
    if heads:
        tensor = tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    return tensor


def _rotary_heads(names: GgufNames, config: Mapping[str, Any], stored: str) -> int:
    key = names.rotary_pairs.get(_module(stored))
    if key is None:
        return 0
    [field] = [name for name, theirs in names.fields.items() if theirs == key]
    return int(config.get(field) or config["num_attention_heads"])


def _module(stored: str) -> str:
    return re.sub(r"(?<=\.)\d+(?=\.)", "{n}", stored.rpartition(".")[0] + ".", count=1).rstrip(".")


def _encode(stored: str, tensor: Tensor, kind: str) -> tuple[tuple[Any, Any], Tensor]:
    """What is written, with its type, and the numbers that it stands for."""
    import gguf

    kept = (
        any(name in stored for name in _NOT_QUANTIZED)
        or not stored.endswith(".weight")
        or stored.endswith("_norm.weight")
    )
    if tensor.ndim < 2 or kept or (kind == "Q8_0" and tensor.shape[-1] % 32):
        return (tensor.numpy(), gguf.GGMLQuantizationType.F32), tensor
    numbered = gguf.GGMLQuantizationType[kind]
    data = gguf.quantize(tensor.contiguous().numpy(), numbered)
    return (data, numbered), torch.from_numpy(gguf.dequantize(data, numbered)).view(tensor.shape)
