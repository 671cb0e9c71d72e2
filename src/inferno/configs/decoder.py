"""Config classes with the fields that most decoders share. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import attrs
from attrs import frozen

from inferno.configs.reader import check_known, check_positive, read_config
from inferno.configs.rope import RopeConfig
from inferno.contracts import AttentionSpec, StateSpec
from inferno.errors import CheckpointError

FULL, SLIDING, CONV = "full_attention", "sliding_attention", "conv"
"""Values of `layer_types`."""


@frozen(kw_only=True)
class DecoderConfig:
    """The fields that nearly every decoder reads from its `config.json`, under the same names. A
    family's subclass adds fields, changes defaults, and extends `from_json`."""

    activations: ClassVar[tuple[str | None, ...]] = ("silu", "swish")
    """The values of `hidden_act` that the model computes."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    """Default: as many as query heads."""
    head_dim: int = 0
    """Default: hidden_size / num_attention_heads."""
    max_position_embeddings: int
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    num_labels: int = 0
    """Rows of a sequence classifier's head; 0 without one."""
    rope: RopeConfig = RopeConfig()

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse `config.json`. Raises CheckpointError for settings that this class does not
        compute, and for impossible sizes."""
        read = read_config(cls, config)
        check_known(config, "hidden_act", *cls.activations)
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        )
        given = (
            name for name in ("num_key_value_heads", "head_dim") if config.get(name) is not None
        )
        check_positive(**{name: getattr(read, name) for name in (*sizes, *given)})
        if not read.head_dim and read.hidden_size % read.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {read.hidden_size} is not divisible by "
                f"num_attention_heads {read.num_attention_heads}",
                "Check both, or set head_dim.",
            )
        read = attrs.evolve(
            read,
            num_key_value_heads=read.num_key_value_heads or read.num_attention_heads,
            head_dim=read.head_dim or read.hidden_size // read.num_attention_heads,
            rope=RopeConfig.from_json(config),
        )
        read.rope.check_width(read.head_dim)
        return read

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    def attention_spec(self, layer: int) -> AttentionSpec:
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            scale=self.head_dim**-0.5,
        )

    def cache_specs(self) -> Sequence[AttentionSpec | StateSpec]:
        return [self.attention_spec(layer) for layer in range(self.num_hidden_layers)]


@frozen(kw_only=True)
class MTPConfig(DecoderConfig):
    """A decoder with multi-token-prediction layers, stored after its last layer
    (`contracts.MTPModelConfig`)."""

    num_nextn_predict_layers: int = 0
    """The number of these layers. The checkpoint may lack them."""

    @property
    def _mtp_layers(self) -> range:
        first = self.num_hidden_layers
        return range(first, first + self.num_nextn_predict_layers)

    @property
    def mtp_tensors(self) -> tuple[str, ...]:
        return tuple(f"model.layers.{layer}.*" for layer in self._mtp_layers)

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # Copies of the model's own.
        copies = [
            f"model.layers.{layer}.{name}.*"
            for layer in self._mtp_layers
            for name in ("embed_tokens", "shared_head.head")
        ]
        return (*copies, *super().unused_tensors)

    def mtp_specs(self) -> Sequence[AttentionSpec]:
        return [self.attention_spec(layer) for layer in self._mtp_layers]


def with_dense_layers(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields with `first_k_dense_replace`, if `mlp_layer_types` says which layers have
    no experts: the first ones. Raises CheckpointError."""
    types, layers = config.get("mlp_layer_types"), config.get("num_hidden_layers")
    if types is None:
        return config
    listed = types if isinstance(types, list) else []
    dense = listed.count("dense")
    if listed != ["dense"] * dense + ["sparse"] * (len(listed) - dense) or len(types) != layers:
        raise CheckpointError(
            f"config.json: mlp_layer_types is {str(types)[:200]}",
            f"It must have {layers}: first those that are dense, then those that are sparse.",
        )
    return {**config, "first_k_dense_replace": dense}


def typed_layers(windows: Sequence[bool] | bool | None, layers: int) -> list[str]:
    """Return `layer_types` from which layers have a window: one by one, or once for all. None: all
    but every fourth, as readers of files that do not say it assume."""
    if windows is None:
        windows = [(layer + 1) % 4 > 0 for layer in range(layers)]
    each = [windows] * layers if isinstance(windows, bool) else windows
    return [SLIDING if window else FULL for window in each]


def windows_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `windows`, which of the `layer_types` have one, as files list them; nothing for a
    model without windows: for a `Dialect.inverse`."""
    types = config.get("layer_types")
    if not types or config.get("sliding_window") is None:
        return {}
    return {"windows": [kind == SLIDING for kind in types]}


def numbered_layers(config: Mapping[str, Any], layers: int) -> tuple[str, ...]:
    """Return `layer_types` of `config.json`, or from `full_attn_idxs`, the numbers of the layers
    with attention: the others are `CONV`. Without both, all have attention. Raises
    CheckpointError."""
    if config.get("layer_types"):
        return tuple(config["layer_types"])
    full = config.get("full_attn_idxs")
    if full is None:
        return (FULL,) * layers
    if not isinstance(full, list) or not all(type(n) is int and 0 <= n < layers for n in full):
        raise CheckpointError(
            f"config.json: full_attn_idxs is {str(full)[:100]}",
            f"It must list layers, from 0 to {layers - 1}.",
        )
    return tuple(FULL if layer in full else CONV for layer in range(layers))


@frozen(kw_only=True)
class WindowedConfig(DecoderConfig):
    """A decoder with a sliding window in some or all of its layers."""

    sliding_window: int | None = None
    """In tokens, the current one included."""
    layer_types: tuple[str, ...] = ()
    """Each layer's type, `FULL` or `SLIDING`. If `config.json` has none, `slides` decides."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        read = super().from_json(config)
        if read.sliding_window is not None:
            check_positive(sliding_window=read.sliding_window)
        types = read.layer_types or tuple(
            SLIDING if read.slides(n) else FULL for n in range(read.num_hidden_layers)
        )
        if len(types) != read.num_hidden_layers or not set(types) <= {FULL, SLIDING}:
            raise CheckpointError(
                f"config.json: layer_types has {len(types)} entries, "
                f"{', '.join(sorted(set(types)))}",
                f"It must have {read.num_hidden_layers}, each {FULL} or {SLIDING}.",
            )
        return attrs.evolve(read, layer_types=types)

    def slides(self, layer: int) -> bool:
        """Whether this layer has the window, if `config.json` has no `layer_types`."""
        return True

    def attention_spec(self, layer: int) -> AttentionSpec:
        window = self.sliding_window if self.layer_types[layer] == SLIDING else None
        return attrs.evolve(super().attention_spec(layer), sliding_window=window)


@frozen(kw_only=True)
class SwitchedWindowConfig(WindowedConfig):
    """A decoder whose window applies only with `use_sliding_window`, to the layers from
    `max_window_layers` on."""

    max_window_layers: int = 28

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        window = config.get("sliding_window") if config.get("use_sliding_window") else None
        return super().from_json({**config, "sliding_window": window})

    def slides(self, layer: int) -> bool:
        return self.sliding_window is not None and layer >= self.max_window_layers
