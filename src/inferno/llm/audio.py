"""Audio of prompts and conversations, as callers give it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferno.errors import RequestError
from inferno.images.decoding import check_size, data_of
from inferno.images.mediums import AUDIO
from inferno.images.sound import Samples, decoded, given_samples, wav_of
from inferno.plan import AudioUse

_FORMATS = ("wav", "mp3", "flac", "ogg")
"""Values of `format`, which changes nothing: what a file is, its bytes say."""
_LOCAL_BYTES = 2**30


def audio_of(part: Mapping[str, Any], param: str) -> Any:
    """Return what a part of a message says that its audio is: an address, or what `LLM` takes
    besides. Raises RequestError."""
    for name in ("input_audio", "audio_url", "audio"):
        given = part.get(name)
        if isinstance(given, Mapping):
            given = _data(given, param) if name == "input_audio" else given.get("url")
        if given is not None:
            return given
    remedy = 'Give "input_audio": {"data": "...", "format": "wav"}, in base64.'
    raise RequestError(f"{param} has no audio", remedy, param=param)


def _data(given: Mapping[str, Any], param: str) -> str:
    data, kind = given.get("data"), given.get("format", "wav")
    if not isinstance(data, str):
        raise RequestError(
            f"{param}.input_audio has no data", "Give a file's bytes in base64.", param=param
        )
    if kind not in _FORMATS:
        raise RequestError(
            f"{param}: format is {str(kind)[:40]!r}",
            f"Use one of {', '.join(_FORMATS)}.",
            param=param,
        )
    return data if data[:5].lower() == "data:" else f"data:audio/{kind};base64,{data}"


def opened_audio(source: Any, use: AudioUse, param: str) -> Samples:
    """Return the samples of audio of the caller's own. Raises RequestError, UnsupportedError."""
    if (data := _file(source, param)) is not None:
        return decoded(data, use.rate, use.most_seconds, param)
    return given_samples(source, use.rate, use.most_seconds, param)


def audio_file(source: Any, use: AudioUse, param: str) -> bytes:
    """Return audio of the caller's own as the bytes of a file, for another process. Raises
    RequestError, UnsupportedError."""
    if (data := _file(source, param)) is not None:
        return data
    return wav_of(given_samples(source, use.rate, use.most_seconds, param), use.rate)


def _file(source: Any, param: str) -> bytes | None:
    """Return the bytes of a file; None for samples."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if isinstance(source, str) and source[:5].lower() == "data:":
        return data_of(source, param, _LOCAL_BYTES, AUDIO)
    if isinstance(source, str) and source.lower().startswith(("http://", "https://")):
        raise RequestError(
            f"{param} is an address in the network, which is not fetched here",
            "Fetch it, and give its bytes; a server fetches with --allow-image-urls.",
            param=param,
        )
    if not isinstance(source, str | Path):
        return None
    path = Path(str(source).removeprefix("file://"))
    try:
        check_size(path.stat().st_size, param, _LOCAL_BYTES, AUDIO)
        return path.read_bytes()
    except OSError as error:
        cause = f"{param}: {path} cannot be read: {error.strerror}"
        raise RequestError(cause, "Check the path.", param=param) from error
