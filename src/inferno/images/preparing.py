"""Makes what an encoder reads of a decoded image. Imports no torch."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import asdict, field, frozen

from inferno.contracts import ImageProcessor
from inferno.errors import UnsupportedError
from inferno.images.decoding import refused
from inferno.images.pixels import Prepared, write
from inferno.plan import Opened

if TYPE_CHECKING:
    from PIL.Image import Image


@frozen(eq=False)
class Preparer:
    """A model's processor, and what its results depend on besides the image."""

    config: Any
    """A `contracts.ImageModelConfig`."""
    most_tokens: int
    process: ImageProcessor
    identity: bytes = field(repr=False)

    @classmethod
    def of(cls, opened: Opened) -> Preparer:
        """Return what prepares images for an opened model. Raises UnsupportedError."""
        plan, architecture = opened.plan, opened.parts.architecture
        if plan.images is None or architecture.images is None:
            raise UnsupportedError(reads_text(plan.model_id), "Use a model that sees images.")
        fields, most = opened.text().image_processor, plan.images.most_tokens
        versions = [
            (each.name, each.distribution, each.version)
            for each in plan.chosen
            if each.kind == "architecture"
        ]
        depends = [versions, asdict(plan.images), dict(fields)]
        said = json.dumps(depends, sort_keys=True, default=str).encode()
        process = architecture.images(opened.config, fields, most)
        return cls(opened.config, most, process, blake2b(said, digest_size=16).digest())

    def digest(self, image: Image) -> bytes:
        """Return the identity of an image in RGB as this model sees it."""
        found = blake2b(self.identity, digest_size=16)
        found.update(repr(image.size).encode())
        found.update(image.tobytes())
        return found.digest()

    def prepare(self, image: Image, folder: Path, param: str = "image") -> Prepared:
        """Write an image's pixels to a file of its digest's name, if it is not there. Raises
        RequestError for one that the model cannot see."""
        digest = self.digest(image)
        try:
            pixels = self.process(image)
        except ValueError as error:
            cause = f"{param} is {image.width} x {image.height} pixels, which the model cannot see"
            raise refused(cause, param, f"Send another: {str(error)[:150]}.") from error
        count = self.config.image_tokens(pixels.grid)
        if not 0 < count <= self.most_tokens:
            raise refused(
                f"{param} would take {count} tokens of {self.most_tokens}",
                param,
                "Its sides are too unequal: cut it, or start with a larger --max-image-tokens.",
            )
        values = pixels.values
        if not (path := folder / digest.hex()).exists():
            write(path, values.astype("float32", copy=False).tobytes())
        return Prepared(digest, pixels.grid, count, values.size * 4)


def reads_text(model: str) -> str:
    """Return why a model takes no image."""
    return f"{model} reads text only: it has no image encoder"
