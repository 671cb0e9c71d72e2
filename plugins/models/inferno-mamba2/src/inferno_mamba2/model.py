"""Mamba-2: layers that keep a state of fixed size, and no attention.

https://arxiv.org/abs/2405.21060; reference: transformers/models/mamba2. Suffixes: T packed tokens,
D hidden.
"""

from __future__ import annotations

from torch import Tensor, nn

from inferno.contracts import LayerSpan
from inferno.nn import (
    WHOLE,
    CausalLM,
    Edges,
    Embedding,
    Mamba2Mixer,
    RMSNorm,
    keep_layers,
    present,
)
from inferno.nn.batch import Batch
from inferno_mamba2.config import Mamba2Config


class Block(nn.Module):
    """x + mixer(norm(x))"""

    def __init__(self, config: Mamba2Config, layer_id: int) -> None:
        super().__init__()
        self.norm = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.mixer = Mamba2Mixer(
            layer_id,
            config.state_spec,
            config.hidden_size,
            eps=config.layer_norm_epsilon,
            bias=config.use_bias,
            conv_bias=config.use_conv_bias,
            time_step_limit=config.dt_limit,
        )

    def forward(self, x_TD: Tensor, batch: Batch) -> Tensor:
        h_TD = self.norm(x_TD.to(self.norm.weight.dtype))
        y_TD: Tensor = x_TD + self.mixer(h_TD, None, batch)
        return y_TD


class Backbone(nn.Module):
    """Embedding, layers, norm. The residual stream may be float32 whatever the layers compute
    in."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.embeddings = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(
            Block(config, layer_id) for layer_id in range(config.num_hidden_layers)
        )
        self.norm_f = RMSNorm(config.hidden_size, config.layer_norm_epsilon)
        self.fp32_residual = config.residual_in_fp32
        self.edges = WHOLE

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        """Keep a pipeline stage's layers (`nn.Staged`)."""
        self.edges = edges
        keep_layers(self.layers, span)

    def forward(self, batch: Batch) -> Tensor:
        x_TD = self.edges.begin(self._embed, batch.token_ids_T)
        for block in present(self.layers):
            x_TD = block(x_TD, batch)
        return self.edges.end(self._normalized, x_TD, None)

    def _embed(self, token_ids_T: Tensor) -> Tensor:
        x_TD: Tensor = self.embeddings(token_ids_T)
        return x_TD.float() if self.fp32_residual else x_TD

    def _normalized(self, x_TD: Tensor, delta_TD: Tensor | None) -> Tensor:
        y_TD: Tensor = self.norm_f(x_TD.to(self.norm_f.weight.dtype))
        return y_TD


class Mamba2ForCausalLM(CausalLM):
    def __init__(self, config: Mamba2Config) -> None:
        tied, names = config.tie_word_embeddings, ("backbone", "embeddings")
        super().__init__(Backbone(config), tied=tied, names=names)
