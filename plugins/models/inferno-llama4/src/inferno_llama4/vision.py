"""Llama 4 with images: an encoder that sees each tile of an image for itself, and what makes tokens
of its patches.

Reference: transformers/models/llama4. Suffixes: P patches of all tiles, tile by tile and row by
row, W numbers of a patch, N tiles, L patches of a tile and one position more, R all of these, D the
encoder's hidden size, H heads, C head dim, E half of it, M tokens of the image, O the decoder's
hidden size.
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
    LayerNorm,
    Linear,
    SeeingDecoder,
    VisionMLP,
)
from inferno.ops import reference as ops
from inferno_llama4.model import layers, rope
from inferno_llama4.vision_config import SeeingLlama4Config, VisionConfig

EPS = 1e-5
"""Of the encoder's norms."""

Turn = tuple[Tensor, Tensor]
"""The cosines and sines of all positions, (R, E)."""


class Llama4ForConditionalGeneration(CausalLM):
    def __init__(self, config: SeeingLlama4Config) -> None:
        inputs = ImageInputs(config.hidden_size)
        decoder = SeeingDecoder.of(config, layers(config), rope=rope(config), inputs=inputs)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.encoder = TileEncoder(config.vision, config.hidden_size)


class TileEncoder(ImageEncoder):
    """Layers of attention over each tile, and what makes embeddings of them."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.config = config
        self.vision_model = VisionModel(config)
        self.multi_modal_projector = nn.ModuleDict(
            {"linear_1": Linear(config.vision_output_dim, out)}
        )

    def patches(self, grid: Grid) -> int:
        return self.config.num_tiles(grid) * self.config.side**2

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), tile by tile."""
        embeddings_MO: Tensor = self.multi_modal_projector["linear_1"](self.vision_model(pixels_PW))
        return embeddings_MO


class VisionModel(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.patch_embedding = nn.ModuleDict({"linear": Linear(3 * config.patch_size**2, width)})
        self.class_embedding = nn.Parameter(torch.empty(width))
        self.positional_embedding_vlm = nn.Parameter(torch.empty(config.side**2 + 1, width))
        self.layernorm_pre, self.layernorm_post = LayerNorm(width, EPS), LayerNorm(width, EPS)
        self.model = nn.Module()
        self.model.layers = nn.ModuleList(
            VisionLayer(config) for _ in range(config.num_hidden_layers)
        )
        self.vision_adapter = Adapter(config)

    def forward(self, pixels_PW: Tensor) -> Tensor:
        dtype = self.class_embedding.dtype
        x_PD = self.patch_embedding["linear"](pixels_PW.to(dtype))
        x_NLD = x_PD.unflatten(0, (-1, self.config.side**2))
        tiles = len(x_NLD)
        last_N1D = self.class_embedding.expand(tiles, 1, -1)
        x_NLD = torch.cat([x_NLD, last_N1D], dim=1) + self.positional_embedding_vlm
        x_RD = self.layernorm_pre(x_NLD.flatten(0, 1))
        angles_RE = place_angles(self.config).to(x_RD.device).repeat(tiles, 1)
        turn = angles_RE.cos(), angles_RE.sin()
        blocks: nn.ModuleList = self.model.layers  # type: ignore[assignment]
        for layer in blocks:
            x_RD = layer(x_RD, turn)
        x_NLD = self.layernorm_post(x_RD).unflatten(0, (tiles, -1))
        y_MD: Tensor = self.vision_adapter(x_NLD[:, :-1])
        return y_MD


class VisionLayer(nn.Module):
    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.input_layernorm = LayerNorm(config.hidden_size, EPS)
        self.self_attn = VisionAttention(config)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, EPS)
        self.mlp = VisionMLP(config.hidden_size, config.intermediate_size, approximate="none")

    def forward(self, x_RD: Tensor, turn: Turn) -> Tensor:
        x_RD = x_RD + self.self_attn(self.input_layernorm(x_RD), turn)
        y_RD: Tensor = x_RD + self.mlp(self.post_attention_layernorm(x_RD))
        return y_RD


class VisionAttention(Layer):
    """Attention among all patches of a tile, in both directions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.num_heads, size = config.num_attention_heads, config.hidden_size
        self.length = config.side**2 + 1
        self.q, self.k, self.v, self.out = (Linear(size, size, bias=True) for _ in range(4))

    def forward(self, x_RD: Tensor, turn: Turn) -> Tensor:
        q_RHC, k_RHC, v_RHC = (
            product(x_RD).unflatten(1, (self.num_heads, -1)) for product in (self.q, self.k, self.v)
        )
        # Pairs are of adjacent elements.
        q_RHC, k_RHC = (ops.norm_rope(x, None, 0.0, *turn, True) for x in (q_RHC, k_RHC))
        q, k, v = (x.unflatten(0, (-1, self.length)).transpose(1, 2) for x in (q_RHC, k_RHC, v_RHC))
        y_NHLC = F.scaled_dot_product_attention(q, k, v)
        y_RD: Tensor = self.out(y_NHLC.transpose(1, 2).flatten(2).flatten(0, 1))
        return y_RD


class Adapter(nn.Module):
    """Puts the numbers of a token's patches together, and two products."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.side, self.merge = config.side, config.merge
        inner, width = config.projector_input_dim, config.projector_output_dim
        self.mlp = nn.ModuleDict(
            {"fc1": Linear(config.intermediate_size, inner), "fc2": Linear(width, width)}
        )

    def forward(self, x_NPD: Tensor) -> Tensor:
        tiles, side, merge = len(x_NPD), self.side, self.merge
        x = x_NPD.reshape(tiles, side, side // merge, -1).transpose(1, 2)  # columns, then rows
        x = x.reshape(tiles, side // merge, side // merge, -1).transpose(1, 2)
        y_MD: Tensor = F.gelu(self.mlp["fc2"](F.gelu(self.mlp["fc1"](x.flatten(0, 2)))))
        return y_MD


def place_angles(config: VisionConfig) -> Tensor:
    """Return the angles of each position's pairs, (L, E): half of them by its column, counted from
    1, half by its row. The last position, the class embedding's, is not rotated."""
    half = config.hidden_size // config.num_attention_heads // 2
    frequencies = 1.0 / config.rope_theta ** (torch.arange(0, half, 2).float() / half)
    places_P = torch.arange(config.side**2)
    by_column, by_row = (
        (place_P + 1)[:, None] * frequencies
        for place_P in (places_P % config.side, places_P // config.side)
    )
    return F.pad(torch.cat((by_column, by_row), dim=-1), (0, 0, 0, 1))
