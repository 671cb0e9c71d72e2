"""Experts whose matrices stay in the host's memory.

Suffixes: T tokens, D hidden, K experts of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from inferno.device.staging import arriving, given_to


class HostExperts(nn.Module):
    """A group of experts that the host computes, while the device computes the others. What comes
    and goes are a token's hidden state, its experts and their weights, not a matrix."""

    def __init__(self, group: nn.Module) -> None:
        """`group` is an `ExpertGroup` on the CPU."""
        super().__init__()
        self.group = group
        self.copied = False
        """Whether to copy on the CPU too, as for other devices. For tests."""

    def start(
        self, x_TD: Tensor, experts_TK: Tensor, weights_TK: Tensor, fitted: bool = False
    ) -> Callable[[], Tensor | None]:
        """Start copies to the host, behind what the device has been given so far. Returns what
        waits for them and then returns each token's weighted sum over its experts of the group, on
        the device, (T, D); None: no token has any. Call it once the device's own work is under way.

        Where the device is the host, a step has the same rows whatever the values are, unless it is
        `fitted`, and can be captured."""
        if x_TD.device.type == "cpu" and not self.copied:
            return partial(self.group, x_TD, experts_TK, weights_TK, fitted)
        wait = arriving((x_TD, experts_TK, weights_TK))

        def compute() -> Tensor | None:
            y_TD: Tensor | None = self.group(*wait(), fitted=True)
            return None if y_TD is None else given_to(x_TD.device, y_TD)

        return compute
