"""The fields of `config.json` that ModernBERT reads, under its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from attrs import evolve, field, frozen
from attrs.validators import gt

from inferno.configs import FULL, SLIDING, RopeConfig, check_known, read_config
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError
from inferno_bert.encoder_config import ACTIVATIONS, EncoderConfig


@frozen(kw_only=True)
class ModernBertConfig(EncoderConfig):
    """Fields that published configs omit have transformers' defaults."""

    max_position_embeddings: int = 8192
    norm_eps: float = 1e-5
    norm_bias: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    hidden_activation: str = "gelu"
    local_attention: int = field(default=128, validator=gt(0))
    """Tokens that a layer with a window attends to: half of them before the current one, as many
    after it."""
    global_attn_every_n_layers: int = field(default=3, validator=gt(0))
    layer_types: tuple[str, ...] = ()
    """Each layer's type. If `config.json` has none, one layer of `global_attn_every_n_layers` has
    no window, the first among them."""
    global_rope_theta: float = field(default=160_000.0, validator=gt(0))
    local_rope_theta: float = field(default=10_000.0, validator=gt(0))
    rope: RopeConfig = RopeConfig()
    """Of layers without a window."""
    local_rope: RopeConfig = RopeConfig()
    classifier_pooling: str = "cls"
    classifier_bias: bool = False
    classifier_activation: str = "gelu"
    unused_tensors: ClassVar[tuple[str, ...]] = ("head.*", "decoder.*")

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse `config.json`. Raises CheckpointError for settings that are not computed."""
        check_known(config, "hidden_activation", *ACTIVATIONS)
        check_known(config, "classifier_activation", *ACTIVATIONS)
        check_known(config, "classifier_pooling", "cls", "mean")
        read = read_config(cls, config)
        read.check_sizes("max_position_embeddings")
        count, every = read.num_hidden_layers, read.global_attn_every_n_layers
        types = read.layer_types or tuple(SLIDING if i % every else FULL for i in range(count))
        if len(types) != count or not set(types) <= {FULL, SLIDING}:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(set(types)))}",
                f"It must have {count}, each {FULL} or {SLIDING}.",
            )
        thetas = {FULL: read.global_rope_theta, SLIDING: read.local_rope_theta}
        ropes = {
            kind: RopeConfig.from_json(config, theta=theta, layer_type=kind)
            for kind, theta in thetas.items()
        }
        for rope in ropes.values():
            rope.check_width(read.head_dim)
        return evolve(read, layer_types=types, rope=ropes[FULL], local_rope=ropes[SLIDING])

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def attention_spec(self, layer: int) -> AttentionSpec:
        """Return a layer's."""
        slides = self.layer_types[layer] == SLIDING
        window = self.local_attention // 2 + 1 if slides else None
        return self.spec(window)

    def cache_specs(self) -> Sequence[AttentionSpec]:
        return [self.attention_spec(layer) for layer in range(self.num_hidden_layers)]
