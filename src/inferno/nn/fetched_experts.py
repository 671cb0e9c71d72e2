"""Experts of the host's memory that the device computes: it copies their matrices for a step.

Suffixes: T tokens, D hidden, E experts, K experts of a token, N pairs of a token and one of its
experts.
"""

from __future__ import annotations

import copy
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from inferno.device.side_queue import Mark
from inferno.device.staging import arriving
from inferno.nn.expert_group import ExpertGroup, Mixture, PartOfExperts
from inferno.nn.fetching import Buffer, Fetching
from inferno.nn.layer import Stack
from inferno.nn.linear import Linear
from inferno.nn.weight import Weight, loaded
from inferno.ops.reference import Ops

Module = TypeVar("Module", bound=nn.Module)


class FetchedExperts(PartOfExperts):
    """Experts of a layer that the device fetches from the host's memory, one by one: it copies the
    next ones while it multiplies."""

    def __init__(
        self,
        experts: Mixture,
        own: range,
        stack: Stack,
        ops: Ops,
        local_E: Tensor | None,
        fetching: Fetching,
    ) -> None:
        """Copy these experts, in the final layout that `stack` gives them on the device."""
        on_device = None if local_E is None else local_E.to(fetching.device)
        super().__init__(experts, own, ops, on_device)
        self.fetching = fetching
        moved = Moved(experts, fetching.device)
        alone = (ExpertGroup(moved, range(n, n + 1), stack, ops, None) for n in own)
        self.each = [fetching.keep(group, group.product) for group in alone]
        self.buffers_of_all = fetching.held
        self.fetched = 0
        """How many experts were copied so far."""

    def start(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor
    ) -> Callable[[], Tensor | None]:
        """Sort pairs on the device. Returns what waits until it is known which experts are needed,
        and then enqueues their copies and products; it returns each token's weighted sum over them,
        (T, D), or None: no token has any. Call it once the device's own work is under way."""
        rows = self.dispatched(experts_TK)
        wait = arriving([rows[1]])

        def compute() -> Tensor | None:
            starts = wait()[0].tolist()
            if starts[-1] == 0:
                return None
            product = partial(self._product, starts=starts)
            return self.combined(x_TD, weights_TK, self.fitted(rows, starts[-1]), product)

        return compute

    def _product(self, x_ND: Tensor, starts_E1: Tensor, *, starts: list[int]) -> Tensor:
        """Return what each expert makes of its rows, (N, D). `starts` are those of `starts_E1`."""
        bounds = list(itertools.pairwise(starts))
        needed = [e for e, (start, stop) in enumerate(bounds) if stop > start]
        alone_E2 = F.pad(starts_E1.diff()[:, None], (1, 0))  # the starts of each, by itself
        queue, ahead, under_way = self.fetching.queue, iter(needed), deque[tuple[Buffer, Mark]]()

        def fetch(number: int) -> None:
            expert = self.each[number]
            buffer = expert.buffers.next()
            pairs = list(zip(buffer.tensors, expert.tensors, strict=True))
            under_way.append((buffer, queue.copy(pairs, buffer.free)))
            self.fetched += 1

        for number in itertools.islice(ahead, self._depth(needed)):
            fetch(number)
        y_ND = torch.empty_like(x_ND)
        for number in needed:
            start, stop = bounds[number]
            buffer, arrived = under_way.popleft()
            queue.wait(arrived)
            y_ND[start:stop] = buffer.product(x_ND[start:stop], alone_E2[number])
            buffer.free = queue.mark()
            if (following := next(ahead, None)) is not None:
                fetch(following)
        return y_ND

    def _depth(self, needed: Sequence[int]) -> int:
        """How many copies may be under way: no buffer twice."""
        return min(len(self.each[number].buffers.all) for number in needed)


class Moved:
    """Copies of a mixture's experts on a device, which are made when they are asked for."""

    def __init__(self, experts: Mixture, device: str) -> None:
        self.names, self.gated = experts.names, experts.gated
        self.weighs_inputs = experts.weighs_inputs
        self._experts, self._device = experts, device

    def linear(self, number: int, name: str) -> Linear:
        return moved(self._experts.linear(number, name), self._device)


def moved(module: Module, device: str) -> Module:
    """Return a module with copies of its tensors on a device, and leave it as it is."""
    made: Any = copy.copy(module)

    def there(tensor: Tensor) -> Tensor:
        values = tensor.detach().to(device, copy=True)
        return nn.Parameter(values, False) if isinstance(tensor, nn.Parameter) else values

    plain = {n: there(t) for n, t in vars(module).items() if isinstance(t, Tensor)}
    vars(made).update(plain)
    made._parameters = {n: t if t is None else there(t) for n, t in module._parameters.items()}
    made._buffers = {n: t if t is None else there(t) for n, t in module._buffers.items()}
    children = module._modules.items()
    made._modules = {n: c if c is None else moved(_read(c), device) for n, c in children}
    return cast(Module, made)


def _read(module: nn.Module) -> nn.Module:
    return loaded(module) if isinstance(module, Weight) else module
