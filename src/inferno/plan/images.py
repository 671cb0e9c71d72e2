"""Images: how large they may be, and the memory that they take."""

from __future__ import annotations

import math
from typing import Any

from inferno import host
from inferno.contracts import DTYPE_BYTES, ImageCountConfig, ImageModelConfig, ImageSpanConfig
from inferno.errors import OptionError, UnsupportedError
from inferno.plan.decided import Decided
from inferno.plan.image_use import ImageUse
from inferno.plan.plan import MemoryItem
from inferno.plan.stages import Given, ModelFacts

MOST_TOKENS = 4096
"""Positions of an image, unless the user says otherwise: of Qwen2.5-VL 3.2 megapixels. Its own
limit, 16384, takes four times as much memory beside the weights, and 16 times as long in layers
that attend to all of it."""


def num_parameters(model: ModelFacts, encoder: str) -> int:
    """Return how many an encoder has in the checkpoint, by its module's path."""
    stored = model.checkpoint.tensors.items()
    return sum(math.prod(info.shape) for name, info in stored if name.startswith(f"{encoder}."))


def choose_images(given: Given, model: ModelFacts, dtype: str) -> Decided[ImageUse | None]:
    """Return how a model sees images; None if it reads text only. Raises UnsupportedError,
    OptionError."""
    options, config, offered = given.options, model.config, model.architecture.value
    if offered.images is None:
        return Decided(None)
    if not isinstance(config, ImageModelConfig):
        raise UnsupportedError(
            f"{offered.name}: its config lacks attributes of contracts.ImageModelConfig",
            "Upgrade the plugin.",
        )
    count = num_parameters(model, config.image_encoder)
    [(_, offer)] = model.architecture.offers
    longest = options.max_model_len or config.max_position_embeddings
    most = min(options.max_image_tokens or MOST_TOKENS, longest)
    if isinstance(config, ImageCountConfig):
        most, asked = config.image_count, most
        if asked < most:
            raise OptionError(
                f"every image has {most} tokens",
                "Neither --max-image-tokens nor --max-model-len may be less.",
            )
    if whole := isinstance(config, ImageSpanConfig):
        fewest, largest = config.image_span
        most = min(most, largest, options.max_num_batched_tokens)
        if most < fewest:
            raise OptionError(
                f"an image has {fewest} tokens, which one step computes",
                "Neither --max-image-tokens, --max-num-batched-tokens nor --max-model-len may be "
                "less.",
            )
    return Decided(
        ImageUse(
            encoder=config.image_encoder,
            num_parameters=count,
            nbytes=count * DTYPE_BYTES[dtype],
            most_tokens=most,
            side=config.image_patch[0],
            cache_bytes=host.parse_size(options.image_cache_size, "--image-cache-size"),
            distribution=offer.distribution,
            file=str(given.encoder.path or ""),
            whole=whole,
        )
    )


def image_memory(
    use: ImageUse | None, config: Any, dtype: str, sent: int = 0
) -> tuple[MemoryItem, ...]:
    """Return the memory of the encoder, its weights left out. `sent`: the most tokens of a step, if
    pixels are sent to ranks of other machines, which keep them in the same memory; else 0."""
    if use is None:
        return ()
    size, pixels = DTYPE_BYTES[dtype], config.image_patch[1]
    inside = use.most_tokens * (config.image_widths * size + pixels * (4 + size))
    why = f"an image of {use.most_tokens} tokens"
    reason = "embeddings of images that come again"
    items = MemoryItem("image encoder", inside, why), MemoryItem("images", use.cache_bytes, reason)
    if not sent:
        return items
    # Those of a step's tokens (at least one image), and one that an earlier step has begun.
    nbytes = (max(use.most_tokens, sent) + use.most_tokens) * pixels * 4
    return (*items, MemoryItem("sent pixels", nbytes, "of images that machines compute at once"))
