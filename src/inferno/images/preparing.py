"""Makes what encoders read of decoded images and audio. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from attrs import asdict, field, frozen

from inferno.contracts import AudioProcessor, ImageProcessor, Pixels
from inferno.errors import UnsupportedError
from inferno.images.decoding import decoded, refused
from inferno.images.mediums import AUDIO, IMAGE, Medium
from inferno.images.pixels import Prepared, write
from inferno.images.sound import Samples
from inferno.images.sound import decoded as decoded_audio
from inferno.plan import AudioUse, ImageUse, Opened

if TYPE_CHECKING:
    from PIL.Image import Image


class Prepares(Protocol):
    """What prepares one medium for a model: `Preparer`, `AudioPreparer`."""

    @property
    def medium(self) -> Medium: ...
    def read(self, data: bytes, param: str) -> Any:
        """Decode a file. Raises RequestError."""
        ...

    def digest(self, decoded: Any) -> bytes:
        """Return the identity of what was decoded, as this model reads it."""
        ...

    def prepare(self, decoded: Any, folder: Path, param: str) -> Prepared:
        """Write what the encoder reads to a file of its digest's name, if it is not there. Raises
        RequestError for what the model cannot read."""
        ...


@frozen(eq=False)
class Preparer:
    """A model's processor of images, and what its results depend on besides the image."""

    medium: ClassVar[Medium] = IMAGE

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
            raise _unread(plan.model_id, IMAGE)
        fields, most = opened.text().image_processor, plan.images.most_tokens
        process = architecture.images(opened.config, fields, most)
        return cls(opened.config, most, process, _identity(opened, plan.images, fields))

    def read(self, data: bytes, param: str) -> Image:
        return decoded(data, param)

    def digest(self, image: Image) -> bytes:
        """Return the identity of an image in RGB as this model sees it."""
        hasher = blake2b(self.identity, digest_size=16)
        hasher.update(repr(image.size).encode())
        hasher.update(image.tobytes())
        return hasher.digest()

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
        return _written(pixels, digest, count, folder, IMAGE)


@frozen(eq=False)
class AudioPreparer:
    """A model's processor of audio, and what its results depend on besides the samples."""

    medium: ClassVar[Medium] = AUDIO

    config: Any
    """A `contracts.AudioModelConfig`."""
    rate: int
    """Samples a second that the model hears."""
    most_seconds: float
    process: AudioProcessor
    identity: bytes = field(repr=False)

    @classmethod
    def of(cls, opened: Opened) -> AudioPreparer:
        """Return what prepares audio for an opened model. Raises UnsupportedError."""
        plan, architecture = opened.plan, opened.parts.architecture
        if plan.audio is None or architecture.audio is None:
            raise _unread(plan.model_id, AUDIO)
        use, fields = plan.audio, opened.text().audio_processor
        process = architecture.audio(opened.config, fields)
        identity = _identity(opened, use, fields)
        return cls(opened.config, use.rate, use.most_seconds, process, identity)

    def read(self, data: bytes, param: str) -> Samples:
        return decoded_audio(data, self.rate, self.most_seconds, param)

    def digest(self, samples_N: Samples) -> bytes:
        """Return the identity of samples as this model hears them."""
        hasher = blake2b(self.identity, digest_size=16)
        hasher.update(samples_N.tobytes())
        return hasher.digest()

    def prepare(self, samples_N: Samples, folder: Path, param: str = "audio") -> Prepared:
        """Write the frames of a spectrogram to a file of their digest's name, if it is not there.
        Raises RequestError for audio that the model cannot hear."""
        digest = self.digest(samples_N)
        try:
            frames = self.process(samples_N)
            count = self.config.audio_tokens(frames.grid)
            if count < 1:
                raise ValueError("it takes no token")
        except ValueError as error:
            cause = f"{param} has {len(samples_N)} samples, which the model cannot hear"
            raise refused(cause, param, f"Send more: {str(error)[:150]}.", AUDIO) from error
        return _written(frames, digest, count, folder, AUDIO)


def preparers(opened: Opened) -> dict[str, Prepares]:
    """Return what prepares each medium that an opened model reads, by its name."""
    by_medium: dict[str, Prepares] = {}
    if opened.plan.images is not None:
        by_medium[IMAGE.name] = Preparer.of(opened)
    if opened.plan.audio is not None:
        by_medium[AUDIO.name] = AudioPreparer.of(opened)
    return by_medium


def _identity(opened: Opened, use: ImageUse | AudioUse, fields: Mapping[str, Any]) -> bytes:
    """Return what results depend on: the plugin's version, and all settings."""
    versions = [
        (each.name, each.distribution, each.version)
        for each in opened.plan.chosen
        if each.kind == "architecture"
    ]
    text = json.dumps([versions, asdict(use), dict(fields)], sort_keys=True, default=str)
    return blake2b(text.encode(), digest_size=16).digest()


def _written(pixels: Pixels, digest: bytes, count: int, folder: Path, medium: Medium) -> Prepared:
    values = pixels.values
    if not (path := folder / digest.hex()).exists():
        write(path, values.astype("float32", copy=False).tobytes())
    return Prepared(digest, pixels.grid, count, values.size * 4, medium.name)


def _unread(model: str, medium: Medium) -> UnsupportedError:
    return UnsupportedError(lacks(model, medium), medium.remedy.capitalize())


def lacks(model: str, medium: Medium, *, only_text: bool = False) -> str:
    """Return why a model takes no image, or no audio."""
    if only_text:
        return f"{model} reads text only: it has no {medium.name} encoder"
    return f"{model} {medium.lack}: no {medium.name} encoder is loaded"
