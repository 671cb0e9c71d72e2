"""A view of checkpoints under the model's names: the language model as if it were stored alone, and
every expert with matrices of its own. Imports no torch.

Qwen3.5 is stored beside a vision tower, which is read if the model sees images. Where a layer's
experts are one tensor, its first axis is the expert, and of `gate_up_proj` the gate's rows come
first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from inferno.configs import ENCODER
from inferno.contracts import Checkpoint, RowRange, RowsView, SeeingPart, expert_rows

_VISION = re.compile(r"(model\.)?visual\.")
_LANGUAGE = re.compile(r"^(model\.language_model|language_model\.model)\.")
_NUMBERED = re.compile(r"model\.layers\.(\d+)\.(.+)")
_SHARED = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
_STACK = re.compile(r"(.*\.experts)\.(gate_up_proj|down_proj)")


def text_part(checkpoint: Checkpoint) -> Checkpoint:
    """Raises CheckpointError for a tensor that cannot be a stack of experts."""
    names = (name for name in checkpoint.tensors if not _VISION.match(name))
    layers = checkpoint.config.get("num_hidden_layers")
    return _split(
        checkpoint, {name: predicting(_LANGUAGE.sub("model.", name), layers) for name in names}
    )


def predicting(name: str, layers: object) -> str:
    """Return the name of a tensor of multi-token prediction, which some files store as layers after
    the last one; what these share is in the first of them."""
    match = _NUMBERED.fullmatch(name)
    if match is None or not isinstance(layers, int) or int(match[1]) < layers:
        return name
    is_shared = match[2].partition(".")[0] in _SHARED
    return f"mtp.{match[2]}" if is_shared else f"mtp.layers.{int(match[1]) - layers}.{match[2]}"


def seeing(checkpoint: Checkpoint) -> Checkpoint:
    """The same with the vision tower, under `visual`."""
    modules: dict[str, tuple[str, ...]] = {ENCODER: ("model.visual", ENCODER)}
    if any(name.startswith("mtp.") for name in checkpoint.tensors):
        modules["mtp"] = ("mtp",)
    part = SeeingPart(checkpoint, modules=modules)
    layers = part.config.get("num_hidden_layers")
    return _split(part, {name: predicting(name, layers) for name in part.tensors})


def _split(checkpoint: Checkpoint, names: Mapping[str, str]) -> Checkpoint:
    """View tensors under other names, stacks of experts as their matrices."""
    ranges: dict[str, RowRange] = {}
    for stored, name in names.items():
        info = checkpoint.tensors[stored]
        if (stack := _STACK.fullmatch(name)) is None:
            ranges[name] = RowRange(stored)
            continue
        experts, matrix = stack.groups()
        parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
        ranges |= expert_rows(stored, info, experts, parts)
    return RowsView(checkpoint, ranges)
