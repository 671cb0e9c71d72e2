"""The fields of `config.json` of models with an index (DeepSeek-V3.2, GLM-5), under its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

from attrs import evolve, frozen

from inferno.configs import check_positive
from inferno.contracts import AttentionSpec, IndexSpec
from inferno.errors import CheckpointError
from inferno_deepseek.config import DeepseekV3Config


@frozen(kw_only=True)
class IndexedConfig(DeepseekV3Config):
    """DeepSeek-V3.2: V3, and in each layer an index of the positions to attend to."""

    first_k_dense_replace: int = 3
    index_topk: int = 2048
    index_n_heads: int = 64
    index_head_dim: int = 128
    indexer_rope_interleave: bool = False
    """Whether the index rotates pairs of neighbours, as attention does."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        check_positive(
            q_lora_rank=read.q_lora_rank,
            index_topk=read.index_topk,
            index_n_heads=read.index_n_heads,
            index_head_dim=read.index_head_dim,
        )
        if read.index_head_dim < read.qk_rope_head_dim:
            raise CheckpointError(
                f"config.json: index_head_dim is {read.index_head_dim}",
                f"It must be at least qk_rope_head_dim, {read.qk_rope_head_dim}.",
            )
        return read

    def shares(self, layer: int) -> bool:
        """Whether a layer attends to what the index of an earlier one finds."""
        return False

    def index_spec(self, layer: int) -> IndexSpec:
        return IndexSpec(
            num_heads=self.index_n_heads,
            head_dim=self.index_head_dim,
            top_k=self.index_topk,
            shared=self.shares(layer),
        )

    def attention_spec(self, layer: int) -> AttentionSpec:
        return evolve(super().attention_spec(layer), index=self.index_spec(layer))


@frozen(kw_only=True)
class GlmMoeDsaConfig(IndexedConfig):
    """GLM-5: DeepSeek-V3.2 with one group of experts. Layers may share an index
    (arXiv:2603.12201)."""

    n_group: int = 1
    topk_group: int = 1
    index_n_heads: int = 32
    indexer_rope_interleave: bool = True
    indexer_types: tuple[str, ...] = ()
    """Each layer's: `full`, or `shared` with the last full one before it."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        layers = config.get("num_hidden_layers")
        types = _types(config, layers) if isinstance(layers, int) else ()
        read = super().from_json({**config, "indexer_types": types})
        if len(types) != layers or types[:1] == ("shared",) or not {*types} <= {"full", "shared"}:
            raise CheckpointError(
                f"config.json: indexer_types is {str(list(types))[:200]}",
                f"It must have {layers}, each full or shared, and the first full.",
            )
        return read

    def shares(self, layer: int) -> bool:
        return self.indexer_types[layer : layer + 1] == ("shared",)

    @property
    def stage_starts(self) -> Sequence[int]:
        """The layers that a pipeline stage may begin with: those with an index."""
        return [layer for layer in range(self.num_hidden_layers) if not self.shares(layer)]


def _types(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Return each layer's type: as listed, by a pattern of letters, or one full layer of every
    `index_topk_freq`."""
    given = config.get("indexer_types") or config.get("index_topk_pattern")
    if isinstance(given, str):
        return tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in given)
    if given is not None:
        return tuple(map(str, given)) if isinstance(given, list | tuple) else (str(given),)
    every, offset = config.get("index_topk_freq") or 1, config.get("index_skip_topk_offset", 2)
    for name, value in (("index_topk_freq", every), ("index_skip_topk_offset", offset)):
        if type(value) is not int or value < 0:
            raise CheckpointError(
                f"config.json: {name} is {value!r}", "It must be a number of layers."
            )
    return tuple(
        "full" if max(layer - offset + 1, 0) % every == 0 else "shared" for layer in range(layers)
    )
