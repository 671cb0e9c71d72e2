"""The sampling parameters of a body, made of `SamplingParams`; type checkers read
`sampling.pyi`, which `docs/generate.py` writes."""

from __future__ import annotations

from attrs import make_class

from inferno.request.sampling_params import parameters
from inferno.server.fields.parameters import sampling_fields

SamplingFields = make_class(
    "SamplingFields", sampling_fields(parameters()), frozen=True, kw_only=True
)
