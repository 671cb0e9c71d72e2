"""What a decoder reads of images and audio: embeddings at some positions, and positions in three
dimensions.

The runner writes both before each step (`images.Seeing`): the modules here have where.

Suffixes: T tokens of the step, N tokens of it that are given, P patches, W numbers of a patch, or
those that are given of a token, D hidden, E rotated pairs, 3 the temporal, the vertical and the
horizontal position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from inferno.configs import RopeConfig, SeesGrids, SeesGridsDeeply
from inferno.contracts import Grid
from inferno.nn.batch import Batch
from inferno.nn.decoder import Decoder, DecoderLayer, Norm
from inferno.nn.layer import Layer
from inferno.nn.norm import RMSNorm
from inferno.nn.rope import Rope, Rotation

Positions = np.ndarray[tuple[int, int], np.dtype[np.int64]]


class Span(Protocol):
    """The positions of an image in a prompt: `request.requests.ImagePart`."""

    @property
    def start(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def grid(self) -> Grid: ...


class MediaEncoder(Layer):
    """Computes the embeddings of an image's positions, or of audio. Adapters change none of its
    matrices, and ranks hold it whole."""

    medium: ClassVar[str]

    def patches(self, grid: Grid) -> int:
        """Return P of an image or of audio."""
        raise NotImplementedError


class ImageEncoder(MediaEncoder):
    """Computes the embeddings of an image's positions."""

    medium: ClassVar[str] = "image"

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return (positions, D)."""
        raise NotImplementedError

    def patches(self, grid: Grid) -> int:
        """Return P of an image."""
        return grid[0] * grid[1] * grid[2]


class AudioEncoder(MediaEncoder):
    """Computes the embeddings of the positions of audio."""

    medium: ClassVar[str] = "audio"

    def forward(self, frames_PW: Tensor, grid: Grid) -> Tensor:
        """Return (positions, D) of frames of W mel bins, chunk by chunk."""
        raise NotImplementedError

    def patches(self, grid: Grid) -> int:
        return grid[0] * grid[1]


class ImageInputs(Layer):
    """What a step's tokens are besides their ids."""

    positions_3T: Tensor
    """Of as many tokens as a step may have; empty without a runner, or if the model rotates by
    tokens' indices."""

    def __init__(
        self,
        hidden_size: int,
        positions: Callable[[Iterable[Span], int], Positions] | None = None,
        *,
        features: int = 0,
    ) -> None:
        """`hidden_size` is D; `positions` returns those of a prompt with images, (3, tokens); None:
        their indices. What is given of a position may have `features` of D numbers after its
        embedding, for layers to `add`."""
        super().__init__()
        self.hidden_size, self.positions = hidden_size, positions
        self.width = hidden_size * (1 + features)
        """Numbers that are given of a position."""
        self.positions_3T = torch.empty(3, 0, dtype=torch.int64)
        self.given: tuple[Tensor, Tensor] | None = None
        """(index in T, numbers): those of this step, which is then not replayed."""
        self.spans: Tensor | None = None
        """Of the same tokens, on the host: (3, N), the index in T, the position, and the end of
        the image."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the embeddings of a step with those that are given."""
        if self.given is not None:
            at_N, given_ND = self.given
            x_TD = x_TD.index_copy(0, at_N, given_ND[:, : self.hidden_size].to(x_TD.dtype))
        return x_TD

    def add(self, feature: int, x_TD: Tensor, delta_TD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the residual stream with what a layer adds to it, and a feature of images, which
        is to be added next: sums are rounded as in training."""
        if self.given is None:
            return x_TD, delta_TD
        x_TD, (at_N, given_NW) = x_TD + delta_TD, self.given
        begin = (1 + feature) * self.hidden_size
        given_ND = given_NW[:, begin : begin + self.hidden_size]
        return x_TD, torch.zeros_like(x_TD).index_copy(0, at_N, given_ND.to(x_TD.dtype))


class MRope(Rope):
    """A `Rope` whose pairs turn by three positions: `sections` says how many turn by the temporal,
    the vertical and the horizontal one. Each follows the one before, or, if they are `woven`, pairs
    take turns for as long as the vertical and the horizontal ones last."""

    by_index: ClassVar[bool] = False

    def __init__(
        self,
        inputs: ImageInputs,
        sections: Sequence[int],
        head_dim: int,
        rope: RopeConfig,
        *,
        woven: bool = False,
        **more: Any,
    ) -> None:
        super().__init__(head_dim, rope, **more)
        self._inputs = [inputs]  # in a list: it is the decoder's, not a module of this one
        _, rows, columns = sections
        first, second = sections[0], sections[0] + rows
        self.parts = [(1, slice(first, second)), (2, slice(second, second + columns))]
        """Which pairs do not turn by the temporal position, but by the vertical or the horizontal
        one."""
        if woven:
            self.parts = [(1, slice(1, 3 * rows, 3)), (2, slice(2, 3 * columns, 3))]

    def forward(self, batch: Batch) -> Rotation:
        [inputs] = self._inputs
        if not inputs.positions_3T.shape[1]:
            return super().forward(batch)
        last = max(batch.context_lens) - 1  # no position exceeds its token's index
        cos_NE, sin_NE = self._tables if last < self._filled and self._tables else self._fill(last)
        rows_3T = inputs.positions_3T[:, : len(batch.token_ids_T)]

        def turned(table_NE: Tensor) -> Tensor:
            taken_3TE = [self.ops.gather(table_NE, row_T) for row_T in rows_3T.unbind()]
            found_TE = taken_3TE[0]
            for axis, pairs in self.parts:
                found_TE[:, pairs] = taken_3TE[axis][:, pairs]
            return found_TE

        return Rotation(turned(cos_NE), turned(sin_NE), self.ops, self.interleaved)


class DeepstackLayer(DecoderLayer):
    """A layer after which a `feature` of images is added to their positions (arXiv:2406.04334)."""

    def __init__(self, *args: Any, inputs: ImageInputs, feature: int, **more: Any) -> None:
        super().__init__(*args, **more)
        self._inputs, self.feature = [inputs], feature

    def forward(
        self, x_TD: Tensor, delta_TD: Tensor | None, rotation: Any, batch: Batch
    ) -> tuple[Tensor, Tensor]:
        [inputs] = self._inputs
        return inputs.add(self.feature, *super().forward(x_TD, delta_TD, rotation, batch))


class SeeingDecoder(Decoder):
    """A decoder that is given the embeddings of positions of images, or of audio."""

    def __init__(
        self, layers: Iterable[nn.Module], rope: nn.Module, *, inputs: ImageInputs, **more: Any
    ):
        super().__init__(layers, rope, **more)
        self.images = inputs

    @classmethod
    def seeing(
        cls,
        config: SeesGrids,
        layers: Iterable[nn.Module],
        inputs: ImageInputs,
        *,
        woven: bool = False,
        norm: Norm = RMSNorm,
    ) -> SeeingDecoder:
        """Build a decoder whose tokens of images have rows and columns, with the config's sizes."""
        rope = MRope(
            inputs,
            config.mrope_section,
            config.head_dim,
            config.rope,
            max_position_embeddings=config.max_position_embeddings,
            woven=woven,
        )
        return cls.of(config, layers, rope=rope, norm=norm, inputs=inputs)

    def embed(self, token_ids_T: Tensor) -> Tensor:
        x_TD: Tensor = self.images(super().embed(token_ids_T))
        return x_TD


def grid_inputs(config: SeesGrids, *, features: int = 0) -> ImageInputs:
    """Return what a decoder reads of images whose tokens have rows and columns."""
    positions = partial(grid_positions, merge=config.vision.spatial_merge_size)
    return ImageInputs(config.hidden_size, positions, features=features)


def deepstack(
    config: SeesGridsDeeply,
) -> tuple[ImageInputs, list[Callable[..., DecoderLayer]]]:
    """Return what a decoder reads of images, and the kind of each of its layers: those that a
    feature of the images is added after are `DeepstackLayer`s."""
    features, layers = len(config.vision.deepstack_visual_indexes), config.num_hidden_layers
    inputs = grid_inputs(config, features=features)
    deep = (partial(DeepstackLayer, inputs=inputs, feature=n) for n in range(features))
    return inputs, [*deep, *[DecoderLayer] * (layers - features)]


def grid_positions(spans: Iterable[Span], length: int, merge: int) -> Positions:
    """Return the positions of a prompt's tokens: text goes on in all three at once, the tokens of
    an image have their frame, row and column in it, and what follows begins after the larger of its
    sides. A token of an image is `merge` x `merge` patches."""
    found_3T, at, next_one = np.empty((3, length), np.int64), 0, 0
    for span in spans:
        found_3T[:, at : span.start] = np.arange(next_one, next_one + span.start - at)
        next_one += span.start - at
        frames, rows, columns = span.grid[0], span.grid[1] // merge, span.grid[2] // merge
        inside = np.indices((frames, rows, columns)).reshape(3, -1)
        at = span.start + span.count
        found_3T[:, span.start : at] = inside + next_one
        next_one += max(rows, columns)
    found_3T[:, at:] = np.arange(next_one, next_one + length - at)
    return found_3T
