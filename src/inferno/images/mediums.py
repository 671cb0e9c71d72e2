"""What prompts may have besides text: images and audio, and how errors and messages call them.
Imports nothing that reads them."""

from __future__ import annotations

from attrs import frozen


@frozen
class Medium:
    """Images, or audio."""

    name: str
    """As in `ImagePart.medium`, in media types of files and in parts of messages."""
    noun: str
    """In a sentence."""
    parts: tuple[str, ...]
    """Types of a message's parts of it."""
    files: str
    """What is read."""
    example: str
    """How an address with all of it begins."""
    lack: str
    """What a model does that has no encoder for it."""
    remedy: str
    """What to use instead of such a model."""

    @property
    def code(self) -> str:
        """Of the error of one that cannot be used."""
        return f"invalid_{self.name}"


IMAGE = Medium(
    name="image",
    noun="an image",
    parts=("image", "image_url", "input_image", "image_pil"),
    files="a PNG, JPEG, WebP, GIF or BMP file of one frame",
    example="data:image/png;base64,...",
    lack="sees no images",
    remedy="use a model that sees images.",
)
AUDIO = Medium(
    name="audio",
    noun="audio",
    parts=("audio", "audio_url", "input_audio"),
    files="a WAV, FLAC, Ogg or MP3 file",
    example="data:audio/wav;base64,...",
    lack="hears no audio",
    remedy="use a model that hears audio.",
)
MEDIUMS = {medium.name: medium for medium in (IMAGE, AUDIO)}
