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
    for index in range(len(keys), len(token_ids) // block_size):
        parent = keys[-1] if keys else _root(salt, adapter)
        tokens = array("i", token_ids[index * block_size : (index + 1) * block_size])
        content = parent + tokens.tobytes()
        if images:
            content += images_within(images, index * block_size, (index + 1) * block_size)
        keys.append(blake2b(content, digest_size=16).digest())


def _root(salt: str, adapter: str) -> bytes:
    """Return what the first block continues."""
    root = b"\xff" + adapter.encode() if adapter else b""  # a byte that no salt begins with
    return blake2b(root + salt.encode(), digest_size=16).digest()
