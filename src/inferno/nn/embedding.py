from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from inferno.contracts import Shard
from inferno.nn.cut import Cut, Share
from inferno.nn.layer import Finalize, Layer
from inferno.nn.linear import Linear
from inferno.nn.weight import Dense, Unloaded, Weight
from inferno.ops import reference as ops


class Embedding(Layer):
    """Maps token ids to hidden states: the rows of its weight."""

    weight: Weight

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = Unloaded(vocab_size, hidden_size)
        self.cuts: Mapping[str, Cut] = {}
        self.share: Share | None = None
        """Both as a `Linear` has them."""
        self.widths: list[int] = []
        """How many tokens each rank has, if several share them."""
        self.first, self.ops = 0, ops.TORCH

    def divide(self, shard: Shard) -> None:
        """Keep the rows of some tokens."""
        vocab_size = self.weight.shape[0]
        if shard.divides(vocab_size, 1):
            self.widths = [stop - start for start, stop in shard.shares(vocab_size, 1)]
            self.first, stop = shard.share(vocab_size, 1)
            self.cuts = {"weight": Cut(0, ((self.first, stop),))}
            self.share = Share(self.cuts["weight"], self.weight.shape)

    def finalize(self, to: Finalize) -> None:
        self.ops = to.ops
        if isinstance(self.weight, Dense):  # left in place: most of a mapped file is never read
            self.weight.ops = to.ops
        else:
            self.weight = to.stack([self.weight], rows=True) or self.weight

    def forward(self, token_ids_T: Tensor) -> Tensor:
        if not self.widths:
            return self.weight.rows(token_ids_T)
        ids_T = token_ids_T - self.first
        others_T = (ids_T < 0) | (ids_T >= self.weight.shape[0])
        x_TD = self.weight.rows(ids_T.masked_fill(others_T, 0))
        return self.ops.all_reduce(x_TD.masked_fill(others_T[:, None], 0))


class LMHead(Linear):
    """Maps hidden states to logits, in float32."""

    quantizable = False

    def finalize(self, to: Finalize) -> None:
        # As for rows: torch's fastest layouts return no float32.
        self.weight, self.ops = to.stack([self.weight], rows=True) or self.weight, to.ops

    def forward(self, x_SD: Tensor) -> Tensor:
        y_SV = self.weight.matmul_float32(x_SD, self.bias)
        return self.ops.all_gather(y_SV, self.widths) if self.widths else y_SV


class TiedLMHead(Layer):
    """Maps hidden states to logits, in float32, by the embedding's weight. Loads no tensor itself;
    a config whose checkpoints store the tied matrix twice lists it in `unused_tensors`."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        # In a list, so that the embedding is not registered as a second module under another path.
        self._embedding = [embedding]

    @property
    def embedding(self) -> Embedding:
        return self._embedding[0]

    def finalize(self, to: Finalize) -> None:
        if isinstance(self.embedding.weight, Dense):  # else the embedding has packed it
            weight = self.embedding.weight
            self.embedding.weight = to.stack([weight], rows=True) or weight

    def forward(self, x_SD: Tensor) -> Tensor:
        y_SV, widths = self.embedding.weight.matmul_float32(x_SD), self.embedding.widths
        return self.embedding.ops.all_gather(y_SV, widths) if widths else y_SV
