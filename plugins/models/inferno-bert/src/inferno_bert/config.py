"""The fields of `config.json` that BERT and RoBERTa read, under its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from attrs import evolve, frozen

from inferno.configs import check_known, check_positive, read_config
from inferno_bert.encoder_config import ACTIVATIONS, EncoderConfig

PADDING = 1
"""RoBERTa's padding token, and the row of the position table before its first position."""


@frozen(kw_only=True)
class BertConfig(EncoderConfig):
    positions: ClassVar[Literal["from 0", "from padding"]] = "from 0"

    max_position_embeddings: int
    """The longest prompt. In `config.json` it is the number of rows of the table."""
    type_vocab_size: int = 2
    layer_norm_eps: float = 1e-12
    hidden_act: str = "gelu"
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
        read.check_sizes("type_vocab_size")
        longest = read.max_position_embeddings - cls._rows_before()
        check_positive(max_position_embeddings=longest)
        return evolve(read, max_position_embeddings=longest)

    @property
    def num_positions(self) -> int:
        """Rows of the position table."""
        return self.max_position_embeddings + self._rows_before()

    @classmethod
    def _rows_before(cls) -> int:
        """Return how many rows of the position table are before the first token's."""
        return PADDING + 1 if cls.positions == "from padding" else 0


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
