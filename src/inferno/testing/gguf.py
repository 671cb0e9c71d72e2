"""Writes a toy model as a GGUF file with gguf-py, as llama.cpp's converters would.

Names and keys come from the architecture's own dialect (`contracts.Dialect`), inverted;
`check_names` compares that dialect with gguf-py's lists.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from inferno.catalog import Catalog
from inferno.configs import RopeConfig
from inferno.contracts import (
    CheckpointFormat,
    Dialect,
    in_pairs,
    module_pattern,
    place_of,
    rotary_heads,
    tensor_pattern,
)

_NOT_QUANTIZED = ("ffn_gate_inp", "ssm_conv1d", "position_embd", "token_types")
"""Matrices that llama.cpp leaves in float32."""
_NEXTN = ("eh_proj", "embed_tokens", "enorm", "hnorm", "shared_head_head", "shared_head_norm")
_NEWER = frozenset(
    {
        "hidden_activation",
        "classifier.pooling_type",
        "attention.recurrent_layers",
        "attention.indexer.types",
        *(f"blk.{{n}}.nextn.{name}" for name in _NEXTN),
    }
)
"""Names of llama.cpp that gguf-py 0.19 does not have yet."""


def gguf_dialect(
    catalog: Catalog, architecture: str, config: Mapping[str, Any] | None = None
) -> Dialect | None:
    """The architecture's GGUF dialect, over the format's defaults: that of models of this config,
    if there are several. None if it has none, or if no plugin reads GGUF files."""
    variant = catalog.architecture(architecture).item.dialects.get("gguf")
    formats = [o.item for o in catalog.of("inferno_checkpoint_formats") if o.item.name == "gguf"]
    if variant is None or not formats:
        return None
    defaults = catalog.named(CheckpointFormat, "gguf").item.dialect
    variant = variant if config is None else variant.of(config)
    return variant if defaults is None else variant.over(defaults)


def recast(
    dialect: Dialect, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> tuple[Mapping[str, Any], dict[str, Tensor]]:
    """Config and tensors of the model as files of the dialect have it."""
    changes = None if dialect.recast is None else dialect.recast(config)
    if changes is None:
        return config, dict(tensors)
    values: dict[str, Tensor] = {}
    for name, tensor in {**tensors, **{n: tensors[o] for n, o in changes.copies.items()}}.items():
        module, _, part = name.rpartition(".")
        paths = [
            p.replace("{n}", _number(name)) for p in changes.splits.get(module_pattern(name), ())
        ]
        paths = paths or [module]
        for path, rows in zip(paths, tensor.float().chunk(len(paths)), strict=True):
            key = f"{path}.{part}"
            factors = changes.factors.get(tensor_pattern(key), ((0, 1.0),))
            sizes = [size for size, _ in factors[:-1]]
            pieces = rows.split([*sizes, len(rows) - sum(sizes)])
            scaled = [piece * factor for piece, (_, factor) in zip(pieces, factors, strict=True)]
            values[key] = torch.cat(scaled)
    return changes.config, values


def write_gguf(
    path: Path,
    dialect: Dialect,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    kind: str,
    *,
    fused: Collection[str] = (),
    joined: Mapping[str, Sequence[int]] | None = None,
    vocabulary: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Write `tensors`, named as in the checkpoint, with their matrices as `kind`: F32, F16 or Q8_0.

    `config` holds the dialect's fields. `fused` are those of its `rows` to store as one matrix;
    `joined` are those of its `joins` to store as stacks, with the rows of one head in each stack.
    `vocabulary` has the tokens of a byte-level tokenizer without merges.
    Returns the stored values in float32, under the names of `tensors`.
    """
    import gguf

    writer = gguf.GGUFWriter(path, dialect.architecture)
    _write_config(writer, dialect, config)
    if vocabulary:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(list(vocabulary))
        writer.add_token_types([gguf.TokenType.CONTROL] * len(vocabulary))
        writer.add_token_merges([])
    by_name: dict[str, Tensor] = {}

    def add(stored: str, tensor: Tensor) -> Tensor:
        data, numbered, values = _encode(stored, tensor, kind)
        writer.add_tensor(stored, data, raw_dtype=numbered)
        return values

    layout: defaultdict[str, dict[tuple[int, int], str]] = defaultdict(dict)
    for name, tensor in tensors.items():
        if (rows := (joined or {}).get(module_pattern(name))) is not None:
            by_name[name] = _add_joined(add, dialect, name, tensor.float(), rows)
            continue
        place = place_of(dialect, name, fused)
        assert place is not None, f"{name}: the dialect has no name for it in a file"
        layout[place.stored][place.member or 0, place.part] = name
    for stored, names in layout.items():
        place = place_of(dialect, next(iter(names.values())), fused)
        is_stack = place is not None and place.member is not None
        members = [
            torch.cat(
                [
                    _as_stored(dialect, config, stored, name, tensors[name].float())
                    for (m, _), name in sorted(names.items())
                    if m == member
                ]
            )
            for member in sorted({member for member, _ in names})
        ]
        whole = torch.stack(members) if is_stack else members[0]
        is_weight = stored.endswith(".weight")
        axis = dialect.squeezed.get(module_pattern(stored)) if is_weight else None
        field = dialect.matrices.get(tensor_pattern(stored))
        whole = whole if field is None else whole.view(config[field], -1)
        values = add(stored, whole if axis is None else whole.squeeze(axis)).view(whole.shape)
        values = values if field is None else values.flatten()
        rest = {member: values[member] if is_stack else values for member, _ in names}
        for (member, _), name in sorted(names.items()):
            size = len(tensors[name])
            piece, rest[member] = rest[member][:size], rest[member][size:]
            by_name[name] = _as_loaded(dialect, config, stored, name, piece)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return by_name


