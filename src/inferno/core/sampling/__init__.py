"""Draws tokens: each request by its own parameters, independent of the rest of the batch."""

from inferno.core.sampling.logprobs import logprobs_of
from inferno.core.sampling.sampler import Sampler

__all__ = ["Sampler", "logprobs_of"]
