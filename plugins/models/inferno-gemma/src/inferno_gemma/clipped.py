"""What the encoders of Gemma 4 share.

Suffixes: M tokens of an image or of audio, D the encoder's size, O the decoder's hidden size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from inferno.nn import Finalize, Layer, Linear
from inferno.ops import reference as ops


class Clips(Protocol):
    """A config of an encoder."""

    @property
    def use_clipped_linears(self) -> bool: ...


class Clipped(nn.Module):
    """A product whose inputs and outputs are clipped, if the config says so."""

    def __init__(self, config: Clips, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear, self.clips = Linear(inputs, outputs), config.use_clipped_linears
        if self.clips:
            self.input_min, self.input_max = (
                nn.Parameter(torch.empty(())),
                nn.Parameter(torch.empty(())),
            )
            self.output_min, self.output_max = (
                nn.Parameter(torch.empty(())),
                nn.Parameter(torch.empty(())),
            )

    def forward(self, x: Tensor) -> Tensor:
        if self.clips:
            x = torch.maximum(torch.minimum(x, self.input_max), self.input_min)
        y: Tensor = self.linear(x)
        if self.clips:
            y = torch.maximum(torch.minimum(y, self.output_max), self.output_min)
        return y


class Projector(Layer):
    """Normalizes tokens without a weight, and projects them."""

    def __init__(self, size: int, eps: float, out: int) -> None:
        super().__init__()
        self.size, self.eps, self.ops = size, eps, ops.TORCH
        self.embedding_projection = Linear(self.size, out)

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops

    def forward(self, x_MD: Tensor) -> Tensor:
        normed_MD = self.ops.rms_norm(x_MD.contiguous(), x_MD.new_ones(self.size), self.eps)
        y_MO: Tensor = self.embedding_projection(normed_MD)
        return y_MO
