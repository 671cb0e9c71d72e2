"""What a decoder reads of images: embeddings at some positions, and positions in three dimensions.

The runner writes both before each step (`images.Seeing`): the modules here have where.

Suffixes: T tokens of the step, N tokens of it that are given, P patches, W numbers of a patch,
D hidden, E rotated pairs, 3 the temporal, the vertical and the horizontal position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, cycle, pairwise
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from inferno.configs import RopeConfig
from inferno.contracts import Grid
from inferno.nn.batch import Batch
from inferno.nn.decoder import Decoder
from inferno.nn.layer import Layer
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


class ImageEncoder(Layer):
    """Computes the embeddings of an image's positions. Adapters change none of its matrices, and
    ranks hold it whole."""

    def forward(self, pixels_PW: Tensor, grid: Grid) -> Tensor:
        """Return (positions, D)."""
        raise NotImplementedError


class ImageInputs(Layer):
    """What a step's tokens are besides their ids."""

    positions_3T: Tensor
    """Of as many tokens as a step may have; empty without a runner, or if the model rotates by
    tokens' indices."""

    def __init__(
        self,
        width: int,
        positions: Callable[[Iterable[Span], int], Positions] | None = None,
    ) -> None:
        """`width` is D; `positions` returns those of a prompt with images, (3, tokens); None: their
        indices."""
        super().__init__()
        self.width, self.positions = width, positions
        self.positions_3T = torch.empty(3, 0, dtype=torch.int64)
        self.given: tuple[Tensor, Tensor] | None = None
        """(index in T, embeddings): those of this step, which is then not replayed."""

    def forward(self, x_TD: Tensor) -> Tensor:
        """Return the embeddings of a step with those that are given."""
        if self.given is not None:
            at_N, given_ND = self.given
            x_TD = x_TD.index_copy(0, at_N, given_ND.to(x_TD.dtype))
        return x_TD


class MRope(Rope):
    """A `Rope` whose pairs turn by three positions: `sections` says how many turn by the temporal,
    the vertical, the horizontal, again the temporal one, and so on."""

    by_index: ClassVar[bool] = False

    def __init__(
        self,
        inputs: ImageInputs,
        sections: Sequence[int],
        head_dim: int,
        rope: RopeConfig,
        **more: Any,
    ) -> None:
        super().__init__(head_dim, rope, **more)
        self._inputs = [inputs]  # in a list: it is the decoder's, not a module of this one
        edges = pairwise(accumulate(sections, initial=0))
        self.sections = list(zip(cycle(range(3)), edges, strict=False))

    def forward(self, batch: Batch) -> Rotation:
        [inputs] = self._inputs
        if not inputs.positions_3T.shape[1]:
            return super().forward(batch)
        last = max(batch.context_lens) - 1  # no position exceeds its token's index
        cos_NE, sin_NE = self._tables if last < self._filled and self._tables else self._fill(last)
        rows_3T = inputs.positions_3T[:, : len(batch.token_ids_T)]

        def turned(table_NE: Tensor) -> Tensor:
            taken_3TE = [self.ops.gather(table_NE, row_T) for row_T in rows_3T.unbind()]
            return torch.cat([taken_3TE[i][:, a:b] for i, (a, b) in self.sections], dim=-1)

        return Rotation(turned(cos_NE), turned(sin_NE), self.ops, self.interleaved)


class SeeingDecoder(Decoder):
    """A decoder that is given the embeddings of images' positions."""

    def __init__(
        self, layers: Iterable[nn.Module], rope: nn.Module, inputs: ImageInputs, **more: Any
    ):
        super().__init__(layers, rope, **more)
        self.images = inputs

    def embed(self, token_ids_T: Tensor) -> Tensor:
        x_TD: Tensor = self.images(super().embed(token_ids_T))
        return x_TD


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
