"""Reads from a checkpoint's headers which modules it holds and how they are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from inferno.contracts import (
    COMPUTE_DTYPES,
    Architecture,
    Checkpoint,
    ModelConfig,
    MTPModelConfig,
    TensorInfo,
)
from inferno.errors import CheckpointError


def architecture_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list | tuple) or not names or not isinstance(names[0], str):
        raise CheckpointError(
            'config.json has no "architectures"', "It must be a list with the model class."
        )
    return names[0]


def adapted(checkpoint: Checkpoint, architecture: Architecture) -> Checkpoint:
    """Return the checkpoint as the architecture sees it."""
    return architecture.adapt(checkpoint) if architecture.adapt is not None else checkpoint


def modules_of(
    tensors: Mapping[str, TensorInfo], unused: tuple[str, ...] = ()
) -> dict[str, dict[str, TensorInfo]]:
    """Return stored tensors by module path and part: {"model.norm": {"weight": ...}}. Names that
    match `unused` are left out."""
    modules: dict[str, dict[str, TensorInfo]] = defaultdict(dict)
    for name, info in tensors.items():
        if not any(fnmatchcase(name, pattern) for pattern in unused):
            path, _, part = name.rpartition(".")
            modules[path][part] = info
    return modules


def matrix_of(parts: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Return the parts that a scheme holds: none for a norm."""
    matrix = {part: info for part, info in parts.items() if part != "bias"}
    if all(info.dtype in COMPUTE_DTYPES for info in matrix.values()):  # only a "weight" can be one
        matrix = {p: info for p, info in matrix.items() if p == "weight" and len(info.shape) == 2}
    return matrix


def unused_tensors(model: ModelConfig) -> tuple[str, ...]:
    """Return name patterns of the tensors that the model itself does not read."""
    return (*getattr(model, "unused_tensors", ()), *_mtp_patterns(model))


def mtp_tensors(tensors: Mapping[str, TensorInfo], model: ModelConfig) -> dict[str, TensorInfo]:
    """Return the stored tensors that the multi-token-prediction layers read."""
    unused, patterns = getattr(model, "unused_tensors", ()), _mtp_patterns(model)
    return {
        name: info
        for name, info in tensors.items()
        if any(fnmatchcase(name, pattern) for pattern in patterns)
        and not any(fnmatchcase(name, pattern) for pattern in unused)
    }


def _mtp_patterns(model: ModelConfig) -> tuple[str, ...]:
    return model.mtp_tensors if isinstance(model, MTPModelConfig) else ()
