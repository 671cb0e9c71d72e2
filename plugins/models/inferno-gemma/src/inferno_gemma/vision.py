"""Gemma 3 with images: SigLIP's encoder, what makes tokens of its patches, and a decoder in which
the tokens of an image attend to each other.

https://arxiv.org/abs/2503.19786, https://arxiv.org/abs/2303.15343; reference: transformers/models/
gemma3 and siglip.

Suffixes: P patches of an image, row by row, W numbers of a patch, D the encoder's hidden size,
M tokens of the image, O the decoder's hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.contracts import Grid
from inferno.nn import (
    CausalLM,
    ImageEncoder,
    ImageInputs,
    RopeByKind,
    SeeingDecoder,
    SiglipTower,
    SpanAttention,
)
from inferno_gemma.gemma3 import Norm, layers
from inferno_gemma.vision_config import SeeingGemma3Config, VisionConfig


class Gemma3ForConditionalGeneration(CausalLM):
    def __init__(self, config: SeeingGemma3Config) -> None:
        inputs = ImageInputs(config.hidden_size)
        made = list(layers(config))
        for layer_id, layer in enumerate(made):
            spec = config.attention_spec(layer_id)
            layer.self_attn.attention = SpanAttention(layer_id, spec, inputs)
        decoder = SeeingDecoder.of(
            config,
            made,
            rope=RopeByKind.of(config, {FULL: config.rope, SLIDING: config.local_rope}),
            norm=Norm,
            embedding_scale=config.hidden_size**0.5,
            inputs=inputs,
        )
        super().__init__(
            decoder, tied=config.tie_word_embeddings, soft_cap=config.final_logit_softcapping
        )
        self.encoder = SiglipEncoder(config.vision, config.hidden_size)


class SiglipEncoder(ImageEncoder):
    """Layers of attention over the whole image, and what makes a token of some patches."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.vision_tower = SiglipTower(config, Embeddings(config))
        self.multi_modal_projector = Projector(config, out)

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        embeddings_MO: Tensor = self.multi_modal_projector(self.vision_tower(pixels_PW))
        return embeddings_MO


class Embeddings(nn.Module):
    """A product with the numbers of each patch, which checkpoints store as a convolution, and what
    is added for its place."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        size, width = config.patch_size, config.hidden_size
        self.patch_embedding, self.position_embedding = nn.Module(), nn.Module()
        self.patch_embedding.weight = nn.Parameter(torch.empty(width, 3, size, size))
        self.patch_embedding.bias = nn.Parameter(torch.empty(width))
        self.position_embedding.weight = nn.Parameter(torch.empty(config.side**2, width))

    def forward(self, pixels_PW: Tensor) -> Tensor:
        weight: Tensor = self.patch_embedding.weight  # type: ignore[assignment]  # a Parameter
        bias: Tensor = self.patch_embedding.bias  # type: ignore[assignment]
        places_PD: Tensor = self.position_embedding.weight  # type: ignore[assignment]
        return F.linear(pixels_PW.to(weight.dtype), weight.flatten(1), bias) + places_PD


class Projector(nn.Module):
    """The mean of each token's patches, normalized, times a matrix that is stored transposed."""

    def __init__(self, config: VisionConfig, out: int) -> None:
        super().__init__()
        self.side, self.merge = config.side, config.merge
        self.mm_input_projection_weight = nn.Parameter(torch.empty(config.hidden_size, out))
        self.mm_soft_emb_norm = Norm(config.hidden_size, config.layer_norm_eps)

    def forward(self, x_PD: Tensor) -> Tensor:
        x_DRR = x_PD.T.unflatten(1, (self.side, self.side))
        x_MD = F.avg_pool2d(x_DRR, self.merge).flatten(1).T.contiguous()
        y_MO: Tensor = self.mm_soft_emb_norm(x_MD) @ self.mm_input_projection_weight
        return y_MO
