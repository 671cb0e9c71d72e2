"""Pixels of images, and frames of audio, for ranks of other machines: these do not have the files
that requests name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from attrs import define, field

from inferno.core.types import Step
from inferno.process.ranks import messages
from inferno.process.ranks.messages import Pixels
from inferno.request.requests import ImagePart

PIECE = 4 << 20
"""Bytes of a message."""
Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


@define(eq=False)
class Place:
    """Where an image is in a prompt, of all its parts."""

    part: ImagePart
    start: int
    stop: int
    begun: bool = False


@define(eq=False)
class Wanted:
    """The images that steps have begun, and may still compute. It follows from the steps, so that
    rank 0 and the others agree on what these have."""

    _of: dict[int, dict[bytes, Place]] = field(factory=dict)
    """By row, the images that its prompt still needs, by digest."""
    digests: set[bytes] = field(factory=set)

    def update(self, step: Step) -> dict[bytes, ImagePart]:
        """Take note of a step that is launched. Returns the images that were not wanted before: of
        long prompts those that it begins, so that others take no memory yet."""
        if not self._of and not any(new.request.images for new in step.new_sequences):
            return {}
        for new in step.new_sequences:
            self._of.pop(new.row, None)
            left = [each for each in new.request.images if each.stop > new.num_computed]
            places = dict[bytes, Place]()
            for each in left:
                place = places.setdefault(each.digest, Place(each, each.start, each.stop))
                place.stop = each.stop
            if places:
                self._of[new.row] = places
        for piece in step.slices:
            if own := self._of.get(piece.row):
                for digest in [digest for digest, at in own.items() if at.stop <= piece.start]:
                    del own[digest]
                for place in own.values():
                    place.begun |= place.start < piece.start + piece.num_tokens
                if not own:
                    del self._of[piece.row]
        begun = [each.part for own in self._of.values() for each in own.values() if each.begun]
        parts = {part.digest: part for part in begun}
        before, self.digests = self.digests, {*parts}
        return {digest: parts[digest] for digest in self.digests - before}


def pieces_of(image: ImagePart) -> Iterator[Pixels]:
    """Return the messages by which an image's pixels are sent: one without any if its file is gone,
    as it may be once nobody wants the request."""
    sent = 0
    try:
        with Path(image.path).open("rb") as file:
            while data := file.read(PIECE):
                sent += len(data)
                yield Pixels(image.digest, data)
    except OSError:
        pass
    if not sent:
        yield Pixels(image.digest, b"")


@define(eq=False)
class SentPixels:
    """What a rank of another machine was sent, while it is wanted."""

    _data: dict[bytes, bytearray] = field(factory=dict)
    _wanted: Wanted = field(factory=Wanted)

    def take(self, piece: Pixels) -> None:
        self._data.setdefault(piece.digest, bytearray()).extend(piece.data)

    def update(self, step: Step) -> None:
        """Forget what no step from this one on needs."""
        self._wanted.update(step)
        for digest in self._data.keys() - self._wanted.digests:
            del self._data[digest]

    def get(self, digest: bytes) -> Array | None:
        """Return the values of an image. None: its file was gone."""
        data = self._data.get(digest)
        return np.frombuffer(data, np.float32) if data else None


def send_all(images: Mapping[bytes, ImagePart], send: Callable[[bytes, bytes], object]) -> None:
    """Send the pixels of these images."""
    for image in images.values():
        for piece in pieces_of(image):
            send(messages.PIXELS, messages.encode(piece))
