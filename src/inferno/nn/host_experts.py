"""Experts whose matrices stay in the host's memory.

Suffixes: T tokens, D hidden, E experts, K experts of a token.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from inferno.device.staging import arriving, given_to
from inferno.errors import UnsupportedError
from inferno.nn.expert_group import ExpertGroup, Mixture
from inferno.nn.fetched_experts import FetchedExperts
from inferno.nn.layer import Finalize


class HostExperts(nn.Module):
    """Experts that the host computes, while the device computes the others: what comes and goes are
    a token's hidden state, its experts and their weights. In steps of many tokens the device may
    fetch their matrices instead."""

    def __init__(
        self,
        group: ExpertGroup | None,
        fetched: FetchedExperts | None = None,
        fetch_from: float = math.inf,
    ) -> None:
        """`group` is on the CPU; without, all steps are fetched."""
        super().__init__()
        assert group is not None or fetched is not None, "one of both computes them"
        self.group, self.fetched = group, fetched
        self.fetching = None if fetched is None else fetched.fetching
        self.fetch_from = fetch_from
        """The fewest tokens of a step whose experts are fetched."""
        self.copied = False
        """Whether to copy on the CPU too, as for other devices. For tests."""

    @classmethod
    def of(cls, experts: Mixture, own: range, local_E: Tensor | None, to: Finalize) -> HostExperts:
        """Take the matrices of experts that stay on the host, whose `places` are `local_E`. Raises
        UnsupportedError if they are to be fetched by an option, and have too many forms."""
        fetched, fetching = None, to.fetching
        if fetching is not None and fetching.fits:
            try:
                fetched = FetchedExperts(experts, own, to.stack, to.ops, local_E, fetching)
            except UnsupportedError:
                if to.fetch_from is not None:
                    raise
        if fetched is not None and to.fetch_from == 1:
            return cls(None, fetched, 1)
        group = ExpertGroup(experts, own, to.host_stack, to.host_ops, local_E)
        made = cls(group, fetched, math.inf if to.fetch_from is None else to.fetch_from)
        made.fetching = fetching
        return made

    def stay(self) -> None:
        """Let the host compute all steps, and free the copies of this layer."""
        assert self.group is not None, "there are both ways"
        self.fetched, self.fetch_from = None, math.inf

    def start(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor, fitted: bool = False
    ) -> Callable[[], Tensor | None]:
        """Start copies to the host, behind what the device has been given so far. Returns what
        waits for them and then returns each token's weighted sum over its experts of the group, on
        the device, (T, D); None: no token has any. Call it once the device's own work is under way.

        Where the device is the host, a step has the same rows whatever the values are, unless it is
        `fitted`, and can be captured. One whose experts are fetched cannot."""
        if self.fetched is not None and (self.group is None or len(x_TD) >= self.fetch_from):
            return self.fetched.start(x_TD, experts_TK, weights_TK)
        return self.computed(x_TD, experts_TK, weights_TK, fitted)

    def computed(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor, fitted: bool = False
    ) -> Callable[[], Tensor | None]:
        """As `start`, of a step that the host computes."""
        assert self.group is not None, "all steps are fetched without"
        if x_TD.device.type == "cpu" and not self.copied:
            return partial(self.group, x_TD, experts_TK, weights_TK, fitted)
        wait, group = arriving((x_TD, experts_TK, weights_TK)), self.group

        def compute() -> Tensor | None:
            y_TD: Tensor | None = group(*wait(), fitted=True)
            return None if y_TD is None else given_to(x_TD.device, y_TD)

        return compute
