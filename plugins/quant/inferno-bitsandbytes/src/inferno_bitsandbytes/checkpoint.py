"""Views a checkpoint with 4-bit matrices so that a module's tensors are its parts, and its codes
have rows. Imports no torch.

Stored are `proj.weight`, codes without a shape, and beside it `proj.weight.absmax`,
`proj.weight.quant_state.bitsandbytes__nf4` and others. The latter is JSON with the shape.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.contracts import Checkpoint, CheckpointView, TensorInfo, peek
from inferno.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

STATES = ("bitsandbytes__nf4", "bitsandbytes__fp4")
"""Parts with the JSON, by the kind of the codes."""
LARGEST = 4096
"""Bytes of JSON that are read: writers need about 200."""


@frozen(eq=False)
class Bits4(CheckpointView):
    """A checkpoint whose 4-bit codes are uint8 (O, I / 2)."""

    tensors: Mapping[str, TensorInfo]
    names: Mapping[str, str]
    """The stored names of tensors that are renamed here."""
    codes: frozenset[str]
    """The names of codes."""

    def read(self, name: str) -> Tensor:
        tensor = self.checkpoint.read(self.names.get(name, name))
        if name not in self.codes:
            return tensor
        import torch

        return tensor.reshape(-1).view(torch.uint8).view(self.tensors[name].shape)

    def peek(self, name: str) -> bytes:
        return peek(self.checkpoint, self.names.get(name, name))


def adapt(checkpoint: Checkpoint) -> Checkpoint:
    """Return the view, or a checkpoint without such matrices as it is. Raises CheckpointError for a
    shape that contradicts the codes."""
    stored = checkpoint.tensors
    ends = {f".weight.quant_state.{state}": state for state in STATES}
    tensors, names, codes = dict(stored), dict[str, str](), set[str]()
    for name in stored:
        end = next((end for end in ends if name.endswith(end)), None)
        if end is None or (weight := name.removesuffix(end) + ".weight") not in stored:
            continue
        if (size := stored[name].nbytes) > LARGEST:
            raise _damaged(name, f"has {size} bytes")
        rows, columns = shape_of(name, state_of(name, peek(checkpoint, name)))
        nbytes = stored[weight].nbytes
        if rows * columns != 2 * nbytes or columns % 2:
            raise _damaged(name, f"says {rows} x {columns}, but {nbytes} bytes are stored")
        tensors[weight] = TensorInfo("uint8", (rows, columns // 2), nbytes)
        codes.add(weight)
    for name in stored:
        module, infix, part = name.partition(".weight.")
        if infix and f"{module}.weight" in codes:
            alias = f"{module}.{part.rpartition('.')[2]}"
            tensors[alias], names[alias] = tensors.pop(name), name
    return Bits4(checkpoint, tensors, names, frozenset(codes)) if codes else checkpoint


def state_of(name: str, data: bytes) -> Mapping[str, Any]:
    """Return the description of a matrix from its JSON. Raises CheckpointError."""
    try:
        state = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _damaged(name, f"is not JSON: {error}") from None
    if not isinstance(state, dict):
        raise _damaged(name, "is not a JSON object")
    return state


def shape_of(name: str, state: Mapping[str, Any]) -> tuple[int, int]:
    """Return rows and columns. Raises CheckpointError."""
    shape = state.get("shape")
    if not isinstance(shape, list) or not all(type(n) is int and n > 0 for n in shape):
        raise _damaged(name, f"has the shape {shape!r}")
    if len(shape) != 2:
        raise _damaged(name, f"describes a tensor of {len(shape)} dimensions")
    return shape[0], math.prod(shape[1:])


def _damaged(name: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{name} {what}", "The checkpoint is damaged: download or quantize it again."
    )
