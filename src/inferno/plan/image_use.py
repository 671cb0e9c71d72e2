"""How a model sees images: its encoder, and the room for what that computes."""

from __future__ import annotations

from attrs import frozen


@frozen(kw_only=True)
class ImageUse:
    """The encoder of images."""

    encoder: str
    """The path of its module."""
    num_parameters: int
    nbytes: int
    """Of its weights, which every rank holds."""
    most_tokens: int
    """The most positions of an image: larger ones are scaled down. Also the most whose images a
    step begins to compute, if they are several."""
    side: int
    """Pixels of a token's side."""
    cache_bytes: int
    """Of embeddings that are kept for images that come again."""
    distribution: str
    file: str = ""
    """The path of the file that the encoder is in; empty: the model's own files have it."""
    """Whose module prepares images."""
    whole: bool = False
    """Whether a step computes all of an image that is not cached: its positions attend to each
    other."""

    @property
    def most_pixels(self) -> int:
        """Of an image, as the encoder sees it."""
        return self.most_tokens * self.side**2
