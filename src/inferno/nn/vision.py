"""Encoders of images that are grids of patches, some of which make a token together.

https://arxiv.org/abs/2502.13923, https://arxiv.org/abs/2511.21631; reference: transformers/models/
qwen2_5_vl, qwen3_vl.

Suffixes: P patches of an image, W numbers of a patch, D the encoder's hidden size, H heads, C head
dim, E half of it, M tokens of the image, O the decoder's hidden size, F features of a token: O, and
O of each layer that has some for the decoder, 4 corners.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import DeepVisionConfig, SeesGridsDeeply, VisionConfig
from inferno.contracts import Grid
from inferno.nn.decoder import CausalLM, DecoderLayer
from inferno.nn.layer import Layer
from inferno.nn.linear import Linear
from inferno.nn.media import ImageEncoder, SeeingDecoder, deepstack
from inferno.nn.norm import LayerNorm

EPS, THETA = 1e-6, 10_000.0
"""Of the encoder."""


class PatchEmbed(nn.Module):
    """A product with the numbers of each patch, which checkpoints store as a convolution."""

    def __init__(self, config: VisionConfig, *, bias: bool = False) -> None:
        super().__init__()
        side = config.patch_size
        self.proj = nn.Module()
        shape = config.hidden_size, 3, config.temporal_patch_size, side, side
        self.proj.weight = nn.Parameter(torch.empty(shape))
        self.proj.register_parameter(
            "bias", nn.Parameter(torch.empty(config.hidden_size)) if bias else None
        )

    def forward(self, pixels_PW: Tensor) -> Tensor:
        weight: Tensor = self.proj.weight  # type: ignore[assignment]  # a Parameter
        bias: Tensor | None = self.proj.bias  # type: ignore[assignment]
        weight_DW = weight.flatten(1)
        x_PD: Tensor = F.linear(pixels_PW.to(weight_DW.dtype), weight_DW, bias)
        return x_PD


class VisionAttention(nn.Module):
    """Attention among consecutive patches of some `lengths`, in both directions."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = Linear(config.hidden_size, 3 * config.hidden_size, bias=True)
        self.proj = Linear(config.hidden_size, config.hidden_size, bias=True)

    def heads(self, x_PD: Tensor) -> Sequence[Tensor]:
        """Return queries, keys and values, each (P, H, C)."""
        qkv_P3HC: Tensor = self.qkv(x_PD).unflatten(1, (3, self.num_heads, -1))
        return qkv_P3HC.unbind(1)

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        q_PHC, k_PHC, v_PHC = self.heads(x_PD)
        q_PHC, k_PHC = turned(q_PHC, turn), turned(k_PHC, turn)
        outputs = [
            # Each part is a separate sequence: no mask is needed, and no score is wasted.
            F.scaled_dot_product_attention(*(each.transpose(0, 1)[None] for each in part))
            for part in zip(*(x.split(lengths) for x in (q_PHC, k_PHC, v_PHC)), strict=True)
        ]
        y_PD: Tensor = self.proj(torch.cat([y[0].transpose(0, 1).flatten(1) for y in outputs]))
        return y_PD


class DeepEncoder(ImageEncoder):
    """Patches with position embeddings, layers of attention over the whole image, what merges the
    patches of a token, and what merges the features of some layers for the decoder."""

    def __init__(self, config: DeepVisionConfig) -> None:
        super().__init__()
        self.config = config
        self.patch_embed = PatchEmbed(config, bias=True)
        self.pos_embed = nn.Module()
        shape = config.num_position_embeddings, config.hidden_size
        self.pos_embed.weight = nn.Parameter(torch.empty(shape))
        self.blocks = nn.ModuleList(DeepBlock(config) for _ in range(config.depth))
        self.merger = DeepMerger(config)
        self.deepstack_merger_list = nn.ModuleList(
            DeepMerger(config, whole=True) for _ in config.deepstack_visual_indexes
        )

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the features of the image's tokens, (M, F), row by row."""
        config, device = self.config, pixels_PW.device
        table_ND: Tensor = self.pos_embed.weight  # type: ignore[assignment]  # a Parameter
        at_P4, shares_P4 = (each.to(device) for each in corners(grid, config))
        x_PD = self.patch_embed(pixels_PW)
        places_PD = (table_ND[at_P4] * shares_P4[..., None]).sum(1)
        x_PD = x_PD + places_PD.to(x_PD.dtype)
        angles_PE = patch_angles(grid, config).to(device)
        turn = angles_PE.cos(), angles_PE.sin()
        frames = [grid[1] * grid[2]] * grid[0]
        deep = dict(zip(config.deepstack_visual_indexes, self.deepstack_merger_list, strict=True))
        features = list[Tensor]()
        for layer, block in enumerate(self.blocks):
            x_PD = block(x_PD, turn, frames)
            if layer in deep:
                features.append(deep[layer](x_PD))
        return torch.cat([self.merger(x_PD), *features], dim=1)


