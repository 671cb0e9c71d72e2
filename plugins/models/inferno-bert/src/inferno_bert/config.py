"""The fields of `config.json` that BERT and RoBERTa read, under its names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

from attrs import evolve, frozen

from inferno.configs import check_known, check_positive, read_config
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish")
PADDING = 1
"""RoBERTa's padding token, and the row of the position table before its first position."""


def check_heads(hidden_size: int, heads: int) -> None:
    """Raise CheckpointError unless heads are of one size."""
    if hidden_size % heads:
        raise CheckpointError(
            f"config.json: hidden_size {hidden_size} is not divisible by num_attention_heads "
            f"{heads}",
            "Check both.",
        )


def whole_spec(hidden_size: int, heads: int, window: int | None = None) -> AttentionSpec:
    """Return the spec of a layer that attends to all tokens, or to those less than `window`
    away."""
    dim = hidden_size // heads
    return AttentionSpec(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=dim,
        scale=dim**-0.5,
        sliding_window=window,
        bidirectional=True,
    )


@frozen(kw_only=True)
class BertConfig:
    positions: ClassVar[Literal["from 0", "from padding"]] = "from 0"

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    """The longest prompt. In `config.json` it is the number of rows of the table."""
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
    num_labels: int = 0
    """Rows of a classifier's head; 0 without one."""
    unused_tensors: ClassVar[tuple[str, ...]] = (
        "*position_ids",
        "*token_type_ids",
        "pooler.*",
        "cls.*",
        "lm_head.*",
    )

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        """Parse `config.json`. Raises CheckpointError for settings that are not computed."""
        check_known(config, "hidden_act", *ACTIVATIONS)
        check_known(config, "position_embedding_type", "absolute", None)
        check_known(config, "is_decoder", False, None)
        read = read_config(cls, config)
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        more = ("num_attention_heads", "type_vocab_size")
        check_positive(**{name: getattr(read, name) for name in (*sizes, *more)})
        longest = read.max_position_embeddings - cls._rows_before()
        check_positive(max_position_embeddings=longest)
        check_heads(read.hidden_size, read.num_attention_heads)
        return evolve(read, max_position_embeddings=longest)

    @property
    def num_positions(self) -> int:
        """Rows of the position table."""
        return self.max_position_embeddings + self._rows_before()

    @classmethod
    def _rows_before(cls) -> int:
        """Return how many rows of the position table are before the first token's."""
        return PADDING + 1 if cls.positions == "from padding" else 0

    @property
    def spec(self) -> AttentionSpec:
        """Of each layer."""
        return whole_spec(self.hidden_size, self.num_attention_heads)

    def cache_specs(self) -> Sequence[AttentionSpec]:
        return [self.spec] * self.num_hidden_layers


@frozen(kw_only=True)
class RobertaConfig(BertConfig):
    """RoBERTa's and XLM-R's."""

    positions = "from padding"
    layer_norm_eps: float = 1e-5
    type_vocab_size: int = 1

    @classmethod
    def from_json(cls, config: Mapping[str, Any]) -> Self:
        check_known(config, "pad_token_id", PADDING, None)
        return super().from_json(config)
