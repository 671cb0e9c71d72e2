"""Load a model: open, build, fill, quantize, bind. Read top to bottom; it runs once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from inferno.catalog import Catalog
from inferno.contracts import (
    EXPERT_OPS,
    GROUPED,
    LINEAR,
    OPS,
    AttentionBackend,
    Checkpoint,
    KernelProvider,
    ModelConfig,
    QuantScheme,
    Recording,
    TensorInfo,
    lazy,
)
from inferno.errors import CheckpointError, PluginError, UnsupportedError
from inferno.nn import (
    Attention,
    Dense,
    Embedding,
    Linear,
    LMHead,
    Rope,
    State,
    TiedLMHead,
    Unloaded,
    Weight,
)
from inferno.nn.ops import Ops
from inferno.plan import KernelUse, Plan, modules_of, open_checkpoint, unused_tensors


def load_model(plan: Plan, catalog: Catalog | None = None) -> nn.Module:
    """The plan's model, weights in place, every layer bound to its attention backend."""
    catalog = catalog or plan.catalog()
    agree(plan, catalog)
    torch.set_num_threads(plan.threads)  # of the steps, and of packing weights
    checkpoint = open_checkpoint(plan, catalog)
    try:
        model, config = build(plan, checkpoint, catalog)
        fill(
            model,
            checkpoint,
            catalog,
            dtype=plan.dtype,
            device=plan.device,
            unused=unused_tensors(config),
        )
    finally:
        checkpoint.close()
    if plan.isq is not None:
        quantize(model, catalog, plan.isq)
    kernels = {
        (use.op, use.layout): _kernel(use, catalog)
        for use in plan.kernels
        if use.op in (LINEAR, GROUPED)
    }
    settle(model, kernels)
    for module in model.modules():
        if isinstance(module, Rope):
            module.serve(plan.max_model_len)
    bind(model, catalog, plan)
    bind_ops(model, ops_of(plan, catalog))
    return model.eval().requires_grad_(False)


def build(plan: Plan, checkpoint: Checkpoint, catalog: Catalog) -> tuple[nn.Module, ModelConfig]:
    """The plan's model without memory, on meta, and its config."""
    architecture = catalog.architecture(plan.architecture).item
    config = architecture.config(checkpoint.config)
    for name in (
        "num_hidden_layers",
        "num_experts",
    ):  # each stores some: a model of many thousands is not built to find none
        if isinstance(number := getattr(config, name, 0), int) and number > len(checkpoint.tensors):
            raise CheckpointError(
                f"config.json: {name} is {number}, but {len(checkpoint.tensors)} tensors are "
                f"stored",
                "The checkpoint and its config.json belong to different models, or are damaged.",
            )
    with torch.device("meta"):
        model: nn.Module = architecture.build(config)
    for module in (
        model.modules()
    ):  # not the buffers: rotary frequencies stay float32, as parameters that must be exact
        for name, param in module.named_parameters(recurse=False):
            if name not in getattr(module, "exact", ()):
                param.data = param.data.to(dtype_of(plan))
    return model, config


def check(plan: Plan) -> int:
    """Compare the checkpoint's headers with the model: names and shapes. Returns the number of
    tensors, reads none."""
    catalog = plan.catalog()
    checkpoint = open_checkpoint(plan, catalog)
    try:
        model, config = build(plan, checkpoint, catalog)
        pair(model, checkpoint, unused_tensors(config))
        return len(checkpoint.tensors)
    finally:
        checkpoint.close()


def dtype_of(plan: Plan) -> torch.dtype:
    dtype = getattr(torch, plan.dtype)
    assert isinstance(dtype, torch.dtype), "plan.dtype is one of COMPUTE_DTYPES"
    return dtype


def agree(plan: Plan, catalog: Catalog) -> None:
    """This process must have what the plan was made of. Raises PluginError naming each
    difference."""
    here = {f"{p.distribution} {p.version}" for p in catalog.plugins if not p.disabled}
    missing = sorted(set(plan.distributions.values()) - here)
    if missing:
        raise PluginError(
            f"the plan was made with {', '.join(missing)}; this environment has "
            f"{', '.join(sorted(here))}",
            "Install the same versions, or make the plan anew.",
        )
    if plan.device.startswith("cuda") and not torch.cuda.is_available():
        raise UnsupportedError(
            "the plan is for a CUDA device; torch sees none", "Start with --device cpu."
        )


