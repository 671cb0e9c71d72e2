"""Loads a plan's model: build, pair, fill, finalize. Runs once, top to bottom."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from inferno.contracts import (
    MTP,
    Attend,
    AttentionNeed,
    Capture,
    Drafter,
    DraftParts,
    Model,
    StoredMatrix,
    TensorInfo,
)
from inferno.device import GraphCapture, WeightStream, check_device, device_errors
from inferno.errors import CheckpointError, PluginError
from inferno.nn import (
    Attention,
    ByStep,
    Finalize,
    State,
    Unloaded,
    Weight,
    finalize,
)
from inferno.nn.attention import is_single
from inferno.nn.batch import Batch
from inferno.nn.fetching import Fetching
from inferno.nn.in_vectors import always_in_vectors
from inferno.nn.layer import Attends
from inferno.nn.weight import Later
from inferno.ops.reference import Ops
from inferno.plan import CUDA_GRAPHS, Opened, Plan, quant_config_of
from inferno.weights.dtypes import dtype_of
from inferno.weights.fetched import choose_way, fetching_of
from inferno.weights.kernels import ops_named, ops_of, stack_of
from inferno.weights.packing import PackedWeights
from inferno.weights.pairing import Stored, join, pair, stored_modules, stored_mtp_modules
from inferno.weights.pipeline import divided, of_rank, on_host
from inferno.weights.quantizing import Quantizing
from inferno.weights.sharing import check_ranks, check_shares, cut_before, cuts_of, kept, kept_shape


def load_model(opened: Opened, packed: PackedWeights | None = None) -> nn.Module:
    """Return the plan's model: weights loaded, every layer bound to its kernels and backend.
    Matrices that are in `packed` are taken from there, and others are put there."""
    plan = opened.plan
    check_ranks(opened)
    check_device(plan.device)
    torch.set_num_threads(plan.threads)  # for steps, and for packing weights
    model = build(opened)
    with device_errors(plan.device, "load the weights"):
        fill(model, opened, packed)
        check_layers(model, plan, range(len(opened.config.cache_specs())))
        fetching = fetching_of(opened)
        _finalized(model, opened, packed, fetching)
        if fetching is not None:
            choose_way(model, opened, fetching)
        return model


def load_mtp(opened: Opened, model: nn.Module) -> nn.Module:
    """Return the model's multi-token-prediction layers, loaded likewise."""
    layers, first = build_mtp(opened, model), len(opened.config.cache_specs())
    _fill(layers, stored_mtp_modules(opened), opened, whole=False)
    check_layers(layers, opened.plan, range(first, sys.maxsize))
    return _finalized(layers, opened)


def _finalized(
    module: nn.Module,
    opened: Opened,
    packed: PackedWeights | None = None,
    fetching: Fetching | None = None,
) -> nn.Module:
    needs = {layer: use.need for use in opened.plan.attention for layer in use.layers}
    host = opened.plan.host_experts
    at_host = () if host is None else host.kernels
    finalize(
        module,
        Finalize(
            stack=stack_of(opened, opened.plan.kernels, packed),
            ops=ops_of(opened),
            host_stack=stack_of(opened, at_host, packed),
            host_ops=Ops(**ops_named(opened, at_host)),
            fetching=fetching,
            fetch_from=None if host is None or host.fetch is None else host.fetch.from_tokens,
            attend=attention_of(opened),
            need=needs.get,
            max_model_len=opened.plan.max_model_len,
            batch_invariant=opened.plan.batch_invariant,
        ),
    )
    if opened.plan.batch_invariant:
        for name in ("forward", "logits"):
            if (compute := getattr(module, name, None)) is not None:
                setattr(module, name, always_in_vectors(compute))
    return module.eval().requires_grad_(False)


def load_drafter(opened: Opened, model: nn.Module, draft: nn.Module | None) -> Drafter | None:
    """Return the plan's proposer of drafts, if it has one. A draft model's layers are numbered
    after the model's, as in the plan."""
    plan, proposer = opened.plan, opened.parts.proposer
    if plan.speculation is None or proposer is None:
        return None
    max_model_len = plan.max_model_len
    if draft is not None:
        assert opened.draft is not None, "the draft model was loaded from it"
        max_model_len = min(max_model_len, opened.draft.plan.max_model_len)
        first = len(opened.config.cache_specs())
        for module in draft.modules():
            if isinstance(module, Attention):
                module.layer_id += first
    mtp = load_mtp(opened, model) if proposer.needs == "mtp" else None
    parts = DraftParts(
        model=cast(Model, model),
        draft=cast(Model | None, draft),
        mtp=cast(MTP | None, mtp),
        max_model_len=max_model_len,
    )
    return proposer.build(parts)


