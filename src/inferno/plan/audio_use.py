"""How a model hears audio: its encoder, and the room for what that computes."""

from __future__ import annotations

from typing import ClassVar

from attrs import frozen


@frozen(kw_only=True)
class AudioUse:
    """The encoder of audio."""

    whole: ClassVar[bool] = False
    """A step may compute a part of what is not cached."""

    encoder: str
    """The path of its module."""
    num_parameters: int
    nbytes: int
    """Of its weights, which every rank holds."""
    rate: int
    """Samples a second."""
    most_seconds: float
    """The longest audio."""
    chunk: tuple[float, int]
    """Seconds that the encoder hears at once, and their positions."""
    most_tokens: int
    """Positions of the longest audio. Also the most whose audio a step begins to compute, if there
    are several."""
    cache_bytes: int
    """Of embeddings that are kept for audio that comes again."""
    distribution: str
    """Whose module prepares audio."""
