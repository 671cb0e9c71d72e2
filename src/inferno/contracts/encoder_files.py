"""Encoders of images that a format stores in a separate file, beside that of the text model:
llama.cpp's `mmproj-*.gguf`. The examples are GGUF's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from inferno.contracts import lazy


@frozen
class EncoderFile:
    """A file that may hold the encoder of a model."""

    path: Path
    refusal: str = ""
    """Why it is not this model's, as a sentence; empty: it is."""


@frozen(kw_only=True)
class EncoderJoin:
    """A tensor of the model that files store as several."""

    parts: tuple[str, ...]
    """Their full names in the file, in order."""
    axis: int | None = None
    """A new axis that they are stacked along; None: their rows follow each other."""


@frozen(kw_only=True)
class EncoderDialect:
    """Maps a file with an encoder to the names and values of the original checkpoint, of which the
    text model's file is the other part. Every tensor is read as a dense one.

    `{n}` in a name is a layer's index. `{k}` in the model's is its place among the layers that the
    file has such a tensor of.
    """

    kind: str
    """What files call the encoder's projector: "qwen2.5vl_merger"."""
    texts: tuple[str, ...]
    """What files of the text models call their architectures: ("qwen2vl",)."""
    fields: Mapping[str, str] = field(factory=dict)
    """Names for `config` -> metadata keys: {"depth": "clip.vision.block_count"}. Keys that a file
    has not, and that are not `assumed`, are left out."""
    assumed: Mapping[str, Any] = field(factory=dict)
    """Values of `fields` whose keys files may lack: those of the family's published models. The
    plan says which were assumed."""
    present: Mapping[str, str] = field(factory=dict)
    """Names for `config` -> the tensor that a file has if they are true."""
    shapes: Mapping[str, tuple[str, int]] = field(factory=dict)
    """Names for `config` -> a tensor of the file, and the axis whose length they are."""
    tokens: Mapping[str, str] = field(factory=dict)
    """Names for `config` -> the token of the text model's vocabulary whose id they are. A text
    model without any of them is another one."""
    modules: Mapping[str, str | None] = field(factory=dict)
    """Module path in the file -> in the original checkpoint, or full names of tensors whose last
    component differs; None: it is left out."""
    joins: Mapping[str, EncoderJoin] = field(factory=dict)
    """Tensors of the original checkpoint that files store as several, by their full names."""
    skipped: tuple[str, ...] = ()
    """How names of tensors begin that are not of the encoder of images, but of one of sound."""
    scalars: frozenset[str] = frozenset()
    """Last components of tensors that are single numbers, which files store as vectors."""
    colours_last: frozenset[str] = frozenset()
    """Modules, by path in the file, whose weight is stored as a convolution, (O, colours, rows,
    columns), and is a matrix with the colours of a pixel together."""
    rotary_pairs: frozenset[str] = frozenset()
    """Modules, by path in the file, whose rows are stored with rotary pairs interleaved: as many
    heads as `heads` says."""
    heads: str = ""
    """The metadata key of the encoder's heads."""
    added: Mapping[str, float] = field(factory=dict)
    """Modules, by path in the file, whose weight is stored with this constant added."""
    config: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] = field(
        converter=lazy.function
    )
    """config(text, fields) -> the original `config.json` of the whole: with `text_config`, the
    config of the text model, and `vision_config`, from what the names above stand for. Imports no
    torch."""
    processor: Callable[[Mapping[str, Any]], Mapping[str, Any]] = field(converter=lazy.function)
    """processor(fields) -> the original `preprocessor_config.json`, as far as files have it."""
