"""Pipeline stages: a model of which some layers are those of other processes.

Suffixes: N rows, the most that a step has; T tokens of the step, D hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from attrs import frozen
from torch import Tensor, nn

from inferno.contracts import LayerSpan


@frozen(eq=False)
class Edges:
    """The memory of the hidden states that go from one stage to the next. It stays where it is, so
    that captured steps read and write it as any other."""

    received_ND: Tensor | None = None
    """Those of the stage before; None: this is the first one."""
    passed_ND: Tensor | None = None
    """Those for the stage after; None: this is the last one."""

    def begin(self, embed: Callable[[Tensor], Tensor], token_ids_T: Tensor) -> Tensor:
        """Return the input of the stage's first layer."""
        if self.received_ND is None:
            return embed(token_ids_T)
        return self.received_ND[: len(token_ids_T)]

    def end(
        self,
        normalize: Callable[[Tensor, Tensor | None], Tensor],
        x_TD: Tensor,
        delta_TD: Tensor | None,
    ) -> Tensor:
        """Return the model's hidden states, normalized; or pass on x + delta, which the next
        layer's norm adds first, with the same rounding."""
        if self.passed_ND is None:
            return normalize(x_TD, delta_TD)
        passed_TD = self.passed_ND[: len(x_TD)]
        return passed_TD.copy_(x_TD if delta_TD is None else x_TD + delta_TD)


WHOLE = Edges()
"""Those of a model that has all layers."""


class Absent(nn.Module):
    """What another stage has: it has no tensors, and nothing calls it."""


@runtime_checkable
class Staged(Protocol):
    """A module of which a pipeline stage may have some layers."""

    def keep_layers(self, span: LayerSpan, edges: Edges) -> None:
        """Keep these layers. Called once, on meta, after the checkpoint is paired with the whole
        model."""
        ...


def keep_layers(layers: nn.ModuleList, span: LayerSpan) -> None:
    """Replace the layers of other stages."""
    assert len(layers) == span.layers, "the config says how many layers there are"
    for index in {*range(len(layers))} - {*range(span.first, span.stop)}:
        layers[index] = Absent()


def present(layers: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Yield this stage's layers."""
    return (layer for layer in layers if not isinstance(layer, Absent))
