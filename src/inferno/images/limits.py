"""What a server accepts of images and audio."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import field, frozen

from inferno.images.decoding import MOST_BYTES
from inferno.images.mediums import AUDIO, Medium


def _names(hosts: Iterable[str]) -> tuple[str, ...]:
    return tuple(hosts)


def _named(allowed: str) -> tuple[str, bool]:
    """Return the name of an allowed host, and whether it may be asked in plain http."""
    plain = allowed.lower().startswith("http://")
    return (allowed[len("http://") :] if plain else allowed), plain


@frozen
class ImageLimits:
    """Where images and audio may come from, and how large and how many they may be."""

    hosts: tuple[str, ...] = field(default=(), converter=_names)
    """Hosts that images are fetched from by https; `*.example.org` is any below it, `*` any at all,
    and `http://HOST` one that is asked in plain http too. None: nothing is fetched."""
    max_bytes: int = MOST_BYTES
    """Of an image as it is sent or fetched."""
    max_images: int = 16
    """Of a request, audio counted too."""
    max_audio_bytes: int = MOST_BYTES
    """Of an audio file as it is sent or fetched."""

    def most_bytes(self, medium: Medium) -> int:
        """Return the limit of a file."""
        return self.max_audio_bytes if medium is AUDIO else self.max_bytes

    def allows(self, host: str, scheme: str = "https") -> bool:
        """Whether images may be fetched from a host, by https or http."""
        host = host.lower().rstrip(".")
        return any(
            (scheme == "https" or plain)
            and (
                name == "*"
                or name.lower() == host
                or (name.startswith("*.") and host.endswith(name[1:].lower()))
            )
            for name, plain in map(_named, self.hosts)
        )


DEFAULT_LIMITS = ImageLimits()
