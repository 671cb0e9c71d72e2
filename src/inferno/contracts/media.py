"""Images and audio in prompts: what an architecture says that reads them. Imports no torch, and no
Pillow.

A prompt has a place for each image: consecutive positions whose embeddings an encoder computes of
the image's pixels. The encoder is a module of the model (`nn.ImageEncoder`) and is loaded with it.
Audio is the same, of the frames of a spectrogram (`nn.AudioEncoder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from attrs import frozen

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

Grid = tuple[int, int, int]
"""Frames, rows and columns of the patches that an image is cut into. A picture has one frame. Of
audio: the chunks that its encoder hears one by one, the frames that are sent of each, and how many
of all these are audio, not silence that fills a chunk."""


@frozen(eq=False)
class Pixels:
    """What an encoder reads of an image, or of audio."""

    values: np.ndarray[tuple[int, int], np.dtype[np.float32]]
    """(patches, numbers of a patch), in the order that the encoder expects; of audio (frames, mel
    bins), chunk by chunk."""
    grid: Grid


class ImageProcessor(Protocol):
    """Scales and cuts images as in training."""

    def __call__(self, image: Image) -> Pixels:
        """Return what the encoder reads of an image in RGB. Raises ValueError for one that the
        model cannot see: its sides are too unequal."""
        ...


@runtime_checkable
class ImageModelConfig(Protocol):
    """What the config of a model that sees images has besides `ModelConfig`."""

    @property
    def image_token_id(self) -> int:
        """The token that stands for an image in a rendered conversation, and, repeated, at its
        positions."""
        ...

    @property
    def image_encoder(self) -> str:
        """The path of the encoder's module."""
        ...

    @property
    def image_patch(self) -> tuple[int, int]:
        """Pixels of a token's side, and the numbers that are sent to the encoder for a token."""
        ...

    @property
    def image_widths(self) -> int:
        """Numbers that the encoder has at once for each token of an image, in the compute dtype:
        what its memory is planned by."""
        ...

    def image_tokens(self, grid: Grid) -> int:
        """Return how many positions an image takes."""
        ...


@runtime_checkable
class ImageLayoutConfig(Protocol):
    """What it has besides if tokens of the text model are among an image's positions, such as one
    after each row."""

    def image_layout(self, grid: Grid) -> Sequence[int | None]:
        """Return what is in the place of an image: token ids, and None at each of its positions,
        in order."""
        ...


@runtime_checkable
class ImageSpanConfig(Protocol):
    """What it has besides if the positions of an image attend to all of it, to later ones too
    (`nn.SpanAttention`): then a step computes all of an image that is not cached."""

    @property
    def image_span(self) -> tuple[int, int]:
        """The fewest and the most positions that an image can be scaled to."""
        ...


@runtime_checkable
class ImageTextConfig(Protocol):
    """What it has besides if a chat template writes something else for an image than its token."""

    @property
    def image_text(self) -> tuple[str, str]:
        """What a template writes, and the text with the token that is encoded instead."""
        ...


@runtime_checkable
class ImageCountConfig(Protocol):
    """What it has besides if all images take the same number of positions, whatever their size."""

    @property
    def image_count(self) -> int:
        """That number."""
        ...


class AudioProcessor(Protocol):
    """Makes a spectrogram as in training."""

    def __call__(self, samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Pixels:
        """Return what the encoder reads of one channel of `AudioModelConfig.audio_rate` samples a
        second. Raises ValueError for what the model cannot hear: it is too short."""
        ...


@runtime_checkable
class AudioModelConfig(Protocol):
    """What the config of a model that hears audio has besides `ModelConfig`."""

    @property
    def audio_token_id(self) -> int:
        """The token that stands for audio in a rendered conversation, and, repeated, at its
        positions."""
        ...

    @property
    def audio_encoder(self) -> str:
        """The path of the encoder's module."""
        ...

    @property
    def audio_rate(self) -> int:
        """Samples a second."""
        ...

    @property
    def audio_chunk(self) -> tuple[float, int]:
        """Seconds that the encoder hears at once, and the positions that they take."""
        ...

    @property
    def audio_seconds(self) -> float:
        """The longest audio that the model hears; `math.inf`: the context is the limit."""
        ...

    @property
    def audio_widths(self) -> int:
        """Numbers that the encoder has at once for a chunk, in the compute dtype: what its memory
        is planned by."""
        ...

    def audio_tokens(self, grid: Grid) -> int:
        """Return how many positions audio takes; 0 if it is too short."""
        ...


@runtime_checkable
class AudioLayoutConfig(Protocol):
    """What it has besides if tokens of the text model are around audio that a chat template does
    not write."""

    def audio_layout(self, grid: Grid) -> Sequence[int | None]:
        """Return what is in the place of audio: token ids, and None at each of its positions, in
        order."""
        ...


@runtime_checkable
class AudioTextConfig(Protocol):
    """What it has besides if a chat template writes something else for audio than its token."""

    @property
    def audio_text(self) -> tuple[str, str]:
        """What a template writes, and the text with the token that is encoded instead."""
        ...
