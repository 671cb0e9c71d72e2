"""What the configs of models with Mamba-2 layers share: the state and the limits of dt. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferno.contracts import CacheTensor, StateSpec
from inferno.contracts.states import COMPUTE
from inferno.errors import CheckpointError

Limits = tuple[float, float]
NO_LIMITS: Limits = (0.0, float("inf"))


def mamba2_state(*, heads: int, width: int, state_size: int, groups: int, taps: int) -> StateSpec:
    """What a layer keeps (`nn.Mamba2Mixer`): the inputs its convolution of so many taps looks back
    at, and a matrix for each head."""
    channels = heads * width + 2 * groups * state_size
    return StateSpec(
        tensors={
            "conv": CacheTensor((taps - 1, channels), COMPUTE),
            "state": CacheTensor((heads, width, state_size), "float32"),
        }
    )


def check_mamba2_heads(
    config: str, value: int, width: int, inner: int, groups: tuple[str, int]
) -> None:
    """Raises CheckpointError unless heads of this width fill the inner size, in groups of equally
    many. `config` and `groups` have the fields' names."""
    if value * width != inner or value % groups[1]:
        raise CheckpointError(
            f"config.json: {config} is {value}, of {width} numbers each",
            f"Together they must be as wide as the layer, {inner}, in {groups[0]} ({groups[1]}) "
            "of equally many.",
        )


def time_step_limit(config: Mapping[str, Any]) -> Limits:
    """`time_step_limit`, a pair of which the second may be infinite: transformers 5 writes that
    number as an object. Raises CheckpointError."""
    given = config.get("time_step_limit")
    if given is None:
        return NO_LIMITS
    try:
        least, most = (
            float(limit["__float__"] if isinstance(limit, Mapping) else limit) for limit in given
        )
    except (KeyError, TypeError, ValueError):
        least, most = 1.0, 0.0
    if not 0 <= least <= most:
        raise CheckpointError(
            f"config.json: time_step_limit is {given!r}",
            "It must be two numbers, the smaller first.",
        )
    return least, most
