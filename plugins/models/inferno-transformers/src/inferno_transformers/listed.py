"""RWKV's states as its code has them: a list of five tensors, in which a module reads and writes
those of its layer.

Suffixes: S sequences, D channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, nn

from inferno_transformers.states import Kept
from inferno_transformers.step import current

COUNT = 5
"""Of the feed-forward and of attention the hidden state before; of attention sums of values and of
weights, and the exponent that both are scaled by."""
BEFORE, WEIGHTS, EXPONENT = (0, 1), 3, 4
LEAST = -1e38
"""The exponent of sums of nothing, as transformers' code begins with."""


class ListedStates:
    """What is given to the code as its list. Which module asks, the step knows."""

    def __getitem__(self, index: int | slice) -> Any:
        return [_Listed(number) for number in range(COUNT)][index]


def keeps(module: nn.Module, given: Iterable[Any]) -> bool:
    """Whether it is a module that has a state in the list that it is given: it looks back by one
    token, before it reads the list. A block only passes it on."""
    return hasattr(module, "time_shift") and any(map(is_list, given))


def is_list(value: object) -> bool:
    return isinstance(value, ListedStates)


@frozen
class _Listed:
    """One tensor of the list, of which code asks for `[:, :, layer]`."""

    number: int

    def __getitem__(self, _: object) -> Tensor:
        """A state, (S, D). One before is (S, 1, D), as a token's hidden state is: transformers'
        code takes rows of a batch for its tokens otherwise. One of a beginning is a number."""
        kept = current().kept()
        found = kept.listed(self.number)
        if found is None:
            return torch.tensor(LEAST if self.number == EXPONENT else 0.0)
        if self.number in BEFORE:
            return found[:, None]
        if self.number == EXPONENT:
            # Nothing is kept of a sequence that begins, which leaves zeros here. Its weights are
            # zero, too, and of any other at least one.
            return found.where(_weights(kept) > 0, LEAST)
        return found

    def __setitem__(self, _: object, new: Tensor) -> None:
        current().kept().update_listed(new, self.number)


def _weights(kept: Kept) -> Tensor:
    found = kept.listed(WEIGHTS)
    assert found is not None, "a module keeps both or none"
    return found


def scale_once(model: nn.Module) -> None:
    """Halve what layers add to hidden states where transformers' code would divide their matrices,
    the first time that it runs: every `rescale_every` layers it halves hidden states, so that they
    fit into float16. To halve a matrix's inputs instead gives the same numbers."""
    for decoder in model.modules():
        if not hasattr(decoder, "layers_are_rescaled"):
            continue
        rwkv: Any = decoder
        rwkv.layers_are_rescaled = True
        for number, block in enumerate(rwkv.blocks):
            times = number // every if (every := rwkv.config.rescale_every) > 0 else 0
            for matrix in (block.attention.output, block.feed_forward.value) if times else ():
                matrix.register_forward_pre_hook(_Halved(times))


@frozen
class _Halved:
    times: int

    def __call__(self, _: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (args[0] * 0.5**self.times, *args[1:])
