"""Hints: which distribution provides what is not installed."""

from __future__ import annotations

from attrs import frozen

from inferno.errors import MissingKind


@frozen(kw_only=True)
class Hint:
    """The distribution that provides something: the `pip install` line of an error."""

    kind: MissingKind
    """What is asked for."""
    name: str
    """As it is asked for: an architecture as `config.json` or a file's metadata names it (`*`: the
    fallback), a format by the file's suffix, a scheme by its name or by its `quant_method`, kernels
    by their device, an attention backend or a cache policy by its name, a model by its
    reference."""
    distribution: str
    """What to install."""
    api_version: int = 1
