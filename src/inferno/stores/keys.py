"""Content keys, by which prefix caches and stores find blocks."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

from inferno.request.requests import ImagePart, images_within


def extend_keys(
    keys: list[bytes],
    token_ids: Sequence[int],
    block_size: int,
    salt: str = "",
    adapter: str = "",
    images: tuple[ImagePart, ...] = (),
) -> None:
    """Append the content keys that `keys` lacks of `token_ids`' full blocks.

    Keys are a hash chain with `salt` and the digest of the `adapter` at its root: a key identifies
    a block's tokens and images, everything before them, and what they are computed with. 128 bits
    of BLAKE2b, so that no request can be crafted to hit another's blocks.
    """
    first, stop = len(keys) * block_size, len(token_ids) // block_size * block_size
    if first >= stop:
        return
    parent = keys[-1] if keys else _root(salt, adapter)
    tokens = array("i", token_ids[first:stop])
    content, size = memoryview(tokens.tobytes()), tokens.itemsize * block_size
    for index, start in enumerate(range(0, len(content), size), len(keys)):
        block = blake2b(parent, digest_size=16)
        block.update(content[start : start + size])
        if images:
            block.update(images_within(images, index * block_size, (index + 1) * block_size))
        parent = block.digest()
        keys.append(parent)


def _root(salt: str, adapter: str) -> bytes:
    """Return what the first block continues."""
    root = b"\xff" + adapter.encode() if adapter else b""  # a byte that no salt begins with
    return blake2b(root + salt.encode(), digest_size=16).digest()
