"""Decodes audio of strangers: only some formats, mixed down to one channel and resampled, within
limits that are checked before any memory is taken. soundfile and soxr are imported where audio
comes.

Suffix: N samples.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np

from inferno.errors import RequestError, UnsupportedError
from inferno.images.decoding import refused
from inferno.images.mediums import AUDIO

FORMATS = ("WAV", "WAVEX", "FLAC", "OGG", "MP3")
_RATES, _CHANNELS = range(1_000, 192_001), 8
"""Samples a second, and the most channels, of what is read."""
_BLOCK = 2**16
Samples = np.ndarray[tuple[int], np.dtype[np.float32]]


def decoded(data: bytes, rate: int, most_seconds: float, param: str = "audio") -> Samples:
    """Return the samples of a file, one channel of `rate` samples a second. Raises RequestError for
    what is damaged, too long or not audio, and UnsupportedError without soundfile and soxr."""
    soundfile = _soundfile()
    if not data:
        raise refused(f"{param} is empty", param, medium=AUDIO)
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.format not in FORMATS:
                raise _unread(f"{param} is a file of the format {file.format}", param)
            if file.samplerate not in _RATES or not 1 <= file.channels <= _CHANNELS:
                what = f"{file.channels} channels of {file.samplerate} samples a second"
                raise _unread(f"{param} has {what}", param)
            most = int(most_seconds * file.samplerate)
            found_N = _mixed(file, most, param)
            return resampled(found_N, file.samplerate, rate, param)
    except (RequestError, UnsupportedError, MemoryError):
        raise
    except Exception as error:  # LibsndfileError, and what else native code raises
        what = str(getattr(error, "error_string", error))[:200] or type(error).__name__
        raise _unread(f"{param} cannot be decoded: {what}", param) from error


def _mixed(file: Any, most: int, param: str) -> Samples:
    """Return the mean of a file's channels. What its header says of its length may be wrong."""
    if file.frames > most and file.format != "MP3":
        raise _too_long(file.frames, most, file.samplerate, param)
    blocks, count = list[Samples](), 0
    while len(block := file.read(_BLOCK, dtype="float32", always_2d=True)):
        if (count := count + len(block)) > most:
            raise _too_long(max(count, file.frames), most, file.samplerate, param)
        with np.errstate(all="ignore"):  # of samples that are not numbers, which are refused
            blocks.append(block.mean(axis=1))
    if not count:
        raise _unread(f"{param} has no samples", param)
    return np.concatenate(blocks)


def resampled(samples_N: Samples, given: int, wanted: int, param: str = "audio") -> Samples:
    """Return samples at another rate. Raises RequestError for those that are not numbers."""
    if not np.isfinite(samples_N).all():
        raise _unread(f"{param} has samples that are not finite numbers", param)
    if given == wanted:
        return samples_N
    _soundfile()
    import soxr

    found_N: Samples = soxr.resample(samples_N, given, wanted)
    return found_N.astype(np.float32, copy=False)


def given_samples(source: Any, rate: int, most_seconds: float, param: str) -> Samples:
    """Return samples of the caller's own as one channel: an array, (samples) or (samples,
    channels), of `rate` a second, or a pair of it and its rate. Raises RequestError."""
    values, given = source if isinstance(source, tuple | list) else (source, rate)
    array = np.asarray(values)
    if array.dtype.kind != "f" or array.ndim not in (1, 2) or not array.size:
        cause = f"{param} is an array of {array.dtype}, of the shape {array.shape}"
        raise _unread(cause, param, "Give floats between -1 and 1: (samples), (samples, channels).")
    if not isinstance(given, int | float | np.number) or given != int(given):
        raise _unread(f"{param} has the rate {given!r}", param, "Give samples a second.")
    if int(given) not in _RATES:
        raise _unread(f"{param} has {int(given)} samples a second", param)
    if len(array) > (most := int(most_seconds * given)):
        raise _too_long(len(array), most, int(given), param)
    mixed = array if array.ndim == 1 else array.mean(axis=1)
    return resampled(mixed.astype(np.float32, copy=False), int(given), rate, param)


def wav_of(samples_N: Samples, rate: int) -> bytes:
    """Return samples as the bytes of a file."""
    written = io.BytesIO()
    _soundfile().write(written, samples_N, rate, format="WAV", subtype="FLOAT")
    return written.getvalue()


def _too_long(count: int, most: int, rate: int, param: str) -> RequestError:
    return refused(
        f"{param} is {math.ceil(count / rate)} seconds long, the limit is {most / rate:g}",
        param,
        "Send a part of it; a server's limit is --max-audio-seconds, if not the model's.",
        AUDIO,
    )


def _unread(cause: str, param: str, remedy: str | None = None) -> RequestError:
    return refused(cause, param, remedy, AUDIO)


def _soundfile() -> Any:
    """Import soundfile, and look for soxr. Raises UnsupportedError."""
    try:
        import soundfile
        import soxr
    except (ImportError, OSError) as error:  # OSError: libsndfile is missing
        remedy = "pip install 'inferno[audio]'"
        raise UnsupportedError("audio needs soundfile and soxr", remedy) from error
    assert soxr is not None
    return soundfile
