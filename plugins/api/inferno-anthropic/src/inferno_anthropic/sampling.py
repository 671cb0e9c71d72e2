"""The sampling parameters of a message, made of `SamplingParams`; type checkers read
`sampling.pyi`, which `docs/generate.py` writes."""

from __future__ import annotations

from attrs import make_class

from inferno.server.api import parameters, sampling_fields
from inferno_anthropic import support

SAMPLING = tuple(p for p in parameters() if p.in_body and p.name not in support.OTHER_NAMES)
"""Sampling parameters that a message takes under their own names."""

MessageSampling = make_class(
    "MessageSampling", sampling_fields(SAMPLING), frozen=True, kw_only=True
)
