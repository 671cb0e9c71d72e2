"""What a rank loads of a model that several share."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from torch import Tensor, nn

from inferno.contracts import TensorInfo
from inferno.errors import OptionError, PluginError
from inferno.nn import Attention, Cut, State
from inferno.plan import Opened, Plan
from inferno.plan.plan import pattern_of


def check_ranks(opened: Opened) -> None:
    """Raise OptionError if the plan has several ranks, and no others are here, or engines."""
    if opened.plan.engines is not None:
        raise OptionError(
            "this command computes in one process, and the plan has several engines",
            "Leave --dp out.",
        )
    if opened.shard.ranks > 1 and opened.communicator is None:
        raise OptionError(
            "this command computes in one process, and the plan has several ranks",
            "Leave --tp out.",
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
    parts: Mapping[str, TensorInfo],
    tensors: Mapping[str, Tensor],
    shape: tuple[int, int],
) -> tuple[Mapping[str, TensorInfo], Mapping[str, Tensor], bool]:
    """Cut a stored tensor that has the matrix's own shape before its scheme sees it, so that no
    other page of its file is read. Returns the headers, the tensors, and whether they were cut: if
    not, the scheme's weight is."""
    if cut is None or [info.shape for info in parts.values()] != [shape]:
        return parts, tensors, False
    [(part, tensor)] = tensors.items()
    own = cut.of(tensor)
    info = attrs.evolve(parts[part], shape=tuple(own.shape), nbytes=own.nbytes)
    return {part: info}, {part: own}, True


def check_shares(model: nn.Module, matrices: Mapping[str, nn.Module], plan: Plan) -> None:
    """Raise PluginError unless the model's modules are divided as the plan says: its memory,
    kernels and cache are chosen by that. `matrices` are those with one, by path."""
    divided = set(plan.ranks.divided) if plan.ranks is not None else set()
    wrong = [
        path
        for path, module in matrices.items()
        if ("weight" in cuts_of(module)) != (pattern_of(path) in divided)
    ]
    needs = {layer: use.need for use in plan.attention for layer in use.layers}
    for layer in (module for module in model.modules() if isinstance(module, Attention)):
        need = needs.get(layer.layer_id)
        heads = layer.spec.num_heads, layer.spec.num_kv_heads
        if need is not None and heads != (need.num_heads, need.num_kv_heads):
            wrong.append(f"attention layer {layer.layer_id}")
    kept = {layer: use.spec for use in plan.states for layer in use.layers}
    for state in (module for module in model.modules() if isinstance(module, State)):
        if kept.get(state.layer_id, state.spec) != state.spec:
            wrong.append(f"state {state.layer_id}")
    if wrong:
        raise PluginError(
            f"{plan.architecture} divides {', '.join(wrong[:4])} among ranks otherwise than it "
            "declares",
            "Leave --tp out, and report this to the plugin's authors.",
        )
