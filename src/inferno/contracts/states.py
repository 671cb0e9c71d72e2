"""Recurrent states: what a layer keeps of a sequence, however long it is."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from inferno.contracts.attention import CacheTensor


@frozen(kw_only=True)
class StateNeed:
    """A fixed-size recurrent state per sequence: what one layer keeps."""

    tensors: Mapping[str, CacheTensor]
    """By name, shape and type for one sequence."""
