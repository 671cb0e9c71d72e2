"""What the configs of all encoders here have."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from inferno.configs import check_positive
from inferno.contracts import AttentionSpec
from inferno.errors import CheckpointError

ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish")


@frozen(kw_only=True)
class EncoderConfig:
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_labels: int = 0
    """Rows of a classifier's head; 0 without one."""

    def check_sizes(self, *more: str) -> None:
        """Raise CheckpointError unless these sizes, and fields named `more`, are positive, and
        heads are of one size."""
        sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
        names = (*sizes, "num_attention_heads", *more)
        check_positive(**{name: getattr(self, name) for name in names})
        if self.hidden_size % self.num_attention_heads:
            raise CheckpointError(
                f"config.json: hidden_size {self.hidden_size} is not divisible by "
                f"num_attention_heads {self.num_attention_heads}",
                "Check both.",
            )

    def spec(self, window: int | None = None) -> AttentionSpec:
        """Return the spec of a layer that attends to all tokens, or to those less than `window`
        away."""
        dim = self.hidden_size // self.num_attention_heads
        return AttentionSpec(
            num_heads=self.num_attention_heads,
            num_kv_heads=self.num_attention_heads,
            head_dim=dim,
            scale=dim**-0.5,
            sliding_window=window,
            bidirectional=True,
        )

    def cache_specs(self) -> Sequence[AttentionSpec]:
        return [self.spec()] * self.num_hidden_layers
