"""Pixels for ranks of other machines: sent once, while steps may need them."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inferno.core.types import NewSequence, Slice, Step
from inferno.process.ranks import messages
from inferno.process.ranks.sending_pixels import PIECE, SentPixels, Wanted, send_all
from inferno.request.requests import ImagePart, Request
from inferno.request.sampling_params import SamplingParams


def part(folder: Path, name: int, start: int, count: int = 4) -> ImagePart:
    path = folder / str(name)
    values = np.random.default_rng(name).random(1000 * (name + 1), np.float32)
    path.write_bytes(values.tobytes())
    return ImagePart(start, count, bytes([name]) * 16, (1, 2, 2), str(path))


def asking(images: tuple[ImagePart, ...]) -> Request:
    return Request(id="0", token_ids=(1,) * 64, params=SamplingParams(), images=images)


def step(
    *slices: tuple[int, int, int],
    new: dict[int, tuple[ImagePart, ...]] | None = None,
    known: int = 0,
) -> Step:
    rows = tuple(NewSequence(row, asking(images), (), known) for row, images in (new or {}).items())
    return Step(tuple(Slice(*each, False) for each in slices), rows)


class Ends:
    """Rank 0 and one of another machine."""

    def __init__(self) -> None:
        self.wanted, self.there, self.sent = Wanted(), SentPixels(), list[bytes]()

    def launch(self, launched: Step) -> list[int]:
        """Launch a step. Returns the images that were sent for it."""
        images = self.wanted.update(launched)
        send_all(images, self.take)
        self.there.update(launched)
        assert self.there._wanted.digests == self.wanted.digests == self.there._data.keys()
        return sorted(digest[0] for digest in images)

    def take(self, kind: bytes, body: bytes) -> None:
        assert kind == messages.PIXELS
        self.there.take(messages.decode_pixels(body))


def test_an_image_is_sent_once_while_a_step_may_need_it(tmp_path: Path) -> None:
    ends, (first, second) = Ends(), (part(tmp_path, 1, 2), part(tmp_path, 2, 20))
    assert ends.launch(step((0, 0, 4), new={0: (first, second)})) == [1]
    values = ends.there.get(first.digest)
    assert values is not None and values.tobytes() == Path(first.path).read_bytes()
    assert ends.launch(step((0, 4, 8), (1, 0, 8), new={1: (first,)})) == []
    assert ends.launch(step((0, 12, 4), (1, 8, 8))) == []
    assert ends.there.get(first.digest) is None, "both rows are beyond it"
    assert ends.launch(step((0, 16, 4), (2, 0, 2), new={2: (first,)})) == [], "none is begun yet"
    assert ends.launch(step((0, 20, 4), (2, 2, 6))) == [1, 2]
    assert ends.launch(step((0, 24, 1), (2, 8, 1))) == []
    assert not ends.there._data


def test_what_is_cached_is_not_sent_and_a_row_forgets_the_images_of_its_last_sequence(
    tmp_path: Path,
) -> None:
    ends, (first, second) = Ends(), (part(tmp_path, 1, 2), part(tmp_path, 2, 20))
    assert ends.launch(step((0, 8, 14), new={0: (first, second)}, known=8)) == [2]
    assert ends.launch(step((0, 0, 4), new={0: (first,)})) == [1]
    assert ends.there.get(second.digest) is None


def test_an_image_in_several_parts_is_kept_until_its_last_one(tmp_path: Path) -> None:
    ends, first = Ends(), part(tmp_path, 1, 2)
    last = ImagePart(10, 4, first.digest, first.grid, first.path, 4)
    assert ends.launch(step((0, 0, 8), new={0: (first, last)})) == [1]
    assert ends.launch(step((0, 8, 2))) == [] and ends.there.get(first.digest) is not None
    assert ends.launch(step((0, 10, 2))) == [] and ends.there.get(first.digest) is not None
    assert ends.launch(step((0, 14, 4))) == [] and ends.there.get(first.digest) is None


def test_large_images_go_in_pieces_and_a_file_that_is_gone_is_none(tmp_path: Path) -> None:
    ends, first, second = Ends(), part(tmp_path, 1, 2), part(tmp_path, 2, 8)
    data = np.arange(PIECE // 2, dtype=np.float32).tobytes()
    Path(first.path).write_bytes(data)
    Path(second.path).unlink()
    assert ends.launch(step((0, 0, 9), new={0: (first, second)})) == [1, 2]
    values = ends.there.get(first.digest)
    assert values is not None and values.tobytes() == data
    assert ends.there.get(second.digest) is None