def build(opened: Opened) -> nn.Module:
    """Build the plan's model without memory, on meta."""
    config, stored = opened.config, len(opened.checkpoint.tensors)
    # Each stores tensors: do not build thousands of modules only to find none stored.
    for name in ("num_hidden_layers", "num_experts"):
        if isinstance(number := getattr(config, name, 0), int) and number > stored:
            raise CheckpointError(
                f"config.json: {name} is {number}, but {stored} tensors are stored",
                "The checkpoint and its config.json belong to different models, or are damaged.",
            )
    with torch.device("meta"):
        model: nn.Module = opened.parts.architecture.build(config)
    divided(model, opened)
    return model


def build_mtp(opened: Opened, model: nn.Module) -> nn.Module:
    """Build the multi-token-prediction layers of a model, on meta."""
    make = opened.parts.architecture.mtp
    assert make is not None, "the plan has refused models without them"
    with torch.device("meta"):
        layers: nn.Module = make(opened.config, model)
    if not opened.shard.own_tokens:
        divided(layers, opened)
    return layers


def check(opened: Opened) -> int:
    """Compare names and shapes in the checkpoint's headers with the model. Returns the number of
    tensors, without reading any."""
    model, proposer = build(opened), opened.parts.proposer
    pair(model, stored_modules(opened))
    if proposer is not None and proposer.needs == "mtp":
        pair(build_mtp(opened, model), stored_mtp_modules(opened))
    return len(opened.checkpoint.tensors)


def fill(model: nn.Module, opened: Opened, packed: PackedWeights | None = None) -> None:
    """Give every module of the model its tensors: parameters, and a weight of the scheme that the
    plan chose, which is not read yet if `packed` has it."""
    _fill(model, stored_modules(opened), opened, packed)


def _fill(
    model: nn.Module,
    modules: Mapping[str, Mapping[str, TensorInfo]],
    opened: Opened,
    packed: PackedWeights | None = None,
    *,
    whole: bool = True,
) -> None:
    """Fill a `whole` model, or layers beside it."""
    plan, pairs = opened.plan, of_rank(model, pair(model, modules), opened, whole=whole)
    shapes = {
        each.path: placeholder.shape
        for each in pairs
        if (placeholder := _held(each.module)) is not None
    }
    matrices = {each.path: each.module for each in pairs if each.path in shapes}
    check_shares(model, matrices, plan)
    quantizing = Quantizing.of(
        opened, shapes, read=lambda path: packed is None or not packed.covers(path)
    )
    to_device, to_host = WeightStream(plan.device.torch_name), WeightStream("cpu")
    hosted = on_host(model, opened)
    for stored in pairs:
        module, path = stored.module, stored.path
        stream = to_host if module in hosted else to_device
        for part, _ in list(module.named_parameters(recurse=False)):
            dtype = torch.float32 if part in stored.keep_fp32 else dtype_of(plan)
            tensor = stream(kept(module, part, _read(stored, part, opened))).to(dtype)
            setattr(module, part, nn.Parameter(tensor, requires_grad=False))
        if (placeholder := _held(module)) is not None:
            load = partial(_weight_of, stored, opened, placeholder.shape, quantizing, stream)
            later = Later(kept_shape(module, placeholder.shape), path, load)
            covered = packed is not None and packed.covers(path)
            module.weight = later if covered else later.loaded()
        # Move tables that the model computed to the device; nothing may remain on meta.
        for name, buffer in list(module.named_buffers(recurse=False)):
            assert not buffer.is_meta, (
                f"{type(module).__name__}.{name} was built on meta: compute it on the CPU"
            )
            setattr(module, name, buffer.to(stream.device))


def _held(module: nn.Module) -> Unloaded | None:
    """Return the placeholder of the module's matrix, if it has one."""
    weight = getattr(module, "weight", None)
    return weight if isinstance(weight, Unloaded) else None


def _read(stored: Stored, part: str, opened: Opened) -> Tensor:
    return opened.checkpoint.read(join(stored.path, part))


