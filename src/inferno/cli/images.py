"""The options of images and audio, and what `inferno explain` says of their encoders."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import rich_click as click

from inferno import host

if TYPE_CHECKING:
    from inferno.plan import AudioUse, ImageUse, Plan

_engine = partial(click.option, panel="Engine")
_network = partial(click.option, panel="Network")
_limits = partial(click.option, panel="Limits")

IMAGE_OPTIONS = [
    _engine(
        "--mmproj",
        metavar="REF",
        help="GGUF file with the encoder of images. [default: mmproj-*.gguf beside the model]",
    ),
    _engine(
        "--no-mmproj",
        "mmproj",
        flag_value="none",
        help="Run a GGUF model without images, whatever is beside it.",
    ),
    _engine(
        "--max-image-tokens",
        type=int,
        help="Most tokens of an image; larger images are scaled down. [default: 4096]",
    ),
    _engine(
        "--max-audio-seconds",
        type=int,
        help="Longest audio, if the model hears so much. [default: 600]",
    ),
    _engine(
        "--image-cache-size",
        metavar="SIZE",
        help="Limit of the embeddings, and of the pixels, that are kept for images and audio that "
        "come again. [default: 256MiB]",
    ),
]

IMAGE_LIMITS = [
    _network(
        "--allow-image-urls",
        multiple=True,
        metavar="HOST",
        help="Host that images and audio may be fetched from by https; *.example.org for any below "
        "it, * for any, http://HOST for one that may be asked in plain http too. "
        "Never from addresses inside of a network. May be repeated. [default: none]",
    ),
    _limits(
        "--max-images",
        type=click.IntRange(1),
        default=16,
        help="Most images of a request, audio counted too.",
    ),
    _limits(
        "--max-image-bytes",
        type=click.IntRange(1),
        default=20 * 2**20,
        help="Largest image, as it is sent or fetched.",
    ),
    _limits(
        "--max-audio-bytes",
        type=click.IntRange(1),
        default=20 * 2**20,
        help="Largest audio file, as it is sent or fetched.",
    ),
]


def image_rows(plan: Plan, origin: str) -> Iterable[tuple[str, str, str]]:
    """The encoder, what it takes, and how many tokens an image has."""
    if (use := plan.images) is None:
        return
    yield "images", _encoder(use, plan, "image encoder"), origin
    if use.file:
        yield "", f"of {use.file}", ""
    yield "", f"a token for {use.side} x {use.side} pixels, at most {use.most_tokens} an image", ""
    yield "", f"{host.format_bytes(use.cache_bytes)} for embeddings of images that come again", ""


def _encoder(use: ImageUse | AudioUse, plan: Plan, item: str) -> str:
    """Describe an encoder, whose memory while it computes is an item of the plan's."""
    working = next((each.nbytes for each in plan.memory if each.name == item), 0)
    return (
        f"{use.encoder}: {use.num_parameters / 1e6:,.1f}M parameters, "
        f"{host.format_bytes(use.nbytes)}, and {host.format_bytes(working)} while it computes"
    )


def audio_rows(plan: Plan, origin: str) -> Iterable[tuple[str, str, str]]:
    """The encoder, what it takes, how many tokens audio has, and how long it may be."""
    if (use := plan.audio) is None:
        return
    yield "audio", _encoder(use, plan, "audio encoder"), origin
    seconds, tokens = use.chunk
    yield "", f"{tokens} tokens for {seconds:g} s, at most {use.most_seconds:g} s", ""
    yield "", f"{host.format_bytes(use.cache_bytes)} for embeddings of audio that comes again", ""
