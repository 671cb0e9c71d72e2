"""Audio: how long it may be, and the memory that it takes."""

from __future__ import annotations

import math
from typing import Any

from inferno import host
from inferno.contracts import DTYPE_BYTES, AudioModelConfig
from inferno.errors import UnsupportedError
from inferno.plan.audio_use import AudioUse
from inferno.plan.decided import Decided
from inferno.plan.images import num_parameters
from inferno.plan.plan import MemoryItem
from inferno.plan.stages import Given, ModelFacts

MOST_SECONDS = 600
"""Of audio, unless the user says otherwise."""


def choose_audio(given: Given, model: ModelFacts, dtype: str) -> Decided[AudioUse | None]:
    """Return how a model hears audio; None if it hears none. Raises UnsupportedError."""
    options, config, offered = given.options, model.config, model.architecture.value
    if offered.audio is None:
        return Decided(None)
    if not isinstance(config, AudioModelConfig):
        if offered.images is not None:  # of models that see, some hear, too
            return Decided(None)
        raise UnsupportedError(
            f"{offered.name}: its config lacks attributes of contracts.AudioModelConfig",
            "Upgrade the plugin.",
        )
    count = num_parameters(model, config.audio_encoder)
    [(_, offer)] = model.architecture.offers
    seconds, tokens = config.audio_chunk
    most = min(options.max_audio_seconds or MOST_SECONDS, config.audio_seconds)
    return Decided(
        AudioUse(
            encoder=config.audio_encoder,
            num_parameters=count,
            nbytes=count * DTYPE_BYTES[dtype],
            rate=config.audio_rate,
            most_seconds=float(most),
            chunk=(seconds, tokens),
            most_tokens=math.ceil(most / seconds) * tokens,
            cache_bytes=host.parse_size(options.image_cache_size, "--image-cache-size"),
            distribution=offer.distribution,
        )
    )


def audio_memory(
    use: AudioUse | None, config: Any, dtype: str, sent: int = 0
) -> tuple[MemoryItem, ...]:
    """Return the memory of the encoder, its weights left out. `sent` as for images."""
    if use is None:
        return ()
    inside = config.audio_widths * DTYPE_BYTES[dtype]
    why = f"{use.chunk[0]:g} s, which it hears at once"
    reason = "embeddings of audio that comes again"
    items = MemoryItem("audio encoder", inside, why), MemoryItem("audio", use.cache_bytes, reason)
    if not sent:
        return items
    seconds, tokens = use.chunk
    at_once = max(use.most_seconds, sent * seconds / tokens)
    # Frames take fewer bytes than the samples in float32 that they are made of.
    nbytes = math.ceil((at_once + use.most_seconds) * use.rate) * 4
    return (*items, MemoryItem("sent audio", nbytes, "that machines compute at once"))
