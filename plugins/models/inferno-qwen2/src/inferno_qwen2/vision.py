"""Qwen2.5-VL: a Qwen2.5 whose prompts have places for images, and their encoder.

https://arxiv.org/abs/2502.13923; reference: transformers/models/qwen2_5_vl.

Suffixes: P patches of an image, W numbers of a patch, D the encoder's hidden size, H heads, C head
dim, E half of it, M tokens of the image, U patches of a token, O the decoder's hidden size.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import (
    CausalLM,
    DecoderLayer,
    GatedMLP,
    ImageEncoder,
    ImageInputs,
    Layer,
    Linear,
    MRope,
    RMSNorm,
    SeeingDecoder,
    SelfAttention,
    grid_positions,
)
from inferno_qwen2.vision_config import Qwen25VLConfig, VisionConfig

EPS, THETA = 1e-6, 10_000.0
"""Of the encoder."""


class Qwen25VLForConditionalGeneration(CausalLM):
    def __init__(self, config: Qwen25VLConfig) -> None:
        layers = (
            DecoderLayer(
                SelfAttention(
                    layer_id, config.attention_spec(layer_id), config.hidden_size, bias=True
                ),
                GatedMLP(config.hidden_size, config.intermediate_size),
                hidden_size=config.hidden_size,
                eps=config.rms_norm_eps,
            )
            for layer_id in range(config.num_hidden_layers)
        )
        merge, longest = config.vision.spatial_merge_size, config.max_position_embeddings
        images = ImageInputs(config.hidden_size, partial(grid_positions, merge=merge))
        sections = config.mrope_section
        rope = MRope(
            images, sections, config.head_dim, config.rope, max_position_embeddings=longest
        )
        sizes = config.vocab_size, config.hidden_size, config.rms_norm_eps
        vocab_size, hidden_size, eps = sizes
        decoder = SeeingDecoder(
            layers, rope, images, vocab_size=vocab_size, hidden_size=hidden_size, eps=eps
        )
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = VisionTower(config.vision)


class VisionTower(ImageEncoder):
    """Patches, layers of attention inside of windows and some over the whole image, and what merges
    the patches of a token."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(
            VisionBlock(config, whole=layer in config.fullatt_block_indexes)
            for layer in range(config.depth)
        )
        self.merger = PatchMerger(config)

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        config, device = self.config, pixels_PW.device
        unit = config.spatial_merge_size**2
        x_PD = self.patch_embed(pixels_PW)
        order_M, windows = window_order(grid, config)
        order_M = order_M.to(device)
        angles_PE = patch_angles(grid, config).to(device)

        def ordered(rows: Tensor) -> Tensor:
            of_tokens: Tensor = rows.unflatten(0, (-1, unit))
            return of_tokens[order_M].flatten(0, 1)

        x_PD, angles_PE = ordered(x_PD), ordered(angles_PE)
        turn = angles_PE.cos(), angles_PE.sin()
        lengths = [unit * count for count in windows]
        frames = [grid[1] * grid[2]] * grid[0]
        for block in self.blocks:
            x_PD = block(x_PD, turn, frames if block.whole else lengths)
        merged_MO: Tensor = self.merger(x_PD)
        found_MO: Tensor = torch.empty_like(merged_MO).index_copy_(0, order_M, merged_MO)
        return found_MO


