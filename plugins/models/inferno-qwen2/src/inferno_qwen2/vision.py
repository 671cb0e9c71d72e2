"""Qwen2.5-VL: a Qwen2.5 whose prompts have places for images, and their encoder.

https://arxiv.org/abs/2502.13923; reference: transformers/models/qwen2_5_vl.

Suffixes: P patches of an image, W numbers of a patch, D the encoder's hidden size, E half of a
head, M tokens of the image, O the decoder's hidden size.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import (
    CausalLM,
    ImageEncoder,
    Layer,
    Linear,
    PatchEmbed,
    RMSNorm,
    SeeingDecoder,
    VisionAttention,
    grid_inputs,
    patch_angles,
)
from inferno_qwen2.model import layers
from inferno_qwen2.vision_config import Qwen25VLConfig, WindowedVisionConfig

EPS = 1e-6
"""Of the encoder."""


class Qwen25VLForConditionalGeneration(CausalLM):
    def __init__(self, config: Qwen25VLConfig) -> None:
        decoder = SeeingDecoder.seeing(config, layers(config), grid_inputs(config))
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = VisionTower(config.vision)


class VisionTower(ImageEncoder):
    """Patches, layers of attention inside of windows and some over the whole image, and what merges
    the patches of a token."""

    def __init__(
        self,
        config: WindowedVisionConfig,
        attention: Callable[[WindowedVisionConfig], nn.Module] = VisionAttention,
    ) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config)
        self.blocks = nn.ModuleList(
            VisionBlock(config, attention, whole=layer in config.fullatt_block_indexes)
            for layer in range(config.depth)
        )
        self.merger = PatchMerger(config)

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        config, device = self.config, pixels_PW.device
        unit = config.unit
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


class VisionBlock(nn.Module):
    def __init__(
        self,
        config: WindowedVisionConfig,
        attention: Callable[[WindowedVisionConfig], nn.Module],
        *,
        whole: bool,
    ) -> None:
        super().__init__()
        self.whole = whole
        self.norm1 = RMSNorm(config.hidden_size, EPS)
        self.norm2 = RMSNorm(config.hidden_size, EPS)
        self.attn = attention(config)
        self.mlp = VisionMLP(config)

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        x_PD = x_PD + self.attn(self.norm1(x_PD), turn, lengths)
        y_PD: Tensor = x_PD + self.mlp(self.norm2(x_PD))
        return y_PD


class VisionMLP(Layer):
    """A gated MLP with biases that no rank divides."""

    def __init__(self, config: WindowedVisionConfig) -> None:
        super().__init__()
        self.gate = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.up = Linear(config.hidden_size, config.intermediate_size, bias=True)
        self.down = Linear(config.intermediate_size, config.hidden_size, bias=True)

    def forward(self, x_PD: Tensor) -> Tensor:
        y_PD: Tensor = self.down(F.silu(self.gate(x_PD)) * self.up(x_PD))
        return y_PD


class PatchMerger(nn.Module):
    """Two products that make one embedding of the patches of a token."""

    def __init__(self, config: WindowedVisionConfig) -> None:
        super().__init__()
        self.width = config.hidden_size * config.unit
        self.ln_q = RMSNorm(config.hidden_size, EPS)
        first = Linear(self.width, self.width, bias=True)
        second = Linear(self.width, config.out_hidden_size, bias=True)
        self.mlp = nn.ModuleDict({"0": first, "2": second})

    def forward(self, x_PD: Tensor) -> Tensor:
        inner = F.gelu(self.mlp["0"](self.ln_q(x_PD).reshape(-1, self.width)))
        y_MO: Tensor = self.mlp["2"](inner)
        return y_MO


def window_order(grid: Grid, config: WindowedVisionConfig) -> tuple[Tensor, list[int]]:
    """Return the image's tokens window by window, and the number of tokens in each."""
    frames, rows, columns = grid
    merge = config.spatial_merge_size
    side = config.window_size // merge // config.patch_size
    count = frames * rows * columns // config.unit
    index = np.arange(count).reshape(frames, rows // merge, columns // merge)
    windows = [
        index[frame, top : top + side, left : left + side].reshape(-1)
        for frame in range(frames)
        for top in range(0, index.shape[1], side)
        for left in range(0, index.shape[2], side)
    ]
    return torch.from_numpy(np.concatenate(windows)), [len(window) for window in windows]