def _add_joined(
    add: Callable[[str, Tensor], Tensor],
    dialect: Dialect,
    name: str,
    matrix: Tensor,
    rows: Sequence[int],
) -> Tensor:
    """Write a matrix as stacks of heads, with each head's rows divided among the stacks."""
    join, number = dialect.joins[module_pattern(name)], _number(name)
    parts = torch.split(matrix.view(-1, sum(rows), matrix.shape[1]), list(rows), 1)
    pieces = []
    for stack, part in zip(join.stacks, parts, strict=True):
        transposed = stack in join.transposed
        part = part.transpose(1, 2) if transposed else part
        values = add(f"{stack.replace('{n}', number)}.weight", part)
        pieces.append(values.transpose(1, 2) if transposed else values)
    return torch.cat(pieces, 1).flatten(0, 1)


def check_names(dialect: Dialect, like: str = "") -> Iterator[str]:
    """Names in an architecture's dialect (without the format's defaults) that gguf-py, llama.cpp's
    own list, does not know. `like`: an architecture with the same tensors, if it has not ours."""
    import gguf

    known = {name: arch for arch, name in gguf.MODEL_ARCH_NAMES.items()}
    listed = known.get(dialect.architecture, known.get(like))
    if listed is None:
        yield f"architecture {dialect.architecture}"
        return
    tensors = _NEWER | {gguf.TENSOR_NAMES[t].format(bid="{n}") for t in gguf.MODEL_TENSORS[listed]}
    stacks = [stack for join in dialect.joins.values() for stack in join.stacks]
    names = [stored for stored, ours in dialect.modules.items() if ours is not None]
    for module in (
        *names,
        *dialect.rows,
        *stacks,
        *dialect.added,
        *dialect.squeezed,
        *dialect.matrices,
        *dialect.decays,
        *dialect.axes,
    ):
        if module not in tensors and module.rpartition(".")[0] not in tensors:
            yield f"tensor {module}"
    keys = {key.removeprefix("{arch}.") for key in _texts(gguf.Keys)}
    for key in (*dialect.fields.values(), *dialect.rotary_pairs.values()):
        if key is not None and key not in keys | _NEWER:
            yield f"key {key}"


def _texts(group: type) -> Iterator[str]:
    """The texts in a class and in the classes within it."""
    for value in vars(group).values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, type):
            yield from _texts(value)


