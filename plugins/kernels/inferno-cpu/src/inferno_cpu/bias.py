"""Biases as the kernels add them to sums."""

from __future__ import annotations

from attrs import define, field
from torch import Tensor


@define(eq=False)
class FloatBias:
    """A layer's bias in float32, converted once: the layer passes the same one in every call."""

    _given: Tensor | None = field(init=False, default=None)
    _converted: Tensor | None = field(init=False, default=None)

    def of(self, bias_O: Tensor | None) -> Tensor | None:
        """Return this bias in float32, which stays at the same address."""
        if bias_O is not self._given:
            self._given, self._converted = bias_O, None if bias_O is None else bias_O.float()
        return self._converted