class DeepstackLM(CausalLM):
    """A causal model with a `DeepEncoder` whose features are added after its first layers, and
    positions in three dimensions. `layer` makes the layer of a number, of a kind of
    `DecoderLayer`."""

    def __init__(
        self,
        config: SeesGridsDeeply,
        layer: Callable[[Any, int, Callable[..., DecoderLayer]], nn.Module],
    ) -> None:
        inputs, kinds = deepstack(config)
        layers = (layer(config, layer_id, kind) for layer_id, kind in enumerate(kinds))
        decoder = SeeingDecoder.seeing(config, layers, inputs, woven=True)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.visual = DeepEncoder(config.vision)


class DeepBlock(nn.Module):
    def __init__(self, config: DeepVisionConfig) -> None:
        super().__init__()
        self.norm1 = LayerNorm(config.hidden_size, EPS)
        self.norm2 = LayerNorm(config.hidden_size, EPS)
        self.attn = VisionAttention(config)
        self.mlp = VisionMLP(
            config.hidden_size,
            config.intermediate_size,
            approximate="tanh",
            names=("linear_fc1", "linear_fc2"),
        )

    def forward(self, x_PD: Tensor, turn: tuple[Tensor, Tensor], lengths: list[int]) -> Tensor:
        x_PD = x_PD + self.attn(self.norm1(x_PD), turn, lengths)
        y_PD: Tensor = x_PD + self.mlp(self.norm2(x_PD))
        return y_PD


class VisionMLP(Layer):
    """Two products with biases and GELU between them, that no rank divides."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        approximate: Literal["none", "tanh"],
        names: tuple[str, str] = ("fc1", "fc2"),
    ) -> None:
        """`approximate` is GELU's; `names` are the products' in checkpoints."""
        super().__init__()
        self.approximate, self.names = approximate, names
        self.add_module(names[0], Linear(hidden_size, intermediate_size, bias=True))
        self.add_module(names[1], Linear(intermediate_size, hidden_size, bias=True))

    def forward(self, x_PD: Tensor) -> Tensor:
        up, down = (self.get_submodule(name) for name in self.names)
        y_PD: Tensor = down(F.gelu(up(x_PD), approximate=self.approximate))
        return y_PD


class DeepMerger(nn.Module):
    """Two products that make one embedding of the patches of a token, which are normalized each, or
    together as a `whole`."""

    def __init__(self, config: DeepVisionConfig, *, whole: bool = False) -> None:
        super().__init__()
        self.width, self.whole = config.hidden_size * config.unit, whole
        self.norm = LayerNorm(self.width if whole else config.hidden_size, EPS)
        self.linear_fc1 = Linear(self.width, self.width, bias=True)
        self.linear_fc2 = Linear(self.width, config.out_hidden_size, bias=True)

    def forward(self, x_PD: Tensor) -> Tensor:
        x = self.norm(x_PD.reshape(-1, self.width) if self.whole else x_PD)
        y_MO: Tensor = self.linear_fc2(F.gelu(self.linear_fc1(x.reshape(-1, self.width))))
        return y_MO


def turned(x_PHC: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate pairs (i, i + E) of every head, in float32."""
    cos_P1E, sin_P1E = (each[:, None] for each in turn)
    a_PHE, b_PHE = x_PHC.float().chunk(2, dim=-1)
    rotated = a_PHE * cos_P1E - b_PHE * sin_P1E, b_PHE * cos_P1E + a_PHE * sin_P1E
    return torch.cat(rotated, dim=-1).to(x_PHC.dtype)


def patch_places(grid: Grid, merge: int) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """Return each patch's row and column, (2, P). Patches are in the order of their tokens."""
    frames, rows, columns = grid
    places = np.indices((rows, columns)).reshape(2, rows // merge, merge, columns // merge, merge)
    return np.tile(places.transpose(0, 1, 3, 2, 4).reshape(2, -1), (1, frames))


def patch_angles(grid: Grid, config: VisionConfig) -> Tensor:
    """Return the angles of each patch's pairs, (P, E): half of them by its row, half by its
    column."""
    dim = config.hidden_size // config.num_heads
    places_2P = torch.from_numpy(patch_places(grid, config.spatial_merge_size))
    frequencies = 1.0 / THETA ** (torch.arange(0, dim // 2, 2).float() / (dim // 2))
    return torch.cat(tuple(places_2P[..., None].float() * frequencies), dim=-1)


def corners(grid: Grid, config: DeepVisionConfig) -> tuple[Tensor, Tensor]:
    """Return the four position embeddings that a patch lies between if the image covers their whole
    square, (P, 4), and the share of each, (P, 4)."""
    side, ends = config.side, (grid[1], grid[2])
    lows, highs, shares = [], [], []
    for place_P, end in zip(patch_places(grid, config.spatial_merge_size), ends, strict=True):
        at_P = torch.from_numpy(place_P).float() * (side - 1) / max(end - 1, 1)
        low_P = at_P.long()
        lows.append(low_P)
        highs.append((low_P + 1).clamp(max=side - 1))
        shares.append(at_P - low_P)
    (top, left), (bottom, right), (down, over) = lows, highs, shares
    index = [top * side + left, top * side + right, bottom * side + left, bottom * side + right]
    parts = [(1 - down) * (1 - over), (1 - down) * over, down * (1 - over), down * over]
    return torch.stack(index, dim=1), torch.stack(parts, dim=1)
