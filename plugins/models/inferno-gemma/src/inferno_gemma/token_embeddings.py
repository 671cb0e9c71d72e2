"""What Gemma 3n's images and audio share: tokens behind those of text, whose embeddings are
projected as those of images and audio are.

Suffixes: T tokens of a step, M positions of an image or of audio, D the encoder's size, O the
decoder's hidden size.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from inferno.nn import Finalize, ImageInputs, Layer, Linear, RMSNorm
from inferno.ops import reference as ops
from inferno_gemma.gemma3n import Gemma3nDecoder


class HasTokens(Protocol):
    """The config of an encoder."""

    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def vocab_offset(self) -> int: ...
    @property
    def rms_norm_eps(self) -> float: ...


class MediaEmbedder(Layer):
    """Projects what an encoder returns, and its tokens' embeddings, into the decoder's size."""

    def __init__(self, config: HasTokens, out: int) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.first, self.count = config.vocab_offset, config.vocab_size
        self.out, self.eps, self.ops = out, eps, ops.TORCH
        self.embedding = nn.Module()
        self.embedding.weight = nn.Parameter(torch.empty(config.vocab_size, size))
        self.hard_embedding_norm, self.soft_embedding_norm = RMSNorm(size, eps), RMSNorm(size, eps)
        self.embedding_projection = Linear(size, out)

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_MD: Tensor) -> Tensor:
        """Return the embeddings of an encoder's results, (M, O)."""
        return self._projected(self.soft_embedding_norm(x_MD.contiguous()))

    def of_tokens(self, token_ids_T: Tensor) -> Tensor:
        """Return the embeddings of its tokens, (T, O)."""
        weight: Tensor = self.embedding.weight  # type: ignore[assignment]  # a Parameter
        return self._projected(self.hard_embedding_norm(weight[token_ids_T - self.first]))

    def _projected(self, x_MD: Tensor) -> Tensor:
        x_MO = self.embedding_projection(x_MD)
        y_MO: Tensor = self.ops.rms_norm(x_MO, x_MO.new_ones(self.out), self.eps)
        return y_MO


class SeeingDecoder(Gemma3nDecoder):
    """A decoder with tokens of images and audio, which is given the embeddings of their
    positions."""

    def __init__(self, *args: Any, images: ImageInputs, **more: Any) -> None:
        super().__init__(*args, **more)
        self.images, self._embedders = images, list[MediaEmbedder]()

    def reads(self, *embedders: MediaEmbedder) -> None:
        """Embed tokens by these, which belong to the encoders."""
        self._embedders = [*embedders]

    def embed(self, token_ids_T: Tensor) -> Tensor:
        x_TD = super().embed(token_ids_T)
        for each in self._embedders:
            # Computed of all, and kept of some: a step's shapes are to depend on nothing else.
            last = each.first + each.count - 1
            is_its_T = (token_ids_T >= each.first) & (token_ids_T <= last)
            own_T = token_ids_T.where(is_its_T, torch.full_like(token_ids_T, last))
            x_TD = torch.where(is_its_T[:, None], each.of_tokens(own_T).to(x_TD.dtype), x_TD)
        y_TD: Tensor = self.images(x_TD)
        return y_TD
