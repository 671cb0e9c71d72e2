"""Drawing tokens: each request with its own parameters, whatever its neighbours ask."""

from inferno.core.sampling.sampler import Sampler, logprobs_of

__all__ = ["Sampler", "logprobs_of"]