class PatchEmbed(nn.Module):
    """A product with the numbers of each patch, which checkpoints store as a convolution."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        side = config.patch_size
        self.proj = nn.Module()
        shape = config.hidden_size, 3, config.temporal_patch_size, side, side
        self.proj.weight = nn.Parameter(torch.empty(shape))

    def forward(self, pixels_PW: Tensor) -> Tensor:
        weight: Tensor = self.proj.weight  # type: ignore[assignment]  # a Parameter
        weight_DW = weight.flatten(1)
        x_PD: Tensor = F.linear(pixels_PW.to(weight_DW.dtype), weight_DW)
        return x_PD


class VisionBlock(nn.Module):
    def __init__(self, config: VisionConfig, *, whole: bool) -> None:
        super().__init__()
        self.whole = whole
        self.norm1 = RMSNorm(config.hidden_size, EPS)
        self.norm2 = RMSNorm(config.hidden_size, EPS)
        self.attn = VisionAttention(config)
        self.mlp = VisionMLP(config)

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        x_PD = x_PD + self.attn(self.norm1(x_PD), turn, lengths)
        y_PD: Tensor = x_PD + self.mlp(self.norm2(x_PD))
        return y_PD


class VisionAttention(nn.Module):
    """Attention among consecutive patches of some `lengths`, in both directions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.proj = Linear(config.hidden_size, config.hidden_size, bias=True)

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        q_PHC, k_PHC, v_PHC = self.qkv(x_PD).unflatten(1, (3, self.num_heads, -1)).unbind(1)
        q_PHC, k_PHC = turned(q_PHC, turn), turned(k_PHC, turn)
        found = [
            # One sequence of its own: no patch of another is masked, and none is computed.
            F.scaled_dot_product_attention(*(each.transpose(0, 1)[None] for each in part))
            for part in zip(*(x.split(lengths) for x in (q_PHC, k_PHC, v_PHC)), strict=True)
        ]
        y_PD: Tensor = self.proj(torch.cat([y[0].transpose(0, 1).flatten(1) for y in found]))
        return y_PD


class VisionMLP(Layer):
    """A gated MLP with biases that no rank divides."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.up = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x_PD: Tensor) -> Tensor:
        y_PD: Tensor = self.down(F.silu(self.gate(x_PD)) * self.up(x_PD))
        return y_PD


class PatchMerger(nn.Module):
    """Two products that make one embedding of the patches of a token."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.width = config.hidden_size * config.spatial_merge_size**2
        self.ln_q = RMSNorm(config.hidden_size, EPS)
        first = Linear(self.width, self.width, bias=True)
        second = Linear(self.width, config.out_hidden_size, bias=True)
        self.mlp = nn.ModuleDict({"0": first, "2": second})

    def forward(self, x_PD: Tensor) -> Tensor:
        inner = F.gelu(self.mlp["0"](self.ln_q(x_PD).reshape(-1, self.width)))
        y_MO: Tensor = self.mlp["2"](inner)
        return y_MO


def turned(x_PHC: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (i, i + E) of every head, in float32."""
    cos_P1E, sin_P1E = (each[:, None] for each in turn)
    a_PHE, b_PHE = x_PHC.float().chunk(2, dim=-1)
    rotated = a_PHE * cos_P1E - b_PHE * sin_P1E, b_PHE * cos_P1E + a_PHE * sin_P1E
    return torch.cat(rotated, dim=-1).to(x_PHC.dtype)


def patch_angles(grid: Grid, config: VisionConfig) -> Tensor:
    """Return the angles of each patch's pairs, (P, E): half of them by its row, half by its column.
    Patches are in the order of their tokens."""
    frames, rows, columns = grid
    merge, dim = config.spatial_merge_size, config.hidden_size // config.num_heads
    places = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    places_2P = np.tile(places.transpose(0, 1, 3, 2, 4).reshape(2, -1), (1, frames))
    frequencies = 1.0 / THETA ** (torch.arange(0, dim // 2, 2).float() / (dim // 2))
    angles = torch.from_numpy(places_2P)[..., None].float() * frequencies
    return torch.cat(tuple(angles), dim=-1)


def window_order(grid: Grid, config: VisionConfig) -> tuple[Tensor, list[int]]:
    """Return the image's tokens window by window, and the number of tokens in each."""
    frames, rows, columns = grid
    merge = config.spatial_merge_size
    side = config.window_size // merge // config.patch_size
    count = frames * rows * columns // merge**2
    index = np.arange(count).reshape(frames, rows // merge, columns // merge)
    windows = [
        index[frame, top : top + side, left : left + side].reshape(-1)
        for frame in range(frames)
        for top in range(0, index.shape[1], side)
        for left in range(0, index.shape[2], side)
    ]
    return torch.from_numpy(np.concatenate(windows)), [len(window) for window in windows]