def fill(
    model: nn.Module,
    checkpoint: Checkpoint,
    catalog: Catalog,
    *,
    dtype: str,
    device: str,
    unused: tuple[str, ...] = (),
) -> None:
    """Give every module its tensors. What is stored under a module's path decides what it holds."""
    quant_config = checkpoint.config.get("quantization_config") or {}
    for path, module, parts in pair(model, checkpoint, unused):
        _fill_module(
            module, checkpoint_path(path), parts, checkpoint, catalog, quant_config, dtype, device
        )
    _materialize(model, device)


def pair(
    model: nn.Module, checkpoint: Checkpoint, unused: tuple[str, ...]
) -> list[tuple[str, nn.Module, dict[str, TensorInfo]]]:
    """Every module with its path and what is stored for it. Raises CheckpointError unless the two
    fit, by headers alone."""
    stored = modules_of(checkpoint.tensors, unused)
    problems: list[str] = []
    work: list[tuple[str, nn.Module, dict[str, TensorInfo]]] = []
    for path, module in model.named_modules():
        parts = stored.pop(checkpoint_path(path), {})
        problems += _misfits(checkpoint_path(path), module, parts)
        work.append((path, module, parts))
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
    return work


def checkpoint_path(path: str) -> str:
    """`self_attn.qkv.parts.q_proj` is stored as `self_attn.q_proj`."""
    parent, found, part = path.rpartition(".parts.")
    return f"{parent.rpartition('.')[0]}.{part}".lstrip(".") if found else path


def _misfits(path: str, module: nn.Module, parts: Mapping[str, TensorInfo]) -> list[str]:
    """What is missing or of the wrong shape, from headers alone."""
    problems = []
    holds_weight = isinstance(getattr(module, "weight", None), Unloaded)
    for part, param in module.named_parameters(recurse=False):
        if part not in parts:
            problems.append(f"{path}.{part} is missing")
        elif parts[part].shape != tuple(param.shape):
            problems.append(
                f"{path}.{part} is {parts[part].shape}, the model wants {tuple(param.shape)}"
            )
    if holds_weight and not set(parts) - {"bias"}:
        problems.append(f"{path}.weight is missing")
    elif holds_weight and set(parts) - {"bias"} == {"weight"}:
        want = getattr(module, "weight").shape  # noqa: B009  (a Weight; nn.Module types it as a union)
        if parts["weight"].shape != want:
            problems.append(f"{path}.weight is {parts['weight'].shape}, the model wants {want}")
    if not holds_weight:
        own = {name for name, _ in module.named_parameters(recurse=False)}
        problems += [
            f"{path}.{part} is stored, but the model has no such tensor"
            for part in parts.keys() - own
        ]
    elif "bias" in parts and getattr(module, "bias", None) is None:
        problems.append(f"{path}.bias is stored, but the model has no such tensor")
    return problems


def _fill_module(
    module: nn.Module,
    path: str,
    parts: Mapping[str, TensorInfo],
    checkpoint: Checkpoint,
    catalog: Catalog,
    quant_config: Mapping[str, Any],
    dtype: str,
    device: str,
) -> None:
    tensors = {
        part: checkpoint.read(f"{path}.{part}" if path else part).to(device) for part in parts
    }
    for part, _ in list(module.named_parameters(recurse=False)):
        exact = part in getattr(module, "exact", ())
        tensor = tensors.pop(part).to(torch.float32 if exact else getattr(torch, dtype))
        setattr(module, part, nn.Parameter(tensor, requires_grad=False))
    held = getattr(module, "weight", None)
    if isinstance(held, Unloaded):
        infos = {part: parts[part] for part in tensors}
        scheme = catalog.scheme_of(infos, quant_config, path).item
        weight = scheme.load(tensors, quant_config=quant_config, dtype=dtype)
        if weight.shape != held.shape:
            raise CheckpointError(
                f"{path}: {scheme.name} holds {weight.shape}, the model wants {held.shape}",
                "The checkpoint and its config.json belong to different models.",
            )
        module.weight = weight


def _materialize(model: nn.Module, device: str) -> None:
    """Tables the model computed for itself move to the device; nothing may be left on meta."""
    for module in model.modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            assert not buffer.is_meta, (
                f"{type(module).__name__}.{name} was built on meta: compute it on the CPU"
            )
            setattr(module, name, buffer.to(device))


