"""Reads from a checkpoint's headers which modules it holds and how they are stored."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from fnmatch import fnmatchcase

from inferno.catalog import class_name
from inferno.contracts import (
    COMPUTE_DTYPES,
    Architecture,
    Checkpoint,
    ModelConfig,
    MTPModelConfig,
    TensorInfo,
    TextPart,
    text_config,
    text_part,
)


def adapted(checkpoint: Checkpoint, architecture: Architecture) -> Checkpoint:
    """Return the checkpoint as the architecture sees it: of one that reads more than text, only the
    text part, unless the architecture has its name."""
    if (part := text_part_for(checkpoint, architecture)) is not None:
        checkpoint = part
    return architecture.adapt(checkpoint) if architecture.adapt is not None else checkpoint


def text_part_for(checkpoint: Checkpoint, architecture: Architecture) -> TextPart | None:
    """Return the part of a checkpoint that an architecture made for text computes. None: all of
    it."""
    config = checkpoint.config
    if text_config(config) is None or architecture.is_named(class_name(config)):
        return None
    return text_part(checkpoint)


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
