from __future__ import annotations

from torch import Tensor

from inferno.nn.layer import Finalize, Layer
from inferno.nn.linear import Linear
from inferno.nn.weight import Dense, Unloaded, Weight


class Embedding(Layer):
    """Maps token ids to hidden states: the rows of its weight."""

    weight: Weight

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.weight = Unloaded(vocab_size, hidden_size)

    def finalize(self, to: Finalize) -> None:
        if isinstance(self.weight, Dense):  # left in place: most of a mapped file is never read
            self.weight.ops = to.ops
        else:
            self.weight = to.stack([self.weight], rows=True) or self.weight

    def forward(self, token_ids_T: Tensor) -> Tensor:
        return self.weight.rows(token_ids_T)


class LMHead(Linear):
    """Maps hidden states to logits, in float32."""

    quantizable = False

    def finalize(self, to: Finalize) -> None:
        # As for rows: torch's fastest layouts return no float32.
        self.weight = to.stack([self.weight], rows=True) or self.weight

    def forward(self, x_SD: Tensor) -> Tensor:
        return self.weight.matmul_float32(x_SD, self.bias)


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
        return self.embedding.weight.matmul_float32(x_SD)
