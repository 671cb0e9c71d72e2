"""Drawing tokens: each request with its own parameters, whatever its neighbours ask."""

from inferno.core.sampling.logprobs import logprobs_of
from inferno.core.sampling.sampler import Sampler

__all__ = ["Sampler", "logprobs_of"]
