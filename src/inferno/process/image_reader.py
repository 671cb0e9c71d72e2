"""Decodes and prepares images and audio before their requests are admitted, in a process of its own
(`BoundedProcess`): decoders are native code, and files come from strangers."""

from __future__ import annotations

import sys
from collections import OrderedDict
from hashlib import blake2b
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import msgspec
from attrs import frozen

from inferno.errors import ImagesBusyError, InfernoError, RequestError
from inferno.images.decoding import refused
from inferno.images.mediums import IMAGE, Medium
from inferno.images.pixels import Picture, PixelFiles, Prepared
from inferno.plan import Plan, plan_from_json
from inferno.process.bounded import BoundedProcess, begin, serve

SECONDS = 10.0
"""Processor time for one image or piece of audio: the largest image that is read takes two."""
MEMORY = 2 * 2**30
"""Bytes that the process may allocate: the largest image that is read takes half."""
_REMEMBERED = 1024
"""Files that are known."""


@frozen
class Asked:
    """A file."""

    data: bytes
    param: str
    medium: str


@frozen
class Answer:
    """What was prepared, or why nothing was."""

    prepared: Prepared | None = None
    cause: str = ""
    remedy: str = ""


_encode = msgspec.msgpack.Encoder().encode
_decode_asked = msgspec.msgpack.Decoder(Asked).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


class ImageReader(BoundedProcess):
    """Reads images and audio for a plan, one file at a time. One that was read before is not read
    again while its pixels are kept."""

    module, does, noun = "inferno.process.image_reader", "reads images", "images"
    busy = ImagesBusyError
    variables = MappingProxyType(
        {"TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
    )  # that torch is missing

    def __init__(self, plan: Plan, files: PixelFiles, *, seconds: float = SECONDS) -> None:
        super().__init__(plan, seconds=seconds)
        self._files, self._arguments = files, (str(files.folder),)
        self._known: OrderedDict[bytes, bytes] = OrderedDict()
        """By the digest of a file's bytes, the image's."""
        self._medium = IMAGE
        """What is read now."""

    async def read(self, data: bytes, param: str, medium: Medium = IMAGE) -> Picture:
        """Return an image or audio, prepared. Raises RequestError for what cannot be used, and
        ImagesBusyError if that cannot be told now."""
        key = blake2b(data, digest_size=16, person=medium.name.encode()).digest()
        for _ in range(3):
            if key in self._known and (cached := self._files.find(self._known[key])) is not None:
                self._known.move_to_end(key)
                return cached
            async with self._turn():
                self._medium = medium
                request = _encode(Asked(data, param, medium.name))
                answer = _decode_answer(await self._ask(request))
            if answer.prepared is None:
                raise refused(answer.cause, param, answer.remedy, medium)
            if (picture := self._files.adopt(answer.prepared)) is not None:
                self._known[key] = picture.digest
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
                return picture
        raise ImagesBusyError("pixels are removed as fast as they come")

    async def close(self) -> None:
        await super().close()
        self._files.close()

    def exceeded(self, limit: str, cause: BaseException) -> NoReturn:
        how = f"more than {self._seconds:g} s" if limit == "time" else "too much memory"
        medium = self._medium
        raise RequestError(
            f"{medium.noun} takes {how} to decode", "Send a smaller file.", code=medium.code
        ) from cause


def main() -> None:
    """Answer each file with what it is once it is prepared."""
    from inferno.process.confined import confine

    begin()
    plan, folder = plan_from_json(Path(sys.argv[1]).read_bytes()), Path(sys.argv[3])
    confine(plan, writes=[str(folder)])  # before anything of the model is read
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # processors would import it
    from inferno.images.preparing import preparers
    from inferno.plan import reopen

    with reopen(plan) as opened:
        prepares = preparers(opened)

    def answer(body: bytes) -> bytes:
        request: Asked = _decode_asked(body)
        try:
            preparer = prepares[request.medium]
            decoded = preparer.read(request.data, request.param)
            return _encode(Answer(preparer.prepare(decoded, folder, request.param)))
        except MemoryError:
            remedy = "Send a smaller file."
            return _encode(Answer(None, f"{request.param} takes too much memory", remedy))
        except InfernoError as error:
            return _encode(Answer(None, error.cause, error.remedy))

    serve(answer, _encode(Answer()), float(sys.argv[2]), MEMORY)


if __name__ == "__main__":
    main()
