"""What Mamba-2 reads of `config.json`, under its own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import attrs
from attrs import frozen

from inferno.contracts import CacheTensor, StateNeed
from inferno.errors import CheckpointError
from inferno.modelconfig import check_known, check_positive, read_config


@frozen(kw_only=True)
class Mamba2Config:
    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_heads: int = 128
    head_dim: int = 64
    state_size: int = 128
    n_groups: int = 8
    expand: int = 2
    conv_kernel: int = 4
    use_bias: bool = False
    use_conv_bias: bool = True
    layer_norm_epsilon: float = 1e-5
    residual_in_fp32: bool = True
    tie_word_embeddings: bool = False
    max_position_embeddings: int = 262_144
    """Configs do not say: a state has no longest context. What the largest model was tried with."""
    dt_limit: tuple[float, float] = (0.0, float("inf"))
    """`time_step_limit`."""

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "hidden_act", "silu", "swish", None)
        read = read_config(cls, config)
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_heads",
            "head_dim",
            "state_size",
            "n_groups",
            "expand",
            "conv_kernel",
            "max_position_embeddings",
        )
        check_positive(**{name: getattr(read, name) for name in sizes})
        inner = read.expand * read.hidden_size
        if read.num_heads * read.head_dim != inner or read.num_heads % read.n_groups:
            raise CheckpointError(
                f"config.json: num_heads is {read.num_heads}, of {read.head_dim} numbers each",
                f"Together they must be expand · hidden_size, {inner}, in n_groups "
                f"({read.n_groups}) of equally many.",
            )
        return attrs.evolve(read, dt_limit=_limits(config.get("time_step_limit")))

    @property
    def unused_tensors(self) -> tuple[str, ...]:
        return ("lm_head.weight",) if self.tie_word_embeddings else ()

    @property
    def state_need(self) -> StateNeed:
        """What every layer keeps: the inputs its convolution looks back at, and a matrix for each
        head."""
        channels = self.num_heads * self.head_dim + 2 * self.n_groups * self.state_size
        shape = (self.num_heads, self.head_dim, self.state_size)
        return StateNeed(
            tensors={
                "conv": CacheTensor((self.conv_kernel - 1, channels), "float32"),
                "state": CacheTensor(shape, "float32"),
            }
        )

    def cache_needs(self) -> list[StateNeed]:
        return [self.state_need] * self.num_hidden_layers


def _limits(given: Any) -> tuple[float, float]:
    """A pair of numbers, of which the second may be infinite: transformers 5 writes that as an
    object."""
    if given is None:
        return 0.0, float("inf")
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
