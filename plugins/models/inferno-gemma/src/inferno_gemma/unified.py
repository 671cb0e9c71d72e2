"""Gemma 4 12B with images and audio, of which its decoder is given projected pixels and samples.

Reference: transformers/models/gemma4_unified.

Suffixes: M tokens of an image, row by row, or of audio, W numbers of one, D the projection's size,
O the decoder's hidden size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.configs import FULL, SLIDING
from inferno.contracts import Grid
from inferno.nn import AudioEncoder, ImageEncoder, LayerNorm, Linear
from inferno_gemma.clipped import Projector
from inferno_gemma.unified_config import HearsSamples, PatchConfig, SampleConfig, UnifiedConfig
from inferno_gemma.vision4 import Gemma4ForConditionalGeneration, places
from inferno_gemma.vision4_config import SeeingGemma4Config

_EPS = 1e-5


class Gemma4UnifiedForConditionalGeneration(Gemma4ForConditionalGeneration):
    # As transformers' model has it when it generates. Of caches of a fixed size, which it prepares
    # masks for beforehand, images span in layers with a window only, as in Gemma 4's other models.
    spanning = (SLIDING, FULL)

    def add_encoders(self, config: SeeingGemma4Config) -> None:
        assert isinstance(config, UnifiedConfig), "it is the family's"
        self.encoder = Patches(config.patches, config.hidden_size)
        if isinstance(config, HearsSamples):
            self.hearing = Samples(config.samples, config.hidden_size)


class Patches(ImageEncoder):
    def __init__(self, config: PatchConfig, out: int) -> None:
        super().__init__()
        self.vision_embedder = PatchEmbedder(config)
        self.embed_vision = Projector(config.mm_embed_dim, config.rms_norm_eps, out)

    def forward(self, pixels_MW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        embeddings_MO: Tensor = self.embed_vision(self.vision_embedder(pixels_MW, grid))
        return embeddings_MO


class PatchEmbedder(nn.Module):
    """A product with the pixels of each token, and what is added for its column and row."""

    def __init__(self, config: PatchConfig) -> None:
        super().__init__()
        width, size = 3 * config.side**2, config.mm_embed_dim
        self.patch_ln1, self.patch_ln2 = LayerNorm(width, _EPS), LayerNorm(size, _EPS)
        self.patch_dense = Linear(width, size, bias=True)
        self.pos_embedding = nn.Parameter(torch.empty(config.mm_posemb_size, 2, size))
        self.pos_norm = LayerNorm(size, _EPS)

    def forward(self, pixels_MW: Tensor, grid: Grid) -> Tensor:
        table = self.pos_embedding
        x_MD = self.patch_dense(self.patch_ln1(pixels_MW.to(table.dtype)))
        columns_M, rows_M = torch.from_numpy(places(grid)).to(table.device)
        x_MD = self.patch_ln2(x_MD) + (table[columns_M, 0] + table[rows_M, 1])
        y_MD: Tensor = self.pos_norm(x_MD)
        return y_MD


class Samples(AudioEncoder):
    """Normalizes each token's samples without a weight, and projects them."""

    def __init__(self, config: SampleConfig, out: int) -> None:
        super().__init__()
        self.eps = config.rms_norm_eps
        self.embed_audio = nn.Module()
        self.embed_audio.embedding_projection = nn.Module()
        weight = nn.Parameter(torch.empty(out, config.audio_embed_dim))
        self.embed_audio.embedding_projection.weight = weight

    def forward(self, frames_MW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the audio's tokens, (M, O)."""
        weight_OW = self.get_parameter("embed_audio.embedding_projection.weight")
        x_MW = frames_MW.to(weight_OW.dtype).float()
        x_MW = F.rms_norm(x_MW, x_MW.shape[1:], eps=self.eps).to(weight_OW.dtype)
        return F.linear(x_MW, weight_OW)
