"""LFM2-VL: LFM2 whose prompts have places for images, and SigLIP 2's encoder, which sees pictures
of any shape, one by one.

https://arxiv.org/abs/2502.14786, https://arxiv.org/abs/2511.23404; reference: transformers/models/
lfm2_vl and siglip2.

Suffixes: P patches of an image, row by row, W numbers of a patch, D the encoder's hidden size,
S side of the square of position embeddings, M tokens of the image, O the decoder's hidden size.
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
    SiglipTower,
)
from inferno_lfm2.model import dense_layers
from inferno_lfm2.vision_config import SeeingLfm2Config, Shape, VisionConfig

EPS = 1e-5
"""Of the projector's norm."""


class Lfm2VlForConditionalGeneration(CausalLM):
    def __init__(self, config: SeeingLfm2Config) -> None:
        inputs = ImageInputs(config.hidden_size)
        decoder = SeeingDecoder.of(config, dense_layers(config), inputs=inputs)
        super().__init__(decoder, tied=config.tie_word_embeddings)
        self.encoder = TiledEncoder(config)


class TiledEncoder(ImageEncoder):
    """Sees each tile of an image, and the whole, for itself."""

    def __init__(self, config: SeeingLfm2Config) -> None:
        super().__init__()
        self.config = config
        self.vision_tower = SiglipTower(config.vision, Embeddings(config.vision))
        self.multi_modal_projector = Projector(config.vision, config.hidden_size)

    def patches(self, grid: Grid) -> int:
        return sum(rows * columns for rows, columns in self.config.parts(grid))

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), tile by tile and row by row."""
        shapes = self.config.parts(grid)
        parts = pixels_PW.split([rows * columns for rows, columns in shapes])
        outputs = [
            self.multi_modal_projector(self.vision_tower(part_PW, shape), shape)
            for part_PW, shape in zip(parts, shapes, strict=True)
        ]
        return torch.cat(outputs)


class Embeddings(nn.Module):
    """A product with the numbers of each patch, and what is added for its place: a square of
    embeddings scaled to the picture's shape."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.positions, width = config.positions, config.hidden_size
        self.patch_embedding = Linear(3 * config.patch_size**2, width, bias=True)
        self.position_embedding = nn.Module()
        self.position_embedding.weight = nn.Parameter(torch.empty(config.num_patches, width))

    def forward(self, pixels_PW: Tensor, shape: Shape) -> Tensor:
        table: Tensor = self.position_embedding.weight  # type: ignore[assignment]  # a Parameter
        x_PD: Tensor = self.patch_embedding(pixels_PW.to(table.dtype))
        table_DSS = table.float().T.unflatten(1, (self.positions, self.positions))
        places_DRR = F.interpolate(table_DSS[None], shape, mode="bilinear", antialias=True)[0]
        return x_PD + places_DRR.flatten(1).T.to(x_PD.dtype)


class Projector(Layer):
    """Makes one embedding of the patches of a token."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.merge, together = config.downsample_factor, config.unit * config.hidden_size
        inner, bias = config.projector_hidden_size, config.projector_bias
        self.layer_norm = LayerNorm(together, EPS) if config.projector_use_layernorm else None
        self.linear_1, self.linear_2 = (
            Linear(together, inner, bias=bias),
            Linear(inner, out, bias=bias),
        )

    def forward(self, x_PD: Tensor, shape: Shape) -> Tensor:
        (rows, columns), merge = shape, self.merge
        blocks = x_PD.unflatten(0, (rows // merge, merge, columns // merge, merge))
        together = blocks.transpose(1, 2).flatten(2).flatten(0, 1)  # a token's patches row by row
        if self.layer_norm is not None:
            together = self.layer_norm(together)
        y_MO: Tensor = self.linear_2(F.gelu(self.linear_1(together)))
        return y_MO