def _weight_of(
    stored: Stored,
    opened: Opened,
    shape: tuple[int, int],
    quantizing: Quantizing | None,
    stream: WeightStream,
) -> Weight:
    """Return the module's matrix, as its scheme loads it or in-situ quantization makes it."""
    plan, module, path = opened.plan, stored.module, stored.path
    parameters = {part for part, _ in module.named_parameters(recurse=False)}
    infos = {part: info for part, info in stored.parts.items() if part not in parameters}
    if infos.pop("bias", None) and _read(stored, "bias", opened).any():
        raise CheckpointError(
            f"{path}.bias is stored, but the model has no such tensor",
            "A bias that the model lacks must be zero: check config.json.",
        )
    name, cut = plan.scheme_of(path), cuts_of(module).get("weight")
    assert name is not None, f"the plan has no scheme for {path}"
    scheme, config = opened.parts.schemes[name], quant_config_of(opened.checkpoint, path)
    matrix = StoredMatrix(path=path, parts=infos, quant_config=config)
    whole = {part: _read(stored, part, opened) for part in infos}
    matrix, read, was_cut = cut_before(
        cut, matrix, whole, shape, lambda part: scheme.holds(part, plan.dtype)
    )
    tensors = {part: stream(tensor) for part, tensor in read.items()}
    try:
        weight: Weight = scheme.load(matrix, tensors, dtype=plan.dtype)
    except CheckpointError as error:
        error.cause = f"{path}: {error.cause}"
        raise
    except KeyError as error:
        cause = f"{path}: {name} needs a tensor {error}, and there are {sorted(tensors)!r}"
        raise CheckpointError(cause, "The checkpoint is damaged: get it again.") from error
    wanted = kept_shape(module, shape) if was_cut else shape
    if weight.shape != wanted:
        raise CheckpointError(
            f"{path}: {name} holds {weight.shape}, the model needs {wanted}",
            "The checkpoint and its config.json belong to different models.",
        )
    if cut is not None and not was_cut:
        weight = weight.cut(cut)
    if quantizing is not None:
        weight = quantizing(path, weight, cut)
    weight.source = path
    return weight


def attention_of(opened: Opened) -> Attends:
    """Return what builds the backend of each attention layer."""
    backends = opened.parts.attention
    uses = {layer: use for use in opened.plan.attention for layer in use.layers}

    def build(layer_id: int, need: AttentionNeed | None = None) -> Attend:
        use = uses[layer_id]
        attend = backends[use.name].build(need or use.need)
        if use.tokens is None:
            return attend
        return ByStep(attend, backends[use.tokens.name].build(need or use.need))

    return build


def begin_of(opened: Opened, plan: Plan) -> Callable[[Batch], None] | None:
    """Return what calls the `begin` of every attention backend that has one, with the step as this
    plan's cache groups see it; None if none has."""
    backends, uses = opened.parts.attention, plan.attention
    group_of = {layer: i for i, group in enumerate(plan.groups) for layer in group.layers}
    begins = [
        (
            use.need,
            group_of[use.layers[0]],
            backends[use.name].begin,
            backends[use.tokens.name if use.tokens is not None else use.name].begin,
        )
        for use in uses
    ]
    if not any(prompts or tokens for _, _, prompts, tokens in begins):
        return None

    def begin_all(batch: Batch) -> None:
        for need, group, prompts, tokens in begins:
            begin = tokens if is_single(batch) else prompts
            if begin is not None:
                begin(need, batch.of_group(group))

    return begin_all


def check_layers(model: nn.Module, plan: Plan, layers: Container[int]) -> None:
    """Raise PluginError unless the model has the layers that its config declares: those of the
    plan's layers with these ids."""
    for kind, uses in ((Attention, plan.attention), (State, plan.states)):
        built = sorted(m.layer_id for m in model.modules() if isinstance(m, kind))
        promised = sorted(layer for use in uses for layer in use.layers if layer in layers)
        if built != promised:
            raise PluginError(
                f"{plan.architecture} built {len(built)} {kind.__name__} layers, but its config "
                f"declares {len(promised)}, or other ids",
                "Report this to the plugin's authors.",
            )


def capture_of(opened: Opened) -> Capture | None:
    """Return the capture of the model's decode steps that the plan chose, or None."""
    if (use := opened.plan.capture) is None:
        return None
    if use.name == CUDA_GRAPHS:
        return GraphCapture()
    capture = opened.parts.kernels[use.name].capture
    return None if capture is None else capture()
