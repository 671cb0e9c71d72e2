"""Runs modules of transformers that keep a state of each sequence (Mamba, short convolutions,
linear attention) over a packed step.

Such a module is called as transformers calls it: with a whole beginning of one sequence, or with
one token of several, whose states it is given.

Suffixes: T packed tokens, S sequences, N numbers of a sequence's states, one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from inferno.contracts import StateSpec
from inferno.contracts.states import COMPUTE
from inferno.nn import State
from inferno.nn.batch import Batch
from inferno.nn.lora import Adapted, StepSlots
from inferno.nn.recurrence import in_turn, runs

KEPT = "inferno_state"
"""What inferno's state is called in the module that keeps it."""
LISTED = "listed"
"""The prefix of the names of states that modelling code passes as a list (`listed`). Such code can
continue a state with several tokens at once."""


class Kept:
    """The states of sequences alike in a call of a module, as transformers' cache has them: by
    kind and number, (S, ...)."""

    def __init__(self, tensors: Mapping[str, Tensor] | None = None) -> None:
        """None: the sequences begin."""
        self.tensors = dict(tensors or {})

    def conv(self, index: int) -> Tensor | None:
        return self.tensors.get(f"conv{index}")

    def recurrent(self, index: int) -> Tensor | None:
        return self.tensors.get(f"state{index}")

    def listed(self, index: int) -> Tensor | None:
        return self.tensors.get(f"{LISTED}{index}")

    def update_listed(self, new: Tensor, index: int) -> None:
        self.tensors[f"{LISTED}{index}"] = new

    def update_conv(self, new: Tensor, index: int, taps: int | None) -> Tensor:
        """Keep the last `taps` of what a convolution reads; returns what it reads now."""
        name, taps = f"conv{index}", taps or new.shape[-1]
        if (before := self.tensors.get(name)) is not None:
            new = torch.cat([before.to(new.dtype), new], dim=-1)
        elif new.shape[-1] < taps:
            new = pad(new, (taps - new.shape[-1], 0))
        self.tensors[name] = new[..., -taps:]
        return new

    def update_recurrent(self, new: Tensor, index: int) -> Tensor:
        self.tensors[f"state{index}"] = new
        return new

    def holds(self, value: Any) -> bool:
        """Whether it is one of the states: some code returns them too."""
        return any(value is tensor for tensor in self.tensors.values())


def slots_of(module: nn.Module) -> StepSlots | None:
    """The slots that adapted matrices of a module read, in a step with adapters."""
    weights = (getattr(each, "weight", None) for each in module.modules())
    steps = (each.step for each in weights if isinstance(each, Adapted))
    return next((step for step in steps if step.active), None)


def call(
    code: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    kept: State,
    batch: Batch,
    using: Callable[[Kept], Any],
    slots: StepSlots | None,
) -> Any:
    """Call a module's code for a packed step. `using` is a context in which the cache that the code
    was given has these states; `slots` are `slots_of` the module."""
    tokens, spec = int(batch.token_ids_T.shape[0]), kept.spec
    goes_on = all(name.startswith(LISTED) for name in spec.tensors)
    given = [x for x in (*args, *kwargs.values()) if is_of_tokens(x, tokens)]
    count = len(given)
    compute = next(x.dtype for x in given if x.is_floating_point())
    wrap: list[Callable[[Tensor], Any]] = []

    def called(inputs: Sequence[Tensor], states: Kept) -> Tensor:
        """(S, tokens, ...) of such inputs."""
        left, tokens_of = iter(inputs[:count]), inputs[count:]

        def sliced(x: Any) -> Any:
            return next(left) if is_of_tokens(x, tokens) else x

        taking = slots.taking(tokens_of[0].flatten()) if slots else nullcontext()
        with using(states), taking:
            output = code(*map(sliced, args), **{k: sliced(v) for k, v in kwargs.items()})
        y, wrapped = only(output, states)
        wrap.append(wrapped)
        return y

    def rule(
        inputs: Sequence[Tensor], states_SN: Tensor, query_starts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        outputs, new = list[Tensor](), list[Tensor]()
        for first, last in runs(query_starts):
            start, stop, states = query_starts[first], query_starts[last], states_SN[first:last]
            several = stop - start > last - first
            if several and (goes_on or not states.any()):
                whole = Kept(unpacked(states, spec, compute) if goes_on else None)
                outputs.append(called([x_T[None, start:stop] for x_T in inputs], whole)[0])
                new.append(packed(whole.tensors, spec))
                continue
            # One token of each sequence, or those of one in turn: not all code that is given
            # several tokens goes on with a state.
            step = last - first
            for begin in range(start, stop, step):
                holder = Kept(unpacked(states, spec, compute))
                y = called([x_T[begin : begin + step, None] for x_T in inputs], holder)
                outputs.append(y[:, 0])
                states = packed(holder.tensors, spec)
            new.append(states)
        return torch.cat(outputs), torch.cat(new)

    inputs = [x[0] for x in given]
    if slots is not None:
        inputs.append(torch.arange(tokens, device=inputs[0].device))
    states_BN = packed(kept.load(batch), spec)
    y_T, states_SN = in_turn(rule, inputs, states_BN, batch)
    kept.store(batch, **unpacked(states_SN, spec, compute))
    return wrap[0](y_T[None])


def is_of_tokens(value: Any, tokens: int) -> bool:
    """Whether an argument has something for each token of a step: (1, T, ...)."""
    return isinstance(value, Tensor) and value.ndim > 1 and value.shape[:2] == (1, tokens)


def only(found: Any, states: Kept) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The one tensor that a module returns beside its states, and what puts another in its
    place."""
    if isinstance(found, Tensor):
        return found, lambda y: y
    assert isinstance(found, tuple), "the inspection has seen it"
    rest = [None if states.holds(x) else x for x in found]  # a list of states is passed on
    tensors = [i for i, x in enumerate(rest) if isinstance(x, Tensor)]
    assert len(tensors) == 1, "the inspection has seen it"
    [at] = tensors
    return found[at], lambda y: (*rest[:at], y, *rest[at + 1 :])


def packed(tensors: Mapping[str, Tensor], spec: StateSpec) -> Tensor:
    """States as one tensor, (S, N), float32."""
    return torch.cat([tensors[name].float().flatten(1) for name in spec.tensors], dim=1)


def unpacked(states_SN: Tensor, spec: StateSpec, compute: torch.dtype) -> dict[str, Tensor]:
    """Copies, which code may write into."""
    pieces = states_SN.split([math.prod(each.shape) for each in spec.tensors.values()], dim=1)
    return {
        name: piece.reshape(-1, *each.shape)
        .clone()
        .to(compute if each.dtype == COMPUTE else piece.dtype)
        for (name, each), piece in zip(spec.tensors.items(), pieces, strict=True)
    }
