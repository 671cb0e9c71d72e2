"""The sampling parameters of a response, made of `SamplingParams`; type checkers read
`sampling.pyi`, which `docs/generate.py` writes."""

from __future__ import annotations

from attrs import make_class

from inferno.request.sampling_params import parameters
from inferno.server.fields.parameters import sampling_fields
from inferno.server.responses import support

SAMPLING = tuple(p for p in parameters() if p.in_body and p.name not in support.NOT_OFFERED)
"""Sampling parameters that a response takes under their own names."""

ResponseSampling = make_class(
    "ResponseSampling", sampling_fields(SAMPLING), frozen=True, kw_only=True
)
