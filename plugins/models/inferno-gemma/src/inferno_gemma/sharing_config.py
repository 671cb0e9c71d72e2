"""What configs of Gemma 3n and 4 share."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen
from attrs.validators import ge, gt

from inferno.configs import SLIDING, RopeConfig, WindowedConfig
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError


@frozen(kw_only=True)
class SharingConfig(WindowedConfig):
    """A decoder whose last layers read the keys and values of layers before them."""

    num_kv_shared_layers: int = field(default=0, validator=ge(0))
    """How many. Each reads those of the last layer of its kind that has its own."""
    attention_bias: bool = False
    hidden_size_per_layer_input: int = field(default=256, validator=ge(0))
    """Width of what each layer is given of a token besides its state; 0: nothing."""
    vocab_size_per_layer_input: int = field(default=262_144, validator=gt(0))
    """Tokens that have an input; others are given that of token 0."""
    local_rope: RopeConfig = RopeConfig()
    """Rotary config of the sliding-window layers. `rope` is for the others."""

    @property
    def spec_layers(self) -> Sequence[int]:
        """Those of the layers that have keys."""
        return range(self.num_own)

    @property
    def stage_starts(self) -> Sequence[int]:
        """The layers that a pipeline stage may begin with: those whose keys others read are in one
        stage with them."""
        read = map(self.source, range(self.num_own, self.num_hidden_layers))
        return range(min(read, default=self.num_hidden_layers - 1) + 1)

    @property
    def first_modules(self) -> tuple[str, ...]:
        """What makes the layers' inputs."""
        names = "embed_tokens_per_layer", "per_layer_model_projection", "per_layer_projection_norm"
        return names if self.hidden_size_per_layer_input else ()

    @property
    def passed_size(self) -> int:
        """A token's states, and the inputs of all layers."""
        inputs = self.num_hidden_layers * self.hidden_size_per_layer_input
        return self.num_states * self.hidden_size + inputs

    @property
    def num_states(self) -> int:
        """How many states a token has."""
        return 1

    @property
    def num_own(self) -> int:
        """The number of layers with keys and values of their own: the first."""
        return self.num_hidden_layers - self.num_kv_shared_layers

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        names = ("k_proj", "v_proj", "k_norm", "v_norm")
        shared = (
            f"model.layers.{layer}.self_attn.{name}.*"
            for layer in range(self.num_own, self.num_hidden_layers)
            for name in names
        )
        return (*super().unused_tensors, *shared)

    @property
    def sliding_window_pattern(self) -> tuple[bool, ...]:
        """Which layers have the window."""
        return tuple(kind == SLIDING for kind in self.layer_types)

    @property
    def rope_local_base_freq(self) -> float:
        return self.local_rope.rope_theta

    def source(self, layer: int) -> int:
        """Return the layer whose keys and values this one reads; its own index, if it has some."""
        layers = range(min(layer, self.num_own - 1), -1, -1)
        return next(n for n in layers if self.layer_types[n] == self.layer_types[layer])

    def has_values(self, layer: int) -> bool:
        """Whether a layer with keys projects values, too."""
        return True

    def cache_specs(self) -> list[AttentionSpec]:
        return [self.attention_spec(layer) for layer in range(self.num_own)]

    def check_sharing(self) -> None:
        """Raise CheckpointError unless every layer has keys and values to read."""
        kinds, own_kinds = set(self.layer_types), set(self.layer_types[: max(self.num_own, 0)])
        if kinds != own_kinds:
            raise CheckpointError(
                f"config.json: num_kv_shared_layers is {self.num_kv_shared_layers} of "
                f"{self.num_hidden_layers}, and no other layer is {' or '.join(kinds - own_kinds)}",
                "Each kind of layer needs one with keys and values of its own.",
            )
