"""What the configs of models with Mamba-2 layers share: fields, the state and the limits of dt.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.configs.decoder import DecoderConfig
from inferno.configs.reader import check_positive
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
        },
        heads=heads,
        groups=groups,
        group_channels=2 * state_size,
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


@frozen(kw_only=True, slots=False)  # so that a config may have another base beside it
class MambaConfig(DecoderConfig):
    """A decoder with Mamba-2 layers, whose fields have the names that Bamba gave them."""

    mamba_n_heads: int = 128
    mamba_n_groups: int = 1
    mamba_d_state: int = 256
    mamba_d_head: int = 0
    """Left out, or "auto": `mamba_inner` / mamba_n_heads."""
    mamba_d_conv: int = 4
    mamba_expand: int = 2
    mamba_conv_bias: bool = True
    mamba_proj_bias: bool = False
    dt_limit: Limits = NO_LIMITS
    """`time_step_limit`."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        head = config.get("mamba_d_head")
        read = super().from_json({**config, "mamba_d_head": None if head == "auto" else head})
        sizes = ("mamba_n_heads", "mamba_n_groups", "mamba_d_state", "mamba_d_conv", "mamba_expand")
        check_positive(**{name: getattr(read, name) for name in sizes})
        inner, heads = read.mamba_inner, read.mamba_n_heads
        width, groups = read.mamba_d_head or inner // heads, ("mamba_n_groups", read.mamba_n_groups)
        check_mamba2_heads("mamba_n_heads", heads, width, inner, groups)
        return attrs.evolve(read, mamba_d_head=width, dt_limit=time_step_limit(config))

    @property
    def mamba_inner(self) -> int:
        """Inner width of a layer."""
        return self.mamba_expand * self.hidden_size

    @property
    def state_spec(self) -> StateSpec:
        """What a Mamba layer keeps."""
        return mamba2_state(
            heads=self.mamba_n_heads,
            width=self.mamba_d_head,
            state_size=self.mamba_d_state,
            groups=self.mamba_n_groups,
            taps=self.mamba_d_conv,
        )
