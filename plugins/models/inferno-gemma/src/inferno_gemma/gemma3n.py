"""Gemma 3n, text: each token has several states, of which a layer computes one and predicts the
others (AltUp, arXiv:2301.13310); a low-rank path beside attention (LAuReL, arXiv:2411.07501); gates
that are mostly zero in the first layers; an input per layer, and keys and values that the last
layers share.

Reference: transformers/models/gemma3n.

Suffixes: T packed tokens, D hidden, A states of a token, I inner width, P width of a layer's input.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.contracts import LayerSpan
from inferno.nn import CausalLM, Edges, GatedMLP, Linear, RMSNorm, RopeByKind
from inferno.nn.batch import Batch
from inferno_gemma.config3n import Gemma3nConfig
from inferno_gemma.sharing import (
    Given,
    OthersKeys,
    OwnKeys,
    SharingDecoder,
    attentions,
    gelu_mul,
)


class SparseMLP(GatedMLP):
    """A GeGLU whose gates are zero unless they exceed the mean of their token's gates by this many
    standard deviations."""

    def __init__(self, hidden_size: int, inner_size: int, deviations: float) -> None:
        super().__init__(hidden_size, inner_size, activation="gelu_tanh")
        self.inner_size, self.deviations = inner_size, deviations

    def mean(self, x_TI: Tensor) -> Tensor:
        """Return the mean over the inner width, (T, 1), over that of all ranks."""
        sum_T1 = x_TI.float().sum(-1, keepdim=True)
        return (self.ops.all_reduce(sum_T1) if self.down.summed else sum_T1) / self.inner_size

    def forward(self, x_TD: Tensor) -> Tensor:
        gate_TI, up_TI = self.gate_up(x_TD)
        mean_T1 = self.mean(gate_TI)
        deviation_T1 = self.mean((gate_TI - mean_T1).square()).sqrt()
        gate_TI = F.relu(gate_TI - (mean_T1 + self.deviations * deviation_T1).to(gate_TI.dtype))
        y_TD: Tensor = self.down(gelu_mul(gate_TI, up_TI))
        return y_TD


class AltUp(nn.Module):
    """Predicts a token's states before a layer, and corrects them by what the layer has computed of
    the active one."""

    def __init__(self, config: Gemma3nConfig) -> None:
        super().__init__()
        hidden, states = config.hidden_size, config.altup_num_inputs
        self.active = config.altup_active_idx
        self.correct_output_scale = nn.Parameter(torch.empty(hidden))
        self.correction_coefs = Linear(states, states)
        self.prediction_coefs = Linear(states, states**2)
        self.modality_router = Linear(hidden, states)
        self.router_norm = RMSNorm(hidden, config.rms_norm_eps)

    def _modalities(self, x_TD: Tensor) -> Tensor:
        h_TD = self.router_norm(x_TD) / x_TD.shape[-1]
        return torch.tanh(self.modality_router(h_TD).float()).to(x_TD.dtype)

    def predict(self, x_TAD: Tensor) -> Tensor:
        """Return the states, (T, A, D), each with a combination of all added."""
        states = x_TAD.shape[1]
        modalities_TA = self._modalities(x_TAD[:, self.active])
        coefs_TAA = self.prediction_coefs(modalities_TA).float().unflatten(-1, (-1, states))
        # Sums rather than products of matrices, whose order would depend on the step's size.
        added = [(coefs_TAA[:, n, :, None] * x_TAD).sum(1) for n in range(states)]
        return (torch.stack(added, 1) + x_TAD).to(x_TAD.dtype)

    def correct(self, x_TAD: Tensor, computed_TD: Tensor) -> Tensor:
        """Return predicted states with a part of what is new of the active one."""
        new_T1D = (computed_TD - x_TAD[:, self.active]).unsqueeze(1)
        coefs_TA: Tensor = self.correction_coefs(self._modalities(computed_TD)) + 1.0
        return x_TAD + new_T1D * coefs_TA[..., None]


class Laurel(nn.Module):
    def __init__(self, config: Gemma3nConfig) -> None:
        super().__init__()
        self.linear_left = Linear(config.hidden_size, config.laurel_rank)
        self.linear_right = Linear(config.laurel_rank, config.hidden_size)
        self.post_laurel_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, x_TD: Tensor) -> Tensor:
        y_TD: Tensor = self.post_laurel_norm(self.linear_right(self.linear_left(x_TD)))
        return x_TD + y_TD


class Gemma3nDecoderLayer(nn.Module):
    def __init__(self, config: Gemma3nConfig, layer: int, self_attn: OwnKeys | OthersKeys) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        width, inner = config.hidden_size_per_layer_input, config.inner_sizes[layer]
        self.layer, self.self_attn = layer, self_attn
        self.mlp = (
            SparseMLP(hidden, inner, config.activation_sparsity_scale[layer])
            if config.activation_sparsity_pattern[layer]
            else GatedMLP(hidden, inner, activation="gelu_tanh")
        )
        self.input_layernorm = RMSNorm(hidden, eps)
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.pre_feedforward_layernorm = RMSNorm(hidden, eps)
        self.post_feedforward_layernorm = RMSNorm(hidden, eps)
        self.altup, self.laurel = AltUp(config), Laurel(config)
        self.scales = config.altup_correct_scale
        self.per_layer_input_gate = Linear(hidden, width)
        self.per_layer_projection = Linear(width, hidden)
        self.post_per_layer_input_norm = RMSNorm(hidden, eps)

    def forward(
        self, x_TAD: Tensor, delta_TAD: None, given: Given, batch: Batch
    ) -> tuple[Tensor, None]:
        x_TAD, active = self.altup.predict(x_TAD), self.altup.active
        x_TD = x_TAD[:, active]
        h_TD = self.input_layernorm(x_TD)
        attended_TD = self.post_attention_layernorm(self.self_attn(h_TD, given, batch))
        x_TD = (x_TD + attended_TD + self.laurel(h_TD)) / math.sqrt(2)
        h_TD = self.mlp(self.pre_feedforward_layernorm(x_TD))
        x_TD = x_TD + self.post_feedforward_layernorm(h_TD)
        x_TAD = self.altup.correct(x_TAD, x_TD)
        first_TD = x_TAD[:, active]
        if self.scales:
            first_TD = first_TD * self.altup.correct_output_scale
        assert given.inputs_TLP is not None, "the decoder makes them for every layer"
        h_TP = gelu_mul(self.per_layer_input_gate(first_TD), given.inputs_TLP[:, self.layer])
        h_TD = self.post_per_layer_input_norm(self.per_layer_projection(h_TP))
        return torch.cat([x_TAD[:, :1], x_TAD[:, 1:] + h_TD.unsqueeze(1)], 1), None


class Gemma3nDecoder(SharingDecoder):
    """A decoder that makes more states of each embedding before its layers, and one of all after
    them."""

    def __init__(self, *args: Any, states: int, **more: Any) -> None:
        super().__init__(*args, **more)
        hidden, others = more["hidden_size"], range(states - 1)
        self.altup_projections = nn.ModuleList([Linear(hidden, hidden) for _ in others])
        self.altup_unembed_projections = nn.ModuleList([Linear(hidden, hidden) for _ in others])

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        super().keep_layers(span, edges)
        if not span.begins:
            self.altup_projections = nn.ModuleList()
        if not span.ends:
            self.altup_unembed_projections = nn.ModuleList()

    def spread(self, x_TD: Tensor) -> Tensor:
        size_T1 = _size(x_TD)
        others = (_sized(project(x_TD), size_T1) for project in self.altup_projections)
        return torch.stack([x_TD, *others], 1)

    def gather(self, x_TAD: Tensor) -> Tensor:
        x_TD, *others = x_TAD.unbind(1)
        size_T1 = _size(x_TD)
        projected = (p(x) for p, x in zip(self.altup_unembed_projections, others, strict=True))
        return torch.stack([x_TD, *(_sized(h_TD, size_T1) for h_TD in projected)]).mean(0)


def _size(x_TD: Tensor) -> Tensor:
    return x_TD.square().mean(-1, keepdim=True).sqrt()


def _sized(x_TD: Tensor, size_T1: Tensor) -> Tensor:
    """Return states scaled to a size."""
    return x_TD * size_T1 / x_TD.square().mean(-1, keepdim=True).clamp(min=1e-5).sqrt()


class Gemma3nForCausalLM(CausalLM):
    def __init__(
        self,
        config: Gemma3nConfig,
        *,
        decoder: Callable[..., Gemma3nDecoder] = Gemma3nDecoder.of,
    ) -> None:
        made = decoder(
            config,
            [Gemma3nDecoderLayer(config, n, each) for n, each in enumerate(attentions(config))],
            rope=RopeByKind.of(config, {FULL: config.rope, SLIDING: config.local_rope}),
            embedding_scale=config.hidden_size**0.5,
            width=config.hidden_size_per_layer_input,
            known=config.vocab_size_per_layer_input,
            states=config.altup_num_inputs,
        )
        super().__init__(
            made, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
