"""What a rank loads of a model: the modules of its pipeline stage's layers, and its experts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from inferno.contracts import LayerSpan
from inferno.errors import PluginError
from inferno.nn import Absent, DeepstackLayer, Edges, Experts, MediaEncoder, Staged, divide
from inferno.plan import Opened
from inferno.weights.dtypes import dtype_of
from inferno.weights.pairing import Stored


def divided(model: nn.Module, opened: Opened) -> None:
    """Divide a model that is on meta among ranks, or its experts among engines."""
    if (shard := opened.shard).own_tokens:
        for module in model.modules():
            if isinstance(module, Experts):
                module.divide(shard)
    elif shard.ranks > 1:
        divide(model, shard)


def of_rank(
    model: nn.Module, pairs: Sequence[Stored], opened: Opened, *, whole: bool = True
) -> Sequence[Stored]:
    """Drop the layers of other stages, and the experts of other ranks, from a `whole` model that is
    on meta and paired with its checkpoint, or from layers that one stage has all of. Returns the
    pairs of what is left. Raises PluginError if the model does not know of stages."""
    if opened.plan.ranks is None and not opened.shard.experts:
        return pairs
    if (span := opened.span) is not None and whole:
        _keep_layers(model, span, opened)
    for module in model.modules():
        if isinstance(module, Experts):
            module.drop_others()
    left = {*model.modules()}
    return [stored for stored in pairs if stored.module in left]


def on_host(model: nn.Module, opened: Opened) -> set[nn.Module]:
    """Return the modules whose tensors stay in the host's memory: of the experts that the plan
    keeps there."""
    if (use := opened.plan.host_experts) is None:
        return set()
    mixtures = (module for module in model.modules() if isinstance(module, Experts))
    return {module for mixture in mixtures for module in mixture.keep_on_host(use.count)}


def _keep_layers(model: nn.Module, span: LayerSpan, opened: Opened) -> None:
    if not isinstance(model, Staged):
        raise PluginError(
            f"{opened.plan.architecture} does not know of pipeline stages: it has no keep_layers",
            "Leave --pp out, and report this to the plugin's authors.",
        )
    before, after = (None if end else _rows(opened) for end in (span.begins, span.ends))
    model.keep_layers(span, Edges(before, after))
    remaining = {*model.modules()}
    if not span.begins and not any(isinstance(module, DeepstackLayer) for module in remaining):
        _drop_encoders(model)


def _drop_encoders(module: nn.Module) -> None:
    """Replace encoders of images and audio: no layer of this stage reads their results."""
    for name, child in module.named_children():
        if isinstance(child, MediaEncoder):
            setattr(module, name, Absent())
        else:
            _drop_encoders(child)


def _rows(opened: Opened) -> torch.Tensor:
    """Return the memory of the hidden states at an edge of a stage: of as many tokens as a step has
    at most, or a captured one with its padding rows."""
    plan, config = opened.plan, opened.config
    assert plan.ranks is not None, "a plan with stages"
    width: int = getattr(config, "passed_size", getattr(config, "hidden_size", 0))
    single = getattr(config, "residual_in_fp32", False)
    dtype = torch.float32 if single else dtype_of(plan)
    padded = (*plan.capture.sizes, *plan.capture.prompts) if plan.capture is not None else ()
    count = max((plan.max_num_batched_tokens, *padded))
    return torch.zeros(count, width, dtype=dtype, device=plan.device.torch_name)