def _write_config(writer: Any, dialect: Dialect, config: Mapping[str, Any]) -> None:
    for name, key in dialect.fields.items():
        value = config.get(name)
        if value is None or key is None:
            continue
        spelt = {theirs: ours for ours, theirs in dialect.values.get(name, {}).items()}
        add_value(
            writer, f"{dialect.architecture}.{key}", spelt.get(value, value) if spelt else value
        )
    rope, prefix = RopeConfig.from_json(config), f"{dialect.architecture}.rope"
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    add_value(writer, f"{prefix}.freq_base", float(rope.rope_theta))
    if f"{prefix}.dimension_count" not in {
        f"{dialect.architecture}.{key}" for key in dialect.fields.values()
    }:
        add_value(writer, f"{prefix}.dimension_count", int(head_dim * rope.partial_rotary_factor))
    if rope.original_max_position_embeddings:
        add_value(
            writer,
            f"{prefix}.scaling.original_context_length",
            rope.original_max_position_embeddings,
        )
    if rope.rope_type in ("linear", "yarn"):
        add_value(writer, f"{prefix}.scaling.type", rope.rope_type)
        add_value(writer, f"{prefix}.scaling.factor", float(rope.factor))
    if rope.rope_type == "yarn":
        add_value(writer, f"{prefix}.scaling.yarn_beta_fast", float(rope.beta_fast))
        add_value(writer, f"{prefix}.scaling.yarn_beta_slow", float(rope.beta_slow))
    if rope.rope_type == "longrope":
        factors = {"long": rope.long_factor, "short": rope.short_factor}
        for length, values in factors.items():
            writer.add_tensor(f"rope_factors_{length}.weight", torch.tensor(values).numpy())
    if rope.rope_type == "proportional":
        pairs = config["global_head_dim"] // 2
        turned = torch.arange(pairs) < int(rope.partial_rotary_factor * pairs)
        writer.add_tensor("rope_freqs.weight", torch.where(turned, 1.0, 1e30).numpy())
    if rope.rope_type == "llama3":
        from inferno.nn import Rope

        plain = Rope(head_dim, RopeConfig(rope_theta=rope.rope_theta), max_position_embeddings=1)
        stretched = Rope(head_dim, rope, max_position_embeddings=config["max_position_embeddings"])
        writer.add_tensor("rope_freqs.weight", (plain.inv_freq_E / stretched.inv_freq_E).numpy())


def add_value(writer: Any, key: str, value: Any) -> None:
    """Write a value of a file's metadata as its type."""
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


def _as_stored(
    dialect: Dialect, config: Mapping[str, Any], stored: str, name: str, tensor: Tensor
) -> Tensor:
    if heads := rotary_heads(dialect, config, name):
        tensor = in_pairs(tensor, heads)
    if tensor_pattern(stored) in dialect.decays:
        return -tensor.exp()
    return tensor + dialect.added.get(module_pattern(stored), 0.0)


def _as_loaded(
    dialect: Dialect, config: Mapping[str, Any], stored: str, name: str, tensor: Tensor
) -> Tensor:
    if tensor_pattern(stored) in dialect.decays:
        return (-tensor).log()
    tensor = tensor - dialect.added.get(module_pattern(stored), 0.0)
    heads = rotary_heads(dialect, config, name)
    if heads:
        tensor = tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    return tensor


def _number(name: str) -> str:
    match = re.search(r"(?<=\.)\d+(?=\.)", name)
    return "" if match is None else match[0]


def _encode(stored: str, tensor: Tensor, kind: str) -> tuple[Any, Any, Tensor]:
    """The encoded tensor, its type, and the values it represents."""
    import gguf

    plain = (
        any(name in stored for name in _NOT_QUANTIZED)
        or not stored.endswith(".weight")
        or stored.endswith("_norm.weight")
    )
    if tensor.ndim < 2 or plain or (kind == "Q8_0" and tensor.shape[-1] % 32):
        return tensor.contiguous().numpy(), gguf.GGMLQuantizationType.F32, tensor
    numbered = gguf.GGMLQuantizationType[kind]
    data = gguf.quantize(tensor.contiguous().numpy(), numbered)
    return data, numbered, torch.from_numpy(gguf.dequantize(data, numbered)).view(tensor.shape)
