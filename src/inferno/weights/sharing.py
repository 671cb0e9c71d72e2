"""What a rank loads of a model that several share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
import torch
from torch import Tensor, nn

from inferno.contracts import Along, HeldMatrix, StoredMatrix
from inferno.errors import OptionError, PluginError
from inferno.nn import Attention, Cut, Experts, State
from inferno.plan import Opened, Plan
from inferno.plan.plan import pattern_of


def check_ranks(opened: Opened) -> None:
    """Raise OptionError if the plan has several ranks, and no others are here, or engines."""
    if opened.plan.engines is not None:
        raise OptionError(
            "this command computes in one process, and the plan has several engines",
            "Leave --dp out.",
        )
    if opened.plan.ranks is not None and opened.communicator is None:
        raise OptionError(
            "this command computes in one process, and the plan has several ranks",
            "Leave --tp and --pp out.",
        )


def cuts_of(module: nn.Module) -> Mapping[str, Cut]:
    """Return what is kept of a module's parameters and its weight, by name."""
    cuts: Mapping[str, Cut] = getattr(module, "cuts", {})
    return cuts


def kept_shape(module: nn.Module, whole: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that are kept of a module's matrix."""
    cut = cuts_of(module).get("weight")
    return whole if cut is None else cut.shape(whole)


def kept(module: nn.Module, part: str, tensor: Tensor) -> Tensor:
    """Return what is kept of a parameter."""
    cut = cuts_of(module).get(part)
    return tensor if cut is None else cut.of(tensor)


def cut_before(
    cut: Cut | None,
    matrix: StoredMatrix,
    tensors: Mapping[str, Tensor],
    shape: tuple[int, int],
    holds: Callable[[StoredMatrix], HeldMatrix],
) -> tuple[StoredMatrix, Mapping[str, Tensor], bool]:
    """Cut stored tensors before their scheme sees them, so that no other page of their file is
    read: a tensor that has the matrix's own shape, and those of which `holds` says how they lie
    along it. Returns the matrix that is then stored, its tensors, and whether they were cut: if
    not, the scheme's weight is."""
    whole = matrix, tensors, False
    if cut is None:
        return whole
    dense = [info.shape for info in matrix.parts.values()] == [shape]
    held = None if dense else holds(matrix)
    along = dict.fromkeys(tensors, _DENSE) if held is None else held.along
    if not dense and cut.axis and len(cut.ranges) > 1:
        return whole  # groups would not follow each other
    pieces = dict(tensors)
    for part in along.keys() & pieces.keys():
        if (place := along[part][cut.axis]) is None:
            continue
        axis, values, stored = place
        if any(end % values and end < shape[cut.axis] for each in cut.ranges for end in each):
            return whole
        of_part = Cut(axis, cut.ranges).of(pieces[part], values, stored)
        pieces[part] = of_part.clone(memory_format=torch.contiguous_format) if axis else of_part
    infos = {
        part: attrs.evolve(info, shape=tuple(pieces[part].shape), nbytes=pieces[part].nbytes)
        for part, info in matrix.parts.items()
    }
    part_of_it = attrs.evolve(matrix, parts=infos)
    if not along or (held is not None and holds(part_of_it).layout != held.layout):
        return whole  # its columns would be in other groups
    return part_of_it, pieces, True


_DENSE: Along = ((0, 1, 1), (1, 1, 1))


def check_shares(model: nn.Module, matrices: Mapping[str, nn.Module], plan: Plan) -> None:
    """Raise PluginError unless the model's modules are divided as the plan says: its memory,
    kernels and cache are chosen by that. `matrices` are those with one, by path."""
    divided = set(plan.ranks.divided) if plan.ranks is not None else set()
    wrong = [
        path
        for path, module in matrices.items()
        if ("weight" in cuts_of(module)) != (pattern_of(path) in divided)
    ]
    by = plan.ranks or plan.dealt
    if by is not None and (shard := by.shard).experts:
        mixtures = {path for path, module in model.named_modules() if isinstance(module, Experts)}
        dealt = {each[0] for path in matrices if (each := shard.expert_of(path)) is not None}
        wrong += sorted(mixtures ^ dealt)
    needs = {layer: use.need for use in plan.attention for layer in use.layers}
    for layer in (module for module in model.modules() if isinstance(module, Attention)):
        need = needs.get(layer.layer_id)
        heads = layer.spec.num_heads, layer.spec.num_kv_heads
        if need is not None and heads != (need.num_heads, need.num_kv_heads):
            wrong.append(f"attention layer {layer.layer_id}")
    specs = {layer: use.spec for use in plan.states for layer in use.layers}
    for state in (module for module in model.modules() if isinstance(module, State)):
        if specs.get(state.layer_id, state.spec) != state.spec:
            wrong.append(f"state {state.layer_id}")
    if wrong:
        raise PluginError(
            f"{plan.architecture} divides {', '.join(wrong[:4])} among ranks otherwise than it "
            "declares",
            "Leave --tp out, and report this to the plugin's authors.",
        )
