"""Zamba2: Mamba-2 layers, and before some of them a block with attention and an MLP that reads the
layer's input beside the embedding. There are one or two such blocks, which take turns; each use
adds low-rank matrices to the first products, and has keys and values apart.

https://arxiv.org/abs/2411.15242; reference: transformers/models/zamba2. Suffixes: T packed tokens,
D hidden, E = 2 D, X heads x head dim, I inner width of the MLP.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from attrs import frozen
from torch import Tensor, nn

from inferno.contracts import Range, Shard
from inferno.nn import (
    Attention,
    CausalLM,
    Decoder,
    Linear,
    Mamba2Mixer,
    MergedLinear,
    NoRope,
    RMSNorm,
)
from inferno.nn.batch import Batch
from inferno_zamba2.config import HYBRID, Zamba2Config

_NORM_EPS = 1e-5
"""Of the states' norm, whatever `rms_norm_eps` is."""


@frozen(eq=False)
class Inputs:
    """What every layer of a step reads beside its hidden states."""

    rotation: Any
    embeddings_TD: Tensor


class LowRank(nn.Sequential):
    """A product of two matrices, stored as `0` and `1`."""

    def __init__(self, inputs: int, rank: int, outputs: int) -> None:
        super().__init__(Linear(inputs, rank), Linear(rank, outputs))


def _adapters(config: Zamba2Config, block: int, inputs: int, outputs: int) -> nn.ModuleList:
    """One for each use of the block; under the other layers' numbers there is nothing."""
    rank, blocks = config.adapter_rank, config.num_mem_blocks
    return nn.ModuleList(
        LowRank(inputs, rank, outputs) if use % blocks == block else nn.Identity()
        for use in range(len(config.hybrid_layers))
    )


class SharedAttention(nn.Module):
    """Queries, keys and values, and the output."""

    def __init__(self, config: Zamba2Config, block: int) -> None:
        super().__init__()
        width = 2 * config.hidden_size
        self.head_dim, self.adapted = config.head_dim, config.use_shared_attention_adapter
        self.qkv = MergedLinear(width, q_proj=width, k_proj=width, v_proj=width)
        self.o_proj = Linear(width, config.hidden_size)
        for name in "qkv" if self.adapted else "":
            self.add_module(f"linear_{name}_adapter_list", _adapters(config, block, width, width))
        self.spec = config.attention_spec(config.hybrid_layers[block])
        self.part: Range = (0, width)
        """Of the width that all heads have together, this rank's."""

    def divide(self, shard: Shard) -> None:
        """Keep some of the heads, of which as many have keys and values."""
        if not shard.attention:
            return
        first, stop = shard.heads(self.spec)[0]
        self.part = first * self.head_dim, stop * self.head_dim
        self.qkv.keep_rows(**dict.fromkeys(self.qkv.names, [self.part]))
        self.o_proj.keep_columns(self.part, shard)

    def forward(
        self, x_TE: Tensor, use: int, attention: Attention, rotate: Any, batch: Batch
    ) -> Tensor:
        q_TX, k_TX, v_TX = self.qkv(x_TE)
        if self.adapted:
            part = slice(*self.part)
            q_TX, k_TX, v_TX = (
                x_TX + getattr(self, f"linear_{name}_adapter_list")[use](x_TE)[:, part]
                for name, x_TX in zip("qkv", (q_TX, k_TX, v_TX), strict=True)
            )
        q_TX, k_TX = (
            rotate(x_TX.unflatten(-1, (-1, self.head_dim)), None).flatten(1)
            for x_TX in (q_TX, k_TX)
        )
        y_TD: Tensor = self.o_proj(attention(q_TX, k_TX, v_TX, batch))
        return y_TD


class SharedMLP(nn.Module):
    """down(gelu(gate(x)) · up(x))"""

    def __init__(self, config: Zamba2Config, block: int) -> None:
        super().__init__()
        size, inner, bias = config.hidden_size, config.intermediate_size, config.mamba_proj_bias
        self.gate_up_proj = Linear(size, 2 * inner, bias=bias)
        self.down_proj = Linear(inner, size, bias=bias)
        self.gate_up_proj_adapter_list = _adapters(config, block, size, 2 * inner)
        self.inner = inner
        self.part: Range = (0, inner)
        """This rank's."""

    def divide(self, shard: Shard) -> None:
        """Keep a part of the inner width."""
        if shard.divides(self.inner):
            first, stop = self.part = shard.share(self.inner)
            self.gate_up_proj.keep_rows((first, stop), (self.inner + first, self.inner + stop))
            self.down_proj.keep_columns(self.part, shard)

    def forward(self, x_TD: Tensor, use: int) -> Tensor:
        added_TI = self.gate_up_proj_adapter_list[use](x_TD).chunk(2, dim=-1)
        gate_TI, up_TI = (
            own_TI + more_TI[:, slice(*self.part)]
            for own_TI, more_TI in zip(
                self.gate_up_proj(x_TD).chunk(2, dim=-1), added_TI, strict=True
            )
        )
        y_TD: Tensor = self.down_proj(F.gelu(gate_TI) * up_TI)
        return y_TD


