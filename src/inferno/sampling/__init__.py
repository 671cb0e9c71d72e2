"""Draws tokens: each request by its own parameters, independent of the rest of the batch."""

from inferno.sampling.logprobs import logprobs_of
from inferno.sampling.sampler import Sampler

__all__ = ["Sampler", "logprobs_of"]
