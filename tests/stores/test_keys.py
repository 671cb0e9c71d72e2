"""Content keys of prompts with images."""

from __future__ import annotations

from inferno.request.requests import ImagePart, digests_within
from inferno.stores.keys import extend_keys

BLOCK = 8


def keys(*images: tuple[int, int, bytes]) -> list[bytes]:
    """Of a prompt of 32 equal tokens with these images: where, how many tokens, and the digest."""
    digests: list[bytes] = []
    parts = tuple(ImagePart(at, count, name * 16, (1, 2, 2), "") for at, count, name in images)
    extend_keys(digests, [7] * (4 * BLOCK), BLOCK, images=parts)
    return digests


def test_keys_tell_images_apart_and_where_they_are() -> None:
    none, one, other = keys(), keys((BLOCK, 6, b"a")), keys((BLOCK, 6, b"b"))
    assert none[0] == one[0] == other[0], "what is before an image is shared"
    assert len({none[1], one[1], other[1]}) == len({none[3], one[3], other[3]}) == 3
    later = keys((BLOCK, 6, b"a"), (3 * BLOCK, 2, b"c"))
    assert later[:3] == one[:3] and later[3] != one[3]
    assert keys((BLOCK + 1, 6, b"a"))[1] != one[1], "at another place"
    assert keys((BLOCK - 2, 6, b"a"))[1] != one[1], "another part of it"


def test_an_image_over_several_blocks_is_in_the_key_of_each() -> None:
    parts = (ImagePart(6, 20, b"a" * 16, (1, 2, 2), ""),)
    assert [bool(digests_within(parts, at, at + BLOCK)) for at in range(0, 32, BLOCK)] == [
        *(True, True, True, True)
    ]
    assert not digests_within(parts, 26, 34) and digests_within(parts, 25, 26) == (b"a" * 16).hex()
