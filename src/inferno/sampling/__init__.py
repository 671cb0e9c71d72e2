"""Draws tokens: each request by its own parameters, independent of the rest of the batch."""

from inferno.sampling.finite import are_broken, not_finite
from inferno.sampling.logprobs import logprobs_of
from inferno.sampling.pairs import Pairs
from inferno.sampling.prompts import Pooled, PromptLogprobs
from inferno.sampling.sampler import Sampler

__all__ = [
    "Pairs",
    "Pooled",
    "PromptLogprobs",
    "Sampler",
    "are_broken",
    "logprobs_of",
    "not_finite",
]
