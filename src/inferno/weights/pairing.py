"""Pairs the modules of a model with the tensors that a checkpoint stores for them."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from torch import nn

from inferno.contracts import TensorInfo
from inferno.errors import CheckpointError
from inferno.nn import Layer, Unloaded
from inferno.plan import Opened, modules_of, mtp_tensors, unused_tensors


@frozen(eq=False)
class Stored:
    """A module of the model, and the tensors that the checkpoint stores for it."""

    module: nn.Module
    path: str
    """Its path in the checkpoint."""
    parts: Mapping[str, TensorInfo]
    keep_fp32: frozenset[str]
    """Parameters that stay float32."""


def stored_modules(opened: Opened) -> Mapping[str, Mapping[str, TensorInfo]]:
    """Return what is stored for the model, by module path and part."""
    return modules_of(opened.checkpoint.tensors, unused_tensors(opened.config))


def stored_mtp_modules(opened: Opened) -> Mapping[str, Mapping[str, TensorInfo]]:
    """Return the same for its multi-token-prediction layers."""
    return modules_of(mtp_tensors(opened.checkpoint.tensors, opened.config))


def pair(model: nn.Module, modules: Mapping[str, Mapping[str, TensorInfo]]) -> list[Stored]:
    """Find the tensors stored for each module among `modules`. Raises CheckpointError unless they
    match, judged by headers."""
    stored = dict(modules)
    problems: list[str] = []
    pairs: list[Stored] = []
    exact: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, Layer):
            exact.update(f"{path}.{name}".lstrip(".") for name in module.keep_fp32)
        parameters = dict(module.named_parameters(recurse=False))
        keep_fp32 = frozenset(name for name in parameters if join(path, name) in exact)
        where = checkpoint_path(path)
        parts = stored.pop(where, {})
        problems += _misfits(where, module, parameters, parts)
        pairs.append(Stored(module, where, parts, keep_fp32))
    problems += [
        f"{path}.{part} is stored, but the model has no such tensor"
        for path, p in stored.items()
        for part in p
    ]
    if problems:
        shown = "; ".join(problems[:4]) + (
            f"; and {len(problems) - 4} more" if len(problems) > 4 else ""
        )
        raise CheckpointError(
            shown, "The checkpoint and its config.json belong to different models, or are damaged."
        )
    return pairs


def checkpoint_path(path: str) -> str:
    """Return a module's path in checkpoints: `self_attn.q_proj` for
    `self_attn.qkv.parts.q_proj`."""
    parent, separator, part = path.rpartition(".parts.")
    return f"{parent.rpartition('.')[0]}.{part}".lstrip(".") if separator else path


def join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _misfits(
    path: str,
    module: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    parts: Mapping[str, TensorInfo],
) -> list[str]:
    """Describe tensors that are missing, unexpected or of the wrong shape."""
    problems = []
    wanted = getattr(module, "weight", None)
    for part, param in parameters.items():
        if part not in parts:
            problems.append(f"{path}.{part} is missing")
        elif parts[part].shape != tuple(param.shape):
            problems.append(
                f"{path}.{part} is {parts[part].shape}, the model needs {tuple(param.shape)}"
            )
    if not isinstance(wanted, Unloaded):
        problems += [
            f"{path}.{part} is stored, but the model has no such tensor"
            for part in parts.keys() - parameters.keys()
        ]
        return problems
    matrix = set(parts) - {"bias"}
    if not matrix:
        problems.append(f"{path}.weight is missing")
    elif matrix == {"weight"} and parts["weight"].shape != wanted.shape:
        problems.append(f"{path}.weight is {parts['weight'].shape}, the model needs {wanted.shape}")
    if matrix == {"weight"} and "bias" in parts and getattr(module, "bias", None) is None:
        problems.append(f"{path}.bias is stored, but the model has no such tensor")
    return problems
