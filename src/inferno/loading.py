"""Loads a plan's model: build, pair, fill, finalize. Runs once, top to bottom."""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, cast

import torch
from attrs import frozen
from torch import nn

from inferno.contracts import (
    GROUPED,
    LINEAR,
    MTP,
    Attend,
    Capture,
    Device,
    Drafter,
    DraftParts,
    Model,
    QuantScheme,
    StoredMatrix,
    TensorInfo,
    lazy,
)
from inferno.errors import CheckpointError, DeviceError, PluginError
from inferno.nn import (
    Attention,
    Dense,
    Finalize,
    Layer,
    Linear,
    Stack,
    State,
    Unloaded,
    Weight,
    Wrapper,
    finalize,
    stacked_inside,
)
from inferno.nn.batch import Batch
from inferno.nn.layer import torch_stack
from inferno.nn.ops import Ops
from inferno.plan import Opened, Plan, modules_of, mtp_tensors, unused_tensors


def load_model(opened: Opened) -> nn.Module:
    """Return the plan's model: weights loaded, every layer bound to its kernels and backend."""
    plan = opened.plan
    check_device(plan.device)
    torch.set_num_threads(plan.threads)  # for steps, and for packing weights
    model = build(opened)
    fill(model, opened)
    check_layers(model, plan, range(len(opened.config.cache_specs())))
    return _finalized(model, opened)


def load_mtp(opened: Opened, model: nn.Module) -> nn.Module:
    """Return the model's multi-token-prediction layers, loaded likewise."""
    layers, first = build_mtp(opened, model), len(opened.config.cache_specs())
    _fill(layers, _stored_mtp(opened), opened)
    check_layers(layers, opened.plan, range(first, sys.maxsize))
    return _finalized(layers, opened)


def _finalized(module: nn.Module, opened: Opened) -> nn.Module:
    finalize(
        module,
        Finalize(
            stack=stack_of(opened),
            ops=ops_of(opened),
            attend=attention_of(opened).__getitem__,
            max_model_len=opened.plan.max_model_len,
        ),
    )
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


def check_device(device: Device) -> None:
    """Raise DeviceError unless torch finds the device, and finds the same one under its number."""
    if device.kind == "cpu":
        return
    if device.index >= torch.get_device_module(device.kind).device_count():
        raise DeviceError(
            f"the plan is for {device}, but torch {torch.__version__} finds no such device",
            "Install a build of torch for it, or start with --device cpu.",
        )
    if device.kind == "cuda":
        found = torch.cuda.get_device_properties(device.index)
        # The driver and torch may name a part of a GPU differently.
        same_name = found.name == device.name or "MIG" in f"{found.name} {device.name}"
        if not same_name or (found.major, found.minor) != device.capability:
            raise DeviceError(
                f"the plan is for {device}, but torch finds a {found.name} under that number",
                "Set CUDA_DEVICE_ORDER=PCI_BUS_ID, so that all programs count alike.",
            )


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
    return model


def build_mtp(opened: Opened, model: nn.Module) -> nn.Module:
    """Build the multi-token-prediction layers of a model, on meta."""
    make = opened.parts.architecture.mtp
    assert make is not None, "the plan has refused models without them"
    with torch.device("meta"):
        layers: nn.Module = make(opened.config, model)
    return layers


def check(opened: Opened) -> int:
    """Compare names and shapes in the checkpoint's headers with the model. Returns the number of
    tensors, without reading any."""
    model, proposer = build(opened), opened.parts.proposer
    pair(model, _stored(opened))
    if proposer is not None and proposer.needs == "mtp":
        pair(build_mtp(opened, model), _stored_mtp(opened))
    return len(opened.checkpoint.tensors)


@frozen(eq=False)
class Stored:
    """A module of the model, and the tensors that the checkpoint stores for it."""

    module: nn.Module
    path: str
    """Its path in the checkpoint."""
    parts: Mapping[str, TensorInfo]
    keep_fp32: frozenset[str]
    """Parameters that stay float32."""


