"""A view of a checkpoint under the names of transformers' modules, if it stores other names or its
experts one by one. Imports no torch before a tensor is read."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from inferno.contracts import (
    DTYPE_BYTES,
    Checkpoint,
    CheckpointView,
    RenamedView,
    TensorInfo,
    with_tied_head,
)
from inferno.errors import CheckpointError
from inferno_transformers.config import HostedConfig, ask
from inferno_transformers.refusals import HEAD_BIAS

if TYPE_CHECKING:
    from torch import Tensor


def adapt(checkpoint: Checkpoint) -> Checkpoint:
    """View a checkpoint, or return it unchanged if it stores the module's tensors. Raises
    UnsupportedError for a model that cannot be hosted."""
    checkpoint = with_tied_head(checkpoint)
    config = HostedConfig.from_json(checkpoint.config)
    checkpoint = _with_bias_of_head(checkpoint, config.parameters)
    if checkpoint.tensors.keys() <= config.parameters:
        return checkpoint
    question = {"config": dict(checkpoint.config), "names": sorted(checkpoint.tensors)}
    told = ask("conversion:recipes", json.dumps(question, sort_keys=True))
    return Adapted(
        checkpoint,
        {name: Recipe(sources, operations) for name, (sources, operations) in told.items()},
    )


def _with_bias_of_head(checkpoint: Checkpoint, parameters: Collection[str]) -> Checkpoint:
    """View a head's bias under the name that is computed with, where the model has it twice
    (`HEAD_BIAS`) and checkpoints store one."""
    names = {name: name for name in checkpoint.tensors}
    for name in checkpoint.tensors:
        other = f"{name.removesuffix('.bias')}{HEAD_BIAS}"
        if name.endswith(".bias") and {name, other} <= set(parameters):
            names.setdefault(other, names.pop(name))
    return (
        checkpoint if names.keys() == checkpoint.tensors.keys() else RenamedView(checkpoint, names)
    )


@frozen
class Recipe:
    """How stored tensors become one, by `operations`: each inner list is stacked, the results are
    concatenated, and what there is then is transposed, or a part of it is taken."""

    sources: Sequence[Sequence[str]]
    operations: Sequence[Sequence[Any]]
    """Each has a name, a dimension, and numbers: another dimension to transpose with, or a part's
    first row, its number of rows, and the number of rows of all parts."""

    def info(self, stored: Mapping[str, TensorInfo]) -> TensorInfo:
        """The result's header, from the sources' headers. Raises CheckpointError if the sources do
        not fit."""
        infos = [[stored[name] for name in names] for names in self.sources]
        if not self.operations:
            return infos[0][0]
        first, names = infos[0][0], [name for names in self.sources for name in names]
        kinds = {(info.dtype, len(info.shape)) for row in infos for info in row}
        unfit = CheckpointError(
            f"{names[0]} and {names[-1]} do not fit together",
            "Check the checkpoint: one tensor of the model is made of them, so types and sizes "
            "must agree.",
        )
        if len(kinds) > 1 or any(len({info.shape for info in row}) > 1 for row in infos):
            raise unfit
        try:
            [shape] = self._shapes([list(row[0].shape) for row in infos], infos)
        except (IndexError, ValueError) as error:  # fewer dimensions, or more than one tensor
            raise unfit from error
        return TensorInfo(first.dtype, tuple(shape), math.prod(shape) * DTYPE_BYTES[first.dtype])

    def _shapes(
        self, shapes: list[list[int]], infos: Sequence[Sequence[TensorInfo]]
    ) -> list[list[int]]:
        for operation, dim, *numbers in self.operations:
            if operation == "MergeModulelist":
                for shape, row in zip(shapes, infos, strict=True):
                    shape.insert(dim, len(row))
            elif operation == "Concatenate":
                if len({(*shape[:dim], *shape[dim + 1 :]) for shape in shapes}) > 1:
                    raise ValueError("other dimensions differ")
                shapes = [
                    [*shapes[0][:dim], sum(shape[dim] for shape in shapes), *shapes[0][dim + 1 :]]
                ]
            elif operation == "Transpose":
                for shape in shapes:
                    shape[dim], shape[numbers[0]] = shape[numbers[0]], shape[dim]
            else:
                for shape in shapes:
                    if shape[dim] != numbers[2]:
                        raise CheckpointError(
                            f"{self.sources[0][0]} has {shape[dim]} rows, and the model's parts "
                            f"of it have {numbers[2]} together",
                            "Check the checkpoint and its config.json.",
                        )
                    shape[dim] = numbers[1]
        return shapes

    def read(self, checkpoint: Checkpoint) -> Tensor:
        import torch

        rows = [[checkpoint.read(name) for name in names] for names in self.sources]
        for operation, dim, *numbers in self.operations:
            if operation == "MergeModulelist":
                rows = [[torch.stack(row, dim)] for row in rows]
            elif operation == "Concatenate":
                rows = [[torch.cat([tensor for row in rows for tensor in row], dim)]]
            elif operation == "Transpose":
                rows = [[each.transpose(dim, numbers[0]) for each in row] for row in rows]
            else:
                rows = [[each.narrow(dim, *numbers[:2]) for each in row] for row in rows]
        [[tensor]] = rows
        return tensor.contiguous()


@frozen(eq=False)
class Adapted(CheckpointView):
    """A checkpoint whose tensors are made by recipes."""

    recipes: Mapping[str, Recipe]
    tensors: Mapping[str, TensorInfo] = field(init=False)

    def __attrs_post_init__(self) -> None:
        infos = {
            name: recipe.info(self.checkpoint.tensors) for name, recipe in self.recipes.items()
        }
        object.__setattr__(self, "tensors", infos)

    def read(self, name: str) -> Tensor:
        return self.recipes[name].read(self.checkpoint)
