"""The fields of `config.json` that NomicBERT and GTE read, under transformers' names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from attrs import evolve, field, frozen
from attrs.validators import ge, gt

from inferno.configs import RopeConfig, check_known, read_config
from inferno_bert.encoder_config import ACTIVATIONS, EncoderConfig


@frozen(kw_only=True)
class GatedConfig(EncoderConfig):
    theta: ClassVar[float]
    """Base of the rotary embedding, if `config.json` has none."""

    max_position_embeddings: int
    type_vocab_size: int
    layer_norm_eps: float = 1e-12
    hidden_act: str
    attention_bias: bool
    """Whether all of attention's matrices have biases."""
    mlp_bias: bool
    """Whether the last matrix of an MLP has one."""
    fused_qkv: bool = False
    """Whether the checkpoint stores queries, keys and values as one matrix."""
    fused_mlp: bool = False
    """The same of `up_proj` and `gate_proj`, in this order."""
    rope: RopeConfig = RopeConfig()
    unused_tensors: ClassVar[tuple[str, ...]] = (
        "pooler.*",
        "lm_head.*",
        "cls.*",
        "*position_ids",
        "*inv_freq",
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse `config.json`. Raises CheckpointError for settings that are not computed."""
        check_known(config, "hidden_act", *ACTIVATIONS)
        check_known(config, "position_embedding_type", "rope", None)
        check_known(config, "layer_norm_type", "layer_norm", None)
        check_known(config, "logn_attention_scale", False, None)
        read = read_config(cls, config)
        read.check_sizes("max_position_embeddings")
        rope = read.read_rope(config)
        rope.check_width(read.spec().head_dim)
        return evolve(read, rope=rope)

    def read_rope(self, config: Mapping[str, Any]) -> RopeConfig:
        return RopeConfig.from_json(config, theta=self.theta)


@frozen(kw_only=True)
class NtkScaling:
    """The rotary embedding that GTE's own code calls `ntk`."""

    rope_theta: float = field(validator=gt(0))
    factor: float = field(validator=ge(1))

    def as_linear(self, head_dim: int) -> RopeConfig:
        """Return the same frequencies under another name: pair i of `head_dim` / 2 turns
        factor^(2 (i + 1) / head_dim) times as slow (https://kexue.fm/archives/9706), which is a
        larger base, and then one divisor for all."""
        base, divisor = self.rope_theta * self.factor, self.factor ** (2 / head_dim)
        return RopeConfig(rope_type="linear", rope_theta=base, factor=divisor)


_NEW = {"max_position_embeddings": 2048, "rope_theta": 10_000.0}
"""What the checkpoints' own code (model type `new`) takes where their config says nothing, and
transformers' class of GTE does not."""


@frozen(kw_only=True)
class GteConfig(GatedConfig):
    theta = 160_000.0

    max_position_embeddings: int = 8192
    type_vocab_size: int = 1
    hidden_act: str = "gelu"
    attention_bias: bool = True
    mlp_bias: bool = True
    unused_tensors = (*GatedConfig.unused_tensors, "classifier.*")
    """gte-multilingual-base also has a weight for each token, of sparse vectors."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse `config.json`, of transformers or of the checkpoints' own code."""
        given = {name: value for name, value in config.items() if value is not None}
        return super().from_json({**_NEW, **given} if given.get("model_type") == "new" else given)

    def read_rope(self, config: Mapping[str, Any]) -> RopeConfig:
        scaling = config.get("rope_parameters") or config.get("rope_scaling")
        fields = scaling if isinstance(scaling, Mapping) else {}
        if "ntk" not in (fields.get("rope_type"), fields.get("type")):
            return super().read_rope(config)
        check_known(fields, "mixed_b", None)
        given = {"rope_theta": config.get("rope_theta", self.theta), **fields}
        return read_config(NtkScaling, given).as_linear(self.spec().head_dim)


_NOMIC = {
    "n_embd": "hidden_size",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_layer": "num_hidden_layers",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}
"""Fields of the checkpoints' own code -> transformers' names."""


@frozen(kw_only=True)
class NomicConfig(GatedConfig):
    theta = 1_000.0

    max_position_embeddings: int = 2048
    type_vocab_size: int = 2
    hidden_act: str = "silu"
    attention_bias: bool = False
    mlp_bias: bool = False

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse `config.json`, of transformers or of the checkpoints' own code."""
        check_known(config, "activation_function", "swiglu", None)
        check_known(config, "prenorm", False, None)
        check_known(config, "use_rms_norm", False, None)
        check_known(config, "rotary_emb_fraction", 1, 1.0, None)
        check_known(config, "rotary_emb_interleaved", False, None)
        check_known(config, "rotary_scaling_factor", None)
        check_known(config, "num_experts", 0, None)
        for name in ("qkv_proj_bias", "mlp_fc1_bias", "mlp_fc2_bias"):
            check_known(config, name, False, None)
        named = {new: config[old] for old, new in _NOMIC.items() if config.get(old) is not None}
        return super().from_json({**config, **named})
