"""What DeciLM and Llama-Nemotron read of `config.json`, under its names: Llamas whose layers
differ, as a search has found them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError, UnsupportedError
from inferno_llama.config import LlamaConfig

_MULTIPLE = 256
"""Of which the width of an MLP is one."""
_OFF = ("replace_with_linear", "sparsify", "num_sink_tokens", "window_length")
"""Fields of a layer's parts that no published model sets."""


@frozen
class Block:
    """A layer."""

    kv_heads: int
    """Of its attention; 0: it has none."""
    width: int
    """Of its MLP; 0: it has none."""


@frozen(kw_only=True)
class SearchedConfig(LlamaConfig):
    """`intermediate_size` is the greatest width."""

    blocks: tuple[Block, ...] = ()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        blocks = _blocks(config)
        width = max((block.width for block in blocks), default=0)
        fields = {k: v for k, v in config.items() if k not in ("blocks", "num_key_value_heads")}
        read = super().from_json({**fields, "intermediate_size": width})
        heads = read.num_attention_heads
        if len(blocks) != read.num_hidden_layers:
            raise CheckpointError(
                f"config.json describes {len(blocks)} layers",
                f"It must describe {read.num_hidden_layers}: check block_configs.",
            )
        if any(block.kv_heads and heads % block.kv_heads for block in blocks):
            raise CheckpointError(
                f"config.json: num_attention_heads {heads} is not divisible by the key/value heads "
                "of a layer",
                "Check num_key_value_heads_per_layer or block_configs.",
            )
        return attrs.evolve(read, blocks=tuple(blocks))

    def attention_spec(self, layer: int) -> AttentionSpec:
        spec = super().attention_spec(layer)
        return attrs.evolve(spec, num_kv_heads=self.blocks[layer].kv_heads)

    @property
    def spec_layers(self) -> tuple[int, ...]:
        return tuple(layer for layer, block in enumerate(self.blocks) if block.kv_heads)

    def cache_specs(self) -> Sequence[AttentionSpec | StateSpec]:
        return [self.attention_spec(layer) for layer in self.spec_layers]


def _blocks(config: Mapping[str, Any]) -> list[Block]:
    blocks, heads = config.get("block_configs"), config.get("num_key_value_heads_per_layer")
    if isinstance(blocks, list):
        return [_block(config, block) for block in blocks]
    width = config.get("intermediate_size")
    if not isinstance(heads, list) or any(type(n) is not int or n < 1 for n in (*heads, width)):
        raise CheckpointError(
            "config.json has neither block_configs nor num_key_value_heads_per_layer with numbers",
            "One must say what each layer has.",
        )
    return [Block(count, int(width or 0)) for count in heads]


def _block(config: Mapping[str, Any], block: Any) -> Block:
    attention, mlp = (
        (block.get(part) if isinstance(block, Mapping) else None) or {}
        for part in ("attention", "ffn")
    )
    for name in _OFF:
        if attention.get(name) or mlp.get(name):
            raise UnsupportedError(
                f"a layer with {name} cannot run here", "Published Llama-Nemotron models have none."
            )
    group, factor = attention.get("n_heads_in_group"), mlp.get("ffn_mult")
    heads, size = config.get("num_attention_heads"), config.get("hidden_size")
    kv_heads = rest = width = 0
    try:
        if not attention.get("no_op"):
            kv_heads, rest = divmod(int(heads), int(group))  # type: ignore[arg-type]
        if not mlp.get("no_op"):
            width = -(-int(2 * float(factor) * int(size) / 3) // _MULTIPLE) * _MULTIPLE  # type: ignore[arg-type]
        if kv_heads < 0 or width < 0 or rest:
            raise ValueError("not a part of the heads, or negative")
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise CheckpointError(
            f"config.json: a layer has n_heads_in_group {group!r} and ffn_mult {factor!r}",
            "Unless no_op is true, the first must divide num_attention_heads, and the second be "
            "greater than 0.",
        ) from error
    return Block(kv_heads, width)
