"""Mistral Small 3.1 and Ministral 3: Mistrals whose prompts have places for images, and Pixtral's
encoder.

https://arxiv.org/abs/2410.07073; reference: transformers/models/mistral3 and pixtral.

Suffixes: P patches of an image, in the order of their tokens, W numbers of a patch, D the encoder's
hidden size, H heads, C head dim, E half of it, M tokens of the image, O the decoder's hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import (
    CausalLM,
    ImageEncoder,
    ImageInputs,
    Layer,
    Linear,
    RMSNorm,
    SeeingDecoder,
    patch_places,
    turned,
)
from inferno_mistral.config import Ministral3Config
from inferno_mistral.model import layers, scaled_rope
from inferno_mistral.vision_config import SeeingMinistral3Config, SeeingMistralConfig, VisionConfig

EPS = 1e-5
"""Of the encoder."""


class Mistral3ForConditionalGeneration(CausalLM):
    def __init__(self, config: SeeingMistralConfig | SeeingMinistral3Config) -> None:
        inputs = ImageInputs(config.hidden_size)
        rope = scaled_rope(config) if isinstance(config, Ministral3Config) else None
        decoder = SeeingDecoder.of(config, layers(config), rope=rope, inputs=inputs)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.encoder = PixtralEncoder(config.vision, config.hidden_size, config.rms_norm_eps)


class PixtralEncoder(ImageEncoder):
    """Layers of attention over the whole image, and what makes a token of some patches."""

    def __init__(self, config: VisionConfig, out: int, eps: float) -> None:
        super().__init__()
        self.vision_tower = VisionTower(config)
        self.multi_modal_projector = Projector(config, out, eps)

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        embeddings_MO: Tensor = self.multi_modal_projector(self.vision_tower(pixels_PW, grid))
        return embeddings_MO


class VisionTower(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        shape = config.hidden_size, 3, config.patch_size, config.patch_size
        self.patch_conv = nn.Module()
        self.patch_conv.weight = nn.Parameter(torch.empty(shape))
        self.ln_pre = RMSNorm(config.hidden_size, EPS)
        self.transformer = nn.Module()
        self.transformer.layers = nn.ModuleList(
            VisionLayer(config) for _ in range(config.num_hidden_layers)
        )

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        weight: Tensor = self.patch_conv.weight  # type: ignore[assignment]  # a Parameter
        x_PD = self.ln_pre(F.linear(pixels_PW.to(weight.dtype), weight.flatten(1)))
        angles_PE = patch_angles(grid, self.config).to(x_PD.device)
        turn = angles_PE.cos(), angles_PE.sin()
        layers: nn.ModuleList = self.transformer.layers  # type: ignore[assignment]
        for layer in layers:
            x_PD = layer(x_PD, turn)
        y_PD: Tensor = x_PD
        return y_PD


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, EPS)
        self.attention = VisionAttention(config)
        self.ffn_norm = RMSNorm(config.hidden_size, EPS)
        self.feed_forward = VisionMLP(config)

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        x_PD = x_PD + self.attention(self.attention_norm(x_PD), turn)
        y_PD: Tensor = x_PD + self.feed_forward(self.ffn_norm(x_PD))
        return y_PD


class VisionAttention(Layer):
    """Attention among all patches, in both directions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.num_heads, size = config.num_attention_heads, config.hidden_size
        self.q, self.k, self.v = Linear(size, size), Linear(size, size), Linear(size, size)
        self.out = Linear(size, size)

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        q_PHC, k_PHC, v_PHC = (
            product(x_PD).unflatten(1, (self.num_heads, -1)) for product in (self.q, self.k, self.v)
        )
        q_PHC, k_PHC = turned(q_PHC, turn), turned(k_PHC, turn)
        q, k, v = (each.transpose(0, 1)[None] for each in (q_PHC, k_PHC, v_PHC))
        y_HPC = F.scaled_dot_product_attention(q, k, v)[0]
        y_PD: Tensor = self.out(y_HPC.transpose(0, 1).flatten(1))
        return y_PD


class VisionMLP(Layer):
    """A gated MLP that no rank divides."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.activation = F.silu if config.hidden_act == "silu" else F.gelu
        self.gate = Linear(config.hidden_size, config.intermediate_size)
        self.up = Linear(config.hidden_size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_PD: Tensor) -> Tensor:
        y_PD: Tensor = self.down(self.activation(self.gate(x_PD)) * self.up(x_PD))
        return y_PD


class Projector(Layer):
    """Makes one embedding of the patches of a token."""

    def __init__(self, config: VisionConfig, out: int, eps: float) -> None:
        super().__init__()
        self.unit, size = config.unit, config.hidden_size
        bias = config.multimodal_projector_bias
        self.norm = RMSNorm(size, eps)
        self.patch_merger = nn.ModuleDict({"merging_layer": Linear(size * self.unit, size)})
        self.linear_1, self.linear_2 = Linear(size, out, bias=bias), Linear(out, out, bias=bias)

    def forward(self, x_PD: Tensor) -> Tensor:
        # Of every number those of the patches together.
        together = self.norm(x_PD).unflatten(0, (-1, self.unit)).transpose(1, 2).flatten(1)
        merged_MD = self.patch_merger["merging_layer"](together)
        y_MO: Tensor = self.linear_2(F.gelu(self.linear_1(merged_MD)))
        return y_MO


def patch_angles(grid: Grid, config: VisionConfig) -> Tensor:
    """Return the angles of each patch's pairs, (P, E): half of them by its row, half by its column,
    which take turns with the frequencies."""
    dim = config.hidden_size // config.num_attention_heads
    places_2P = torch.from_numpy(patch_places(grid, config.spatial_merge_size))
    frequencies_E = 1.0 / config.rope_theta ** (torch.arange(0, dim, 2).float() / dim)
    by_row = places_2P[0, :, None].float() * frequencies_E[0::2]
    by_column = places_2P[1, :, None].float() * frequencies_E[1::2]
    return torch.cat((by_row, by_column), dim=-1)
