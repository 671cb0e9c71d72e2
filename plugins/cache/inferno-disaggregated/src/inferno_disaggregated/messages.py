"""What the two ends say to each other, and how a message is sealed.

decode -> prefill   hello, then sealed: join, mapped, ask, release, ping
prefill -> decode   challenge or unknown, then sealed: welcome or refused, blocks, first, done, pong

A sealed message is a header in msgpack and a code that only those can make who know the token, have
both nonces and have counted the messages before it. Blocks may follow as a third frame; the header
has their checksum.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from attrs import define, field
from msgspec import Meta, Struct

from inferno.contracts import MOST_DRAWING

VERSION = 2
_PURPOSE = b"inferno prefill and decode apart, 1"
_CODE_BYTES = 16
NAME_BYTES = 16
MOST_HEADER = 1 << 24
"""Bytes of a message without its blocks: a prompt of four million tokens."""

Nonce = Annotated[bytes, Meta(min_length=16, max_length=16)]
Name = Annotated[str, Meta(max_length=200)]
Text = Annotated[str, Meta(max_length=1 << 20)]
Number = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Cause = Literal["", "full", "refused", "failed", "short"]
"""Why a prompt's blocks did not come: the end has too much to do, or refuses this prompt, or failed
to compute it, or had no room for all of them."""


class Hello(Struct, tag=True, frozen=True):
    version: int
    nonce: Nonce


class Challenge(Struct, tag=True, frozen=True):
    nonce: Nonce


class Unknown(Struct, tag=True, frozen=True):
    """There is no session, or its code is wrong: another token."""


class Join(Struct, tag=True, frozen=True):
    layout: Text
    shares: bool
    """Whether it can map memory of the other's process."""
    pulls: bool = False
    """Whether it can read memory of the other's process through nixl."""


class Welcome(Struct, tag=True, frozen=True):
    memory: Name
    """Name of the memory in which blocks will be; empty: they follow the headers."""
    nbytes: Number
    agent: Annotated[bytes, Meta(max_length=1 << 20)] = b""
    """What nixl needs to know, if blocks are to be read through it; else empty."""
    address: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0
    """Where the memory is in the other's process, then."""


class Refused(Struct, tag=True, frozen=True):
    cause: Text


class Mapped(Struct, tag=True, frozen=True):
    works: bool


class Ask(Struct, tag=True, frozen=True):
    transfer: Number
    token_ids: bytes
    """int32, little-endian. Empty only with a name: the first rank is asked for the rest."""
    wanted: list[Number]
    """Of each full block, groups as a set of bits."""
    salt: Text
    adapter: Name
    name: Annotated[bytes, Meta(max_length=NAME_BYTES)] = b""
    """Random, and the same from all ranks of the decoding end; empty if it has one rank."""
    drawing: Annotated[bytes, Meta(max_length=MOST_DRAWING)] = b""
    """How the first token is drawn; empty: it is not wanted."""


class Release(Struct, tag=True, frozen=True):
    """Its blocks are no longer needed, whether they have come or not."""

    transfer: Number


class Blocks(Struct, tag=True, frozen=True):
    transfer: Number
    group: Number
    indices: list[Number]
    """Which blocks of the prompt."""
    checksum: Number
    """xxh3, without its topmost bit."""
    offset: Annotated[int, Meta(ge=-1, lt=1 << 62)]
    """Where they are in shared memory; -1: in the next frame."""


class First(Struct, tag=True, frozen=True):
    """The prompt is computed, and its last blocks follow."""

    transfer: Number
    token_id: Number


class Done(Struct, tag=True, frozen=True):
    transfer: Number
    cause: Cause
    text: Annotated[str, Meta(max_length=2000)]


class Ping(Struct, tag=True, frozen=True):
    pass


class Pong(Struct, tag=True, frozen=True):
    pass


ToPrefill = Hello | Join | Mapped | Ask | Release | Ping
ToDecode = Challenge | Unknown | Welcome | Refused | Blocks | First | Done | Pong
encode = msgspec.msgpack.Encoder().encode
_to_prefill: Any = msgspec.msgpack.Decoder(ToPrefill)
_to_decode: Any = msgspec.msgpack.Decoder(ToDecode)


class Foreign(Exception):
    """A message that the other end would not have sent."""


def decode(header: bytes, *, of_prefill: bool) -> Any:
    """Decode what a prefilling or a decoding end has sent. Raises Foreign."""
    try:
        return (_to_decode if of_prefill else _to_prefill).decode(header)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise Foreign(str(error)) from error


@define(eq=False)
class Session:
    """Seals the messages of one end, and opens those of the other, in order."""

    is_prefill: bool
    _key: bytes
    _sent: int = field(default=0, init=False)
    _received: int = field(default=0, init=False)

    @classmethod
    def of(cls, token: bytes, hello: bytes, challenge: bytes, *, is_prefill: bool) -> Session:
        key = hmac.digest(token, _PURPOSE + hello + challenge, "sha256")
        return cls(is_prefill, key)

    def seal(self, message: Struct) -> list[bytes]:
        header = encode(message)
        self._sent += 1
        return [header, self._code(header, self._sent, self.is_prefill)]

    def open(self, frames: Sequence[bytes]) -> Any:
        """Return the message. Raises Foreign."""
        if len(frames) < 2:
            raise Foreign("it is not sealed")
        self._received += 1
        code = self._code(frames[0], self._received, not self.is_prefill)
        if not hmac.compare_digest(code, frames[1]):
            raise Foreign("its code is wrong")
        return decode(frames[0], of_prefill=not self.is_prefill)

    def _code(self, header: bytes, count: int, is_prefill: bool) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=_CODE_BYTES)
        digest.update(count.to_bytes(8, "little") + bytes([is_prefill]))
        digest.update(header)
        return digest.digest()