class SharedBlock(nn.Module):
    """mlp(norm(attention(norm(x beside the embedding)))): nothing is added to what it reads."""

    def __init__(self, config: Zamba2Config, block: int) -> None:
        super().__init__()
        self.self_attn = SharedAttention(config, block)
        self.feed_forward = SharedMLP(config, block)
        self.input_layernorm = RMSNorm(2 * config.hidden_size, config.rms_norm_eps)
        self.pre_ff_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, x_TD: Tensor, use: int, attention: Attention, inputs: Inputs, batch: Batch
    ) -> Tensor:
        x_TE = self.input_layernorm(torch.cat((x_TD, inputs.embeddings_TD), -1))
        y_TD = self.self_attn(x_TE, use, attention, inputs.rotation, batch)
        z_TD: Tensor = self.feed_forward(self.pre_ff_layernorm(y_TD), use)
        return z_TD


class StateLayer(nn.Module):
    """x + mamba(norm(x + what a block adds to the layer's input))"""

    def __init__(self, config: Zamba2Config, spec_id: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mamba = Mamba2Mixer(
            spec_id,
            config.state_spec,
            config.hidden_size,
            eps=_NORM_EPS,
            bias=config.mamba_proj_bias,
            time_step_limit=config.dt_limit,
        )

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, inputs: Inputs, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        x_TD, h_TD = self.input_layernorm.after(x_TD, delta_TD)
        return x_TD, self.mamba(h_TD, inputs.rotation, batch)


class HybridLayer(nn.Module):
    """A block's use number `use`, and a state. The block is stored with the first layer that uses
    it: others are given it."""

    def __init__(
        self, config: Zamba2Config, layer: int, spec_id: int, use: int, block: SharedBlock | None
    ) -> None:
        super().__init__()
        self.use = use
        if block is None:
            self.shared_transformer = block = SharedBlock(config, use % config.num_mem_blocks)
        self.held = (block,)  # in a tuple, so that its parameters are not this layer's too
        self.attention = Attention(spec_id, config.attention_spec(layer))
        self.linear = Linear(config.hidden_size, config.hidden_size)
        self.mamba_decoder = StateLayer(config, spec_id + 1)

    def divide(self, shard: Shard) -> None:
        """Keep the keys and values of some heads. The block, if it is this layer's, keeps its part
        itself."""
        if shard.attention:
            self.attention.spec = shard.local(self.attention.spec)

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, inputs: Inputs, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        [block] = self.held
        x_TD = x_TD if delta_TD is None else x_TD + delta_TD
        added_TD = self.linear(block(x_TD, self.use, self.attention, inputs, batch))
        # The state reads the sum; what follows goes on without what the block has added.
        return x_TD, self.mamba_decoder(x_TD, added_TD, inputs, batch)[1]


def _layers(config: Zamba2Config) -> list[nn.Module]:
    layers: list[nn.Module] = []
    blocks: list[SharedBlock] = []
    use = spec_id = 0
    for layer, kind in enumerate(config.layers_block_type):
        if kind != HYBRID:
            layers.append(StateLayer(config, spec_id))
            spec_id += 1
            continue
        known = use >= config.num_mem_blocks
        block = blocks[use % config.num_mem_blocks] if known else None
        made = HybridLayer(config, layer, spec_id, use, block)
        layers.append(made)
        if not known:
            blocks.append(made.shared_transformer)
        use, spec_id = use + 1, spec_id + 2
    return layers


class Zamba2Decoder(Decoder):
    """Layers are given the embeddings too."""

    def forward(self, batch: Batch) -> Tensor:
        x_TD = embeddings_TD = self.embed(batch.token_ids_T)
        inputs = Inputs(self.rope(batch), embeddings_TD)
        delta_TD: Tensor | None = None
        for layer in self.layers:
            x_TD, delta_TD = layer(x_TD, delta_TD, inputs, batch)
        return self._normalized(x_TD, delta_TD)


class Zamba2ForCausalLM(CausalLM):
    def __init__(self, config: Zamba2Config) -> None:
        decoder = Zamba2Decoder.of(
            config,
            _layers(config),
            rope=None if config.use_mem_rope else NoRope(),
            norm_name="final_layernorm",
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
