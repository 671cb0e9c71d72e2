"""A model's config as a GGUF file's metadata: the inverse of `config.make_config`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from inferno.configs import RopeConfig
from inferno.contracts import DenseCheckpoint, Dialect
from inferno.errors import UnsupportedError
from inferno_gguf.config import FREQS, LONG, SHORT

if TYPE_CHECKING:
    from torch import Tensor


def fields_of(source: DenseCheckpoint, dialect: Dialect, *, mtp: bool) -> dict[str, Any]:
    """Return the dialect's fields: as the architecture reads them, else as `config.json` has them.
    `mtp`: the file has multi-token-prediction layers."""
    values: dict[str, Any] = {}
    for name in (*dialect.fields, "num_attention_heads", "hidden_size", "max_position_embeddings"):
        value = getattr(source.model, name, None)
        value = source.config.get(name) if value is None else value
        if value is not None:
            values[name] = list(value) if isinstance(value, tuple) else value
    if not mtp and values.get("num_nextn_predict_layers"):
        values["num_nextn_predict_layers"] = 0
    if dialect.inverse is not None:
        values |= dialect.inverse({**source.config, **values})
    return values


def model_metadata(
    source: DenseCheckpoint, dialect: Dialect, fields: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the architecture's keys. Raises UnsupportedError for rotary embeddings that files
    cannot describe."""
    metadata: dict[str, Any] = {}
    for name, key in dialect.fields.items():
        value = fields.get(name)
        if key is None:
            continue
        spelt = {theirs: ours for ours, theirs in dialect.values.get(name, {}).items()}
        value = spelt.get(value, value) if not isinstance(value, list) else value
        if value is not None:
            metadata[key] = value
    head_dim = _head_dim(fields)
    metadata.setdefault("attention.key_length", head_dim)
    metadata.setdefault("attention.value_length", metadata["attention.key_length"])
    metadata["vocab_size"] = source.model.vocab_size
    rope = _rope(source)
    if rope is not None:
        rotated = int(head_dim * rope.partial_rotary_factor)
        metadata.setdefault("rope.dimension_count", rotated)
        metadata |= _rope_metadata(rope, fields)
    return {f"{dialect.architecture}.{key}": value for key, value in metadata.items()}


def encoder_metadata(source: DenseCheckpoint, dialect: Dialect) -> dict[str, Any]:
    """Return what files say of a model that attends to later tokens, and of its head for labels;
    nothing of others."""
    if not any(getattr(spec, "bidirectional", False) for spec in source.model.cache_specs()):
        return {}
    metadata: dict[str, Any] = {f"{dialect.architecture}.attention.causal": False}
    if types := getattr(source.model, "type_vocab_size", 0):
        metadata["tokenizer.ggml.token_type_count"] = types
    if count := getattr(source.model, "num_labels", 0):
        names = source.config.get("id2label") or {}
        labels = [str(names.get(str(i), f"LABEL_{i}")) for i in range(count)]
        metadata[f"{dialect.architecture}.classifier.output_labels"] = labels
    return metadata


def rope_tensors(source: DenseCheckpoint, fields: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the divisors of the rotary frequencies that files store as tensors."""
    import torch

    rope = _rope(source)
    if rope is None:
        return {}
    if _is_divided(rope):
        return {FREQS: torch.tensor(rope.short_factor)}
    if rope.rope_type == "proportional":  # pairs that do not turn are divided by a huge number
        pairs = int(fields.get("global_head_dim") or _head_dim(fields)) // 2
        turned = torch.arange(pairs) < int(rope.partial_rotary_factor * pairs)
        return {FREQS: torch.where(turned, float(rope.factor), 1e30)}
    if rope.rope_type == "longrope":
        return {LONG: torch.tensor(rope.long_factor), SHORT: torch.tensor(rope.short_factor)}
    if rope.rope_type == "llama3":
        from inferno.nn import Rope

        size, longest = _head_dim(fields), int(fields["max_position_embeddings"])
        plain = Rope(
            size,
            RopeConfig(
                rope_theta=rope.rope_theta, partial_rotary_factor=rope.partial_rotary_factor
            ),
            max_position_embeddings=1,
        )
        stretched = Rope(size, rope, max_position_embeddings=longest)
        return {FREQS: (plain.inv_freq_E / stretched.inv_freq_E).float()}
    return {}


def _rope(source: DenseCheckpoint) -> RopeConfig | None:
    rope = getattr(source.model, "rope", None)
    return rope if isinstance(rope, RopeConfig) else None


def _head_dim(fields: Mapping[str, Any]) -> int:
    return int(fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"])


def _is_divided(rope: RopeConfig) -> bool:
    """Whether the factors are plain divisors: the same for any context, as read from a file."""
    return (
        rope.rope_type == "longrope"
        and rope.short_factor == rope.long_factor
        and rope.attention_factor == 1.0
    )


def _rope_metadata(rope: RopeConfig, fields: Mapping[str, Any]) -> dict[str, Any]:
    metadata: dict[str, Any] = {"rope.freq_base": float(rope.rope_theta)}
    original = rope.original_max_position_embeddings
    plain = ("default", "dynamic", "llama3", "proportional")  # dynamic: up to the longest context
    if rope.rope_type in plain or _is_divided(rope):
        return metadata
    if rope.rope_type not in ("linear", "yarn", "longrope"):
        raise UnsupportedError(
            f"GGUF files have no rotary scaling of type {rope.rope_type!r}",
            "Convert to safetensors or to a scheme of it instead.",
        )
    metadata["rope.scaling.type"] = rope.rope_type
    if original:
        metadata["rope.scaling.original_context_length"] = original
    if rope.rope_type == "longrope":
        metadata["rope.scaling.attn_factor"] = _attention_factor(rope, fields)
        return metadata
    metadata["rope.scaling.factor"] = float(rope.factor)
    if rope.rope_type == "yarn":
        metadata["rope.scaling.yarn_beta_fast"] = float(rope.beta_fast)
        metadata["rope.scaling.yarn_beta_slow"] = float(rope.beta_slow)
        if rope.attention_factor is not None:  # a factor of yarn's own
            usual = 1.0 + 0.1 * math.log(max(rope.factor, 1.0))
            metadata["rope.scaling.attn_factor"] = rope.attention_factor / usual
    return metadata


def _attention_factor(rope: RopeConfig, fields: Mapping[str, Any]) -> float:
    """longrope's factor, by default as its paper has it."""
    if rope.attention_factor is not None:
        return float(rope.attention_factor)
    longest = int(fields["max_position_embeddings"])
    original = rope.original_max_position_embeddings or longest
    scale = rope.factor if rope.factor != 1.0 else longest / original
    return math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0
