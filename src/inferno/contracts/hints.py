"""Hints: which distribution provides what is not installed."""

from __future__ import annotations

from attrs import frozen

from inferno.errors import MissingKind


@frozen(kw_only=True)
class Hint:
    """The distribution that provides something: the `pip install` line of an error."""

    kind: MissingKind
    """What is missing."""
    name: str
    """Its name: an architecture's as in `config.json` or a file's metadata (`*`: the fallback), a
    format's file suffix, a scheme's name or `quant_method`, the device of kernels, the name of an
    attention backend, a cache policy or a store, a model's reference, or what its kind of
    references begins with (`package:`), a size of models with random weights, what the paths of
    endpoints begin with (`/api/`)."""
    distribution: str
    """What to install; empty if nothing has it."""
    remedy: str = ""
    """What to do instead, as a sentence, if nothing has it: for what other programs have, or once
    had, under that name."""
    api_version: int = 1
