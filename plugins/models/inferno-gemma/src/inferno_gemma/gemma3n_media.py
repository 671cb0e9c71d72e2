"""Gemma 3n with images and audio.

Reference: transformers/models/gemma3n.

Suffixes: P parts of an image, one for each token, row by row, W numbers of a part, N images (one),
C channels, R rows and columns, M tokens of the image, D the encoder's size, O the decoder's hidden
size.
"""

from __future__ import annotations

from functools import partial
from math import isqrt

from torch import Tensor, nn

from inferno.contracts import Grid
from inferno.nn import ImageEncoder, ImageInputs
from inferno_gemma.audio3n import Hearing
from inferno_gemma.config3n_media import MultimodalGemma3nConfig
from inferno_gemma.gemma3n import Gemma3nForCausalLM
from inferno_gemma.mobilenet import MobileNet
from inferno_gemma.mobilenet_config import MobileNetConfig
from inferno_gemma.token_embeddings import MediaEmbedder, SeeingDecoder


class Gemma3nForConditionalGeneration(Gemma3nForCausalLM):
    def __init__(self, config: MultimodalGemma3nConfig) -> None:
        size = config.hidden_size
        decoder = partial(SeeingDecoder.of, images=ImageInputs(size))
        super().__init__(config, decoder=decoder)
        self.encoder = Encoder(config.vision, size)
        self.hearing = Hearing(config.hearing, size, config.vocab_size - 1)
        made = self.get_submodule("model")
        assert isinstance(made, SeeingDecoder)
        made.reads(self.encoder.embed_vision, self.hearing.embed_audio)


class Encoder(ImageEncoder):
    def __init__(self, config: MobileNetConfig, out: int) -> None:
        super().__init__()
        self.side, self.size = config.side, config.hidden_size
        self.vision_tower = nn.Module()
        self.vision_tower.timm_model = MobileNet(config)
        self.embed_vision = MediaEmbedder(config, out)

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return the embeddings of the image's tokens, (M, O), row by row."""
        side, part = self.side, isqrt(pixels_PW.shape[1] // 3)
        parts = pixels_PW.view(side, side, 3, part, part)
        pixels_NCRR = parts.permute(2, 0, 3, 1, 4).reshape(1, 3, side * part, side * part)
        features_NCRR = self.vision_tower.get_submodule("timm_model")(pixels_NCRR)
        features_MD = features_NCRR[0].flatten(1).T * self.size**0.5
        embeddings_MO: Tensor = self.embed_vision(features_MD)
        return embeddings_MO