def quantize(model: nn.Module, catalog: Catalog, name: str) -> None:
    """In-situ quantization: pack every dense linear but the head."""
    scheme = catalog.named(QuantScheme, name).item
    assert scheme.pack is not None, "the plan refuses schemes that cannot pack"
    for module in model.modules():
        if isinstance(module, Linear) and not isinstance(module, LMHead | Embedding):
            weight: Weight = module.weight
            if isinstance(weight, Dense):
                module.weight = scheme.pack(weight.data)


def settle(
    model: nn.Module, kernels: Mapping[tuple[str, str], Callable[..., Weight | None]]
) -> None:
    """Give every matrix its final layout: that of the kernel for its op and what it is stored as,
    else what torch is fastest with. Modules that can `fuse` matrices do. One after the other: no
    two copies of all weights."""
    tied = {id(m.embedding.weight) for m in model.modules() if isinstance(m, TiedLMHead)}

    def stack(weights: Sequence[Weight], *, grouped: bool = False) -> Weight | None:
        [layout, *others] = dict.fromkeys(weight.layout for weight in weights)
        build = kernels.get((GROUPED if grouped else LINEAR, layout))
        if not others and build is not None and (built := build(*weights)) is not None:
            return built
        whole = weights[0].concatenate(weights[1:]) if len(weights) > 1 else weights[0]
        if (
            whole is not None and not grouped and id(whole) not in tied
        ):  # a tied head's is an embedding too
            whole.settle()
        return whole

    for module in list(model.modules()):
        if callable(fuse := getattr(module, "fuse", None)):
            fuse(stack)
    for module in model.modules():
        if isinstance(module, Linear) or (
            isinstance(module, Embedding) and _is_multiplied(module, tied)
        ):
            module.weight = stack([module.weight]) or module.weight


def _is_multiplied(embedding: Embedding, tied: Collection[int]) -> bool:
    """An embedding of which only rows are taken stays where it is: most of a mapped file's pages
    are never read."""
    return id(embedding.weight) in tied or not isinstance(embedding.weight, Dense)


def _kernel(use: KernelUse, catalog: Catalog) -> Callable[..., Any]:
    return lazy.resolved(catalog.named(KernelProvider, use.name).item.ops[use.op])


def record_of(plan: Plan, catalog: Catalog) -> Callable[[], Recording] | None:
    """How to record a step: only when one distribution computes every op of the plan, and its
    attention too. A recording cannot see what another backend computes past torch's dispatcher, and
    a replay would skip it."""
    names = {use.name for use in plan.kernels}
    distributions = {use.distribution for use in plan.kernels}
    distributions |= {use.distribution for use in plan.attention}
    ops = {use.op for use in plan.kernels} - {GROUPED, *EXPERT_OPS}
    if len(names) != 1 or len(distributions) != 1 or ops != {LINEAR, *OPS}:
        return None
    return catalog.named(KernelProvider, names.pop()).item.record


def ops_of(plan: Plan, catalog: Catalog) -> Ops:
    """The plan's implementation of each op: its providers', else torch's."""
    return Ops(
        **{use.op: _kernel(use, catalog) for use in plan.kernels if use.op not in (LINEAR, GROUPED)}
    )


def bind_ops(model: nn.Module, ops: Ops) -> None:
    """Give every module that computes ops the plan's."""
    for module in model.modules():
        if isinstance(getattr(module, "ops", None), Ops):
            module.ops = ops  # type: ignore[assignment]  # nn.Module types its attributes as tensors and modules


def bind(model: nn.Module, catalog: Catalog, plan: Plan) -> None:
    """Give every attention layer the backend the plan chose for it."""
    uses = {layer: use for use in plan.attention for layer in use.layers}
    states = {layer for use in plan.states for layer in use.layers}
    layers = [m for m in model.modules() if isinstance(m, Attention)]
    recurrent = [m for m in model.modules() if isinstance(m, State)]
    if sorted(layer.layer_id for layer in layers) != sorted(uses) or sorted(
        layer.layer_id for layer in recurrent
    ) != sorted(states):
        raise PluginError(
            f"{plan.architecture} built {len(layers)} attention layers and {len(recurrent)} "
            f"recurrent ones, its config promised {len(uses)} and {len(states)}, or other ids",
            "Report this to the plugin's authors.",
        )
    for layer in layers:
        use = uses[layer.layer_id]
        layer.attend = catalog.named(AttentionBackend, use.name).item.build(use.need)