def _stored(opened: Opened) -> Mapping[str, Mapping[str, TensorInfo]]:
    """Return what is stored for the model, by module path and part."""
    return modules_of(opened.checkpoint.tensors, unused_tensors(opened.config))


def _stored_mtp(opened: Opened) -> Mapping[str, Mapping[str, TensorInfo]]:
    """Return the same for its multi-token-prediction layers."""
    return modules_of(mtp_tensors(opened.checkpoint.tensors, opened.config))


def pair(model: nn.Module, modules: Mapping[str, Mapping[str, TensorInfo]]) -> list[Stored]:
    """Find the tensors stored for each module among `modules`. Raises CheckpointError unless they
    match, judged by headers."""
    stored = dict(modules)
    problems: list[str] = []
    found: list[Stored] = []
    exact: set[str] = set()
    for path, module in model.named_modules():
        if isinstance(module, Layer):
            exact.update(f"{path}.{name}".lstrip(".") for name in module.keep_fp32)
        kept = {n for n, _ in module.named_parameters(recurse=False) if _join(path, n) in exact}
        parts = stored.pop(checkpoint_path(path), {})
        problems += _misfits(checkpoint_path(path), module, parts)
        found.append(Stored(module, checkpoint_path(path), parts, frozenset(kept)))
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
    return found


