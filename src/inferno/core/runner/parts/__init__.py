"""What takes part in steps beside the model: see `StepPart`."""

from inferno.core.runner.parts.drafting import Drafting
from inferno.core.runner.parts.part import PartResults, StepPart
from inferno.core.runner.parts.prompts import pooling, prompt_logprobs

__all__ = ["Drafting", "PartResults", "StepPart", "pooling", "prompt_logprobs"]
