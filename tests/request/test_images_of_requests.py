"""What the engine refuses of requests with images, whoever sends them."""

from __future__ import annotations

import pytest
from attrs import evolve, frozen

from inferno.errors import RequestError
from inferno.request.requests import ImagePart, Request, overlapping
from inferno.request.validation import validate_request


@frozen
class Limits:
    vocab_size: int = 100
    max_model_len: int = 100
    whole_prompts: bool = False
    images: object = "an encoder"
    audio: object = None


def image(start: int, count: int = 4, digest: bytes = bytes(16)) -> ImagePart:
    return ImagePart(start, count, digest, (1, 4, 4), "/path")


def request(*images: ImagePart) -> Request:
    return Request(id="a", token_ids=(7,) * 20, images=images)


def test_images_one_after_the_other_are_taken() -> None:
    validate_request(request(image(0), image(4), image(16)), Limits())


@pytest.mark.parametrize(
    "images",
    [
        (image(17),),
        (image(-1),),
        (image(4), image(7)),
        (image(8), image(0)),
        (image(3, count=0),),
        (image(3, digest=b"short"),),
    ],
)
def test_places_that_are_wrong_are_refused(images: tuple[ImagePart, ...]) -> None:
    with pytest.raises(RequestError, match="places of the prompt's images"):
        validate_request(request(*images), Limits())


def test_a_model_of_text_takes_none() -> None:
    with pytest.raises(RequestError, match="sees no images"):
        validate_request(request(image(0)), Limits(images=None))
    heard = evolve(image(0), medium="audio")
    with pytest.raises(RequestError, match="hears no audio"):
        validate_request(request(heard), Limits())
    validate_request(request(heard), Limits(images=None, audio="an encoder"))


def test_images_at_positions_are_those_that_overlap_them() -> None:
    images = (image(2, 3), image(5, 1), image(9, 4), image(14, 2))
    for begin in range(18):
        for end in range(begin + 1, 18):
            matches = overlapping(images, begin, end)
            assert matches == tuple(
                each
                for each in images
                if any(each.start <= place < each.stop for place in range(begin, end))
            )