def checkpoint_path(path: str) -> str:
    """Return a module's path in checkpoints: `self_attn.q_proj` for
    `self_attn.qkv.parts.q_proj`."""
    parent, found, part = path.rpartition(".parts.")
    return f"{parent.rpartition('.')[0]}.{part}".lstrip(".") if found else path


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _misfits(path: str, module: nn.Module, parts: Mapping[str, TensorInfo]) -> list[str]:
    """Describe tensors that are missing, unexpected or of the wrong shape."""
    problems = []
    wanted = getattr(module, "weight", None)
    for part, param in module.named_parameters(recurse=False):
        if part not in parts:
            problems.append(f"{path}.{part} is missing")
        elif parts[part].shape != tuple(param.shape):
            problems.append(
                f"{path}.{part} is {parts[part].shape}, the model needs {tuple(param.shape)}"
            )
    if not isinstance(wanted, Unloaded):
        own = {name for name, _ in module.named_parameters(recurse=False)}
        problems += [
            f"{path}.{part} is stored, but the model has no such tensor"
            for part in parts.keys() - own
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


def fill(model: nn.Module, opened: Opened) -> None:
    """Give every module of the model its tensors: parameters, and a weight of the scheme that the
    plan chose."""
    _fill(model, _stored(opened), opened)


def _fill(
    model: nn.Module, modules: Mapping[str, Mapping[str, TensorInfo]], opened: Opened
) -> None:
    plan = opened.plan
    isq = opened.parts.schemes[plan.isq] if plan.isq is not None else None
    for stored in pair(model, modules):
        _fill_module(stored, opened)
        module = stored.module
        if isq is not None and isinstance(module, Linear) and module.quantizable:
            module.weight = _packed(module.weight, isq)
        # Move tables that the model computed to the device; nothing may remain on meta.
        for name, buffer in list(module.named_buffers(recurse=False)):
            assert not buffer.is_meta, (
                f"{type(module).__name__}.{name} was built on meta: compute it on the CPU"
            )
            setattr(module, name, buffer.to(plan.device.torch_name))


def _fill_module(stored: Stored, opened: Opened) -> None:
    plan, module, path = opened.plan, stored.module, stored.path
    tensors = {
        part: opened.checkpoint.read(_join(path, part)).to(plan.device.torch_name)
        for part in stored.parts
    }
    for part, _ in list(module.named_parameters(recurse=False)):
        dtype = torch.float32 if part in stored.keep_fp32 else dtype_of(plan)
        setattr(module, part, nn.Parameter(tensors.pop(part).to(dtype), requires_grad=False))
    held = getattr(module, "weight", None)
    if isinstance(held, Unloaded):
        name = plan.scheme_of(path)
        assert name is not None, f"the plan has no scheme for {path}"
        if "bias" in tensors and tensors.pop("bias").any():
            raise CheckpointError(
                f"{path}.bias is stored, but the model has no such tensor",
                "A bias that the model lacks must be zero: check config.json.",
            )
        matrix = StoredMatrix(
            path=path,
            parts={part: stored.parts[part] for part in tensors},
            quant_config=opened.checkpoint.config.get("quantization_config") or {},
        )
        try:
            weight = opened.parts.schemes[name].load(matrix, tensors, dtype=plan.dtype)
        except CheckpointError as error:
            error.cause = f"{path}: {error.cause}"
            raise
        if weight.shape != held.shape:
            raise CheckpointError(
                f"{path}: {name} holds {weight.shape}, the model needs {held.shape}",
                "The checkpoint and its config.json belong to different models.",
            )
        module.weight = weight


def _packed(weight: Weight, scheme: QuantScheme) -> Weight:
    """Quantize a matrix in situ, if it is dense."""
    assert scheme.pack is not None, "the plan refuses schemes that cannot pack"
    return scheme.pack(weight.data) if isinstance(weight, Dense) else weight


def dtype_of(plan: Plan) -> torch.dtype:
    dtype = getattr(torch, plan.dtype)
    assert isinstance(dtype, torch.dtype), "plan.dtype is one of COMPUTE_DTYPES"
    return dtype


def stack_of(opened: Opened) -> Stack:
    """Return the function that gives matrices their final layout: the plan's kernel for their op
    and layout, else torch."""
    products = {
        (use.op, use.layout): lazy.resolved(opened.parts.kernels[use.name].ops[use.op])
        for use in opened.plan.kernels
        if use.op in (LINEAR, GROUPED)
    }

    def stack(
        weights: Sequence[Weight], *, grouped: bool = False, rows: bool = False
    ) -> Weight | None:
        if any(isinstance(weight, Wrapper) for weight in weights):
            return stacked_inside(weights, lambda inner: stack(inner, grouped=grouped, rows=rows))
        [layout, *others] = dict.fromkeys(weight.layout for weight in weights)
        kernel = products.get((GROUPED if grouped else LINEAR, layout))
        if not others and kernel is not None:
            built: Weight | None = kernel(*weights)
            if built is not None:
                return built
        return torch_stack(weights, grouped=grouped, rows=rows)

    return stack


def ops_of(opened: Opened) -> Ops:
    """Return the plan's implementation of each op: its provider's, else torch's."""
    kernels: dict[str, Callable[..., Any]] = {
        use.op: lazy.resolved(opened.parts.kernels[use.name].ops[use.op])
        for use in opened.plan.kernels
        if use.op not in (LINEAR, GROUPED)
    }
    return Ops(**kernels)


def attention_of(opened: Opened) -> dict[int, Attend]:
    """Return the backend of each attention layer, by layer id."""
    return {
        layer: opened.parts.attention[use.name].build(use.need)
        for use in opened.plan.attention
        for layer in use.layers
    }


def begin_of(opened: Opened) -> Callable[[Batch], None] | None:
    """Return what calls the `begin` of every attention backend that has one; None if none has."""
    uses = [(opened.parts.attention[use.name].begin, use.need) for use in opened.plan.attention]
    calls = [(begin, need) for begin, need in uses if begin is not None]
    if not calls:
        return None

    def begin_all(batch: Batch) -> None:
        for begin, need in calls:
            begin(need, batch.for_window(need.sliding_window))

    return begin_all


def check_layers(model: nn.Module, plan: Plan, own: Container[int]) -> None:
    """Raise PluginError unless the model has the layers that its config declares: those of the
    plan's layers with these ids."""
    for kind, uses in ((Attention, plan.attention), (State, plan.states)):
        built = sorted(m.layer_id for m in model.modules() if isinstance(m, kind))
        promised = sorted(layer for use in uses for layer in use.layers if layer in own)
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
    capture = opened.parts.kernels[use.name].capture
    return None if capture is None else capture()
