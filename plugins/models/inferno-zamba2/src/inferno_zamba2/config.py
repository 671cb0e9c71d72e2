"""What Zamba2 reads of `config.json`, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs import MambaConfig, check_known, check_positive
from inferno.contracts import DECODER, MAMBA2, AttentionSpec, Divided, StateSpec
from inferno.errors import CheckpointError

HYBRID, LINEAR = "hybrid", "linear_attention"
_KINDS = {"mamba": LINEAR, LINEAR: LINEAR, HYBRID: HYBRID}
"""What published configs call a layer, and what transformers 5 writes."""
_NAMES = {
    "mamba_ngroups": "mamba_n_groups",
    "n_mamba_heads": "mamba_n_heads",
    "mamba_headdim": "mamba_d_head",
    "add_bias_linear": "mamba_proj_bias",
}
"""Its names of Mamba-2's fields, and Bamba's."""


@frozen(kw_only=True)
class Zamba2Config(MambaConfig):
    """Every layer has a state; before some, a block with attention and an MLP, of which there are
    few, adds to the state's input."""

    activations = ("gelu",)
    max_position_embeddings: int = 4096
    intermediate_size: int = 0
    """Of a block's MLP; left out: 4 · hidden_size."""
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    mamba_n_heads: int = 8
    mamba_d_state: int = 64
    layers_block_type: tuple[str, ...] = ()
    """Each layer's, `HYBRID` or `LINEAR`."""
    num_mem_blocks: int = 1
    """Number of blocks, which take turns."""
    adapter_rank: int = 128
    """Width of the low-rank matrices that each use of a block adds to its first products."""
    use_shared_attention_adapter: bool = False
    """Whether queries, keys and values have such matrices; the MLP has them always."""
    use_mem_rope: bool = False
    """Whether heads are rotated."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        fields = {_NAMES.get(name, name): value for name, value in config.items()}
        check_known(fields, "use_long_context", None, False)
        check_known(fields, "use_conv_bias", None, True)
        # Without it transformers does not share the blocks either.
        check_known(fields, "tie_word_embeddings", None, True)
        width = fields.get("hidden_size")
        heads = fields.get("num_attention_heads")
        if type(width) is not int or type(heads) is not int or heads < 1 or 2 * width % heads:
            raise CheckpointError(
                f"config.json: hidden_size is {width!r}, num_attention_heads {heads!r}",
                "Twice the first must be a multiple of the second.",
            )
        check_known(fields, "num_key_value_heads", None, heads)
        # As transformers 5 computes it: steps have a least length, and no greatest.
        fields["time_step_limit"] = (fields.get("time_step_min", 0.001), float("inf"))
        fields["intermediate_size"] = fields.get("intermediate_size") or 4 * width
        fields["head_dim"] = 2 * width // heads
        types = fields.get("layers_block_type") or fields.get("layer_types") or ()
        read = super().from_json({**fields, "layers_block_type": None, "layer_types": None})
        check_positive(num_mem_blocks=read.num_mem_blocks, adapter_rank=read.adapter_rank)
        known = tuple(_KINDS.get(kind, "") for kind in types)
        if len(known) != read.num_hidden_layers or "" in known:
            raise CheckpointError(
                f"config.json: layers_block_type has {len(types)} entries, "
                f"{', '.join(sorted(map(str, set(types))))}",
                f"It must have {read.num_hidden_layers}, each {' or '.join(_KINDS)}.",
            )
        return attrs.evolve(read, layers_block_type=known)

    @property
    def hybrid_layers(self) -> tuple[int, ...]:
        return tuple(n for n, kind in enumerate(self.layers_block_type) if kind == HYBRID)

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        # A block is stored with the first layer that uses it.
        others = self.hybrid_layers[self.num_mem_blocks :]
        copies = (f"model.layers.{layer}.shared_transformer.*" for layer in others)
        return (*copies, *super().unused_tensors)

    @property
    def divides(self) -> Mapping[str, Divided]:
        """Here and not in the architecture, which would mean that pipeline stages run: they would
        need a copy of a block each. Low-rank matrices are whole."""
        return {**DECODER, **MAMBA2}

    def attention_spec(self, layer: int) -> AttentionSpec:
        spec = super().attention_spec(layer)
        return attrs.evolve(spec, scale=(self.head_dim / 2) ** -0.5)

    @property
    def spec_layers(self) -> tuple[int, ...]:
        """Hybrid layers have attention, then a state."""
        return tuple(
            layer
            for layer, kind in enumerate(self.layers_block_type)
            for _ in range(2 if kind == HYBRID else 1)
        )

    def cache_specs(self) -> list[AttentionSpec | StateSpec]:
        specs: list[AttentionSpec | StateSpec] = []
        for layer, kind in enumerate(self.layers_block_type):
            specs += [self.attention_spec(layer)] if kind == HYBRID else []
            specs.append(self.state_spec)
        return specs
