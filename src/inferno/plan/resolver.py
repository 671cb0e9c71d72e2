"""Resolves a reference and options to a plan, or to every refusal with its remedy. Reads headers
only, imports no torch."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from inferno import host
from inferno.catalog import ANY, Catalog, load_catalog
from inferno.configs import RopeConfig
from inferno.contracts import (
    COMPUTE_DTYPES,
    Architecture,
    AttentionNeed,
    AttentionSpec,
    CacheDType,
    Checkpoint,
    Device,
    DType,
    FetchOptions,
    ModelConfig,
)
from inferno.errors import OptionError
from inferno.plan.attention import choose_attention
from inferno.plan.backends import (
    choose_all,
    choose_capture,
    choose_grammars,
    choose_kernels,
)
from inferno.plan.cache_groups import state_uses
from inferno.plan.chat_formats import chat_need, choose_chat_format
from inferno.plan.composite import Override, composed, open_overrides
from inferno.plan.decided import Decided, chosen_of, refusals_of
from inferno.plan.devices import Machine, find_device
from inferno.plan.isq import IsqChoice, choose_isq, quantizable
from inferno.plan.memory import fixed_memory, memory_limit, size_cache
from inferno.plan.names import model_name
from inferno.plan.opened import Opened, Parts, model_config, text_assets
from inferno.plan.options import Options
from inferno.plan.origins import origin_of
from inferno.plan.packed_folder import default_folder
from inferno.plan.plan import Plan
from inferno.plan.schemes import choose_schemes
from inferno.plan.speculation import MTPUse, choose_drafting, choose_proposer, mtp_use
from inferno.plan.stored import adapted, architecture_name, unused_tensors

SHARED_FROM = 64 * host.UNITS["MI"]
"""Bytes of weights from which a step uses more than one thread."""

BFLOAT16_SINCE = (8, 0)
"""The first CUDA capability with instructions for bfloat16."""


def resolve(
    ref: str,
    options: Options | None = None,
    catalog: Catalog | None = None,
    machine: Machine | None = None,
) -> Plan:
    """Decide everything, keep nothing open. Raises an InfernoError naming every refusal."""
    with open_model(ref, options, catalog, machine) as opened:
        return opened.plan


def open_model(
    ref: str,
    options: Options | None = None,
    catalog: Catalog | None = None,
    machine: Machine | None = None,
) -> Opened:
    """Decide everything, and keep open what loading needs. Fetches the model if its source must.
    `catalog` and `machine` are the installed plugins and this machine, unless given.
    Raises an InfernoError naming every refusal."""
    options = options or Options()
    catalog = catalog or load_catalog(disable=options.disable, only=options.only)
    source = catalog.source_of(ref)
    fetch = FetchOptions(
        revision=options.revision, offline=options.offline, progress=options.progress
    )
    path = source.item.fetch(ref, fetch)
    format, checkpoint = catalog.open(path)
    with ExitStack() as on_error:
        on_error.callback(checkpoint.close)
        origin = (Decided.by("source", source), Decided.by("format", format))
        others = open_overrides(options.overrides, catalog, fetch, on_error)
        opened = _decide(ref, path, options, catalog, checkpoint, origin, others, machine, on_error)
        on_error.pop_all()
        return opened


def _decide(
    ref: str,
    path: Path,
    options: Options,
    catalog: Catalog,
    stored: Checkpoint,
    origin: tuple[Decided[Any], Decided[Any]],
    others: Decided[list[Override]],
    machine: Machine | None,
    on_error: ExitStack,
) -> Opened:
    source, format = origin
    name = architecture_name(stored.config)
    architecture = Decided.by("architecture", catalog.architecture(name))
    checkpoint = adapted(stored, architecture.value)
    model = model_config(architecture.value, checkpoint)
    checkpoint = composed(checkpoint, others.value, architecture.value, unused_tensors(model))
    device = find_device(options.device, machine)
    computed_in = on_device(compute_dtype(options.dtype, checkpoint), options.dtype, device)
    dtype = computed_in.value
    proposer, mtp = None, MTPUse()
    if options.speculative is not None:
        proposer = choose_proposer(catalog, options.speculative, model)
        mtp = mtp_use(proposer.item, architecture.value, model, checkpoint)
    schemes = choose_schemes(catalog, checkpoint, model, dtype, mtp.tensors)
    isq: Decided[IsqChoice] | None = None
    if options.isq is not None:
        shapes = schemes.value.dense(requantize=options.requantize)
        dense = quantizable(architecture.value, checkpoint, shapes)
        again = schemes.value.packed()
        isq = choose_isq(catalog, options, dense, dtype, again)
    matrices = schemes.value.loaded({} if isq is None else isq.value.packed, dtype)
    cache_dtype = cast(CacheDType, options.kv_cache_dtype)
    specs = dict(enumerate([*model.cache_specs(), *mtp.specs]))
    states = state_uses(specs, dtype)
    needs = {
        layer: AttentionNeed.of(spec, dtype=dtype, device=device, cache_dtype=cache_dtype)
        for layer, spec in specs.items()
        if isinstance(spec, AttentionSpec)
    }
    attention = choose_attention(catalog, needs, options)
    uses, block_size = attention.value
    policy = Decided.by("cache policy", catalog.cache_policy(options.cache_policy))
    kernels = choose_kernels(
        catalog,
        {use.layout for use in matrices.uses},
        matrices.shapes,
        model,
        dtype,
        device,
        quantized={use.layout for use in matrices.uses if use.in_situ},
    )
    assets = text_assets(checkpoint, architecture.value)
    chat_format = choose_chat_format(catalog, chat_need(assets, name), options.chat_format)
    limit = memory_limit(options, device, elsewhere=machine is not None and machine.elsewhere)
    fixed = fixed_memory(matrices, checkpoint, model, dtype, options)
    drafting = None
    if proposer is not None:
        drafting = choose_drafting(
            proposer,
            options,
            model,
            len(specs),
            block_size,
            lambda draft, its_options: open_model(draft, its_options, catalog, machine),
        )
        if drafting.value.opened is not None:
            on_error.callback(drafting.value.opened.close)
        uses += drafting.value.attention
        fixed += drafting.value.memory
    cache = size_cache(
        options,
        model,
        uses,
        states,
        block_size,
        limit=limit.value,
        fixed=sum(i.nbytes for i in fixed),
    )
    num_drafts = drafting.value.speculation.num_drafts if drafting is not None else 0
    capture = choose_capture(
        kernels,
        uses,
        device,
        max_tokens=options.max_num_seqs * (1 + num_drafts) + block_size - 1,  # the rest of a prompt
        max_blocks=-(-cache.value.max_model_len // block_size),
        reads_hidden=proposer.item.name if proposer is not None and mtp.specs else None,
    )
    grammars = choose_grammars(catalog)
    decisions: list[Decided[Any]] = [source, format, others, architecture, computed_in, schemes]
    decisions += [attention]
    decisions += [policy]
    decisions += [each for each in (isq, drafting) if each is not None]
    decisions += [kernels, capture, chat_format, limit, cache, grammars]
    decisions += [
        choose_all(catalog, "inferno_logits_processors", "logits processor"),
        choose_all(catalog, "inferno_request_fields", "request field"),
    ]
    notes = [note for decision in decisions for note in decision.notes]
    notes += matrices.notes
    notes += _rotary_notes(model, cache.value.max_model_len)
    plan = Plan(
        ref=ref,
        path=str(path),
        model_id=options.served_model_name or model_name(ref),
        source=source.value.name,
        origin=origin_of(source.value, ref),
        architecture=name,
        format=format.value.name,
        config=dict(checkpoint.config),
        schemes=matrices.uses,
        modules=matrices.modules,
        overrides=matrices.overrides,
        isq=None if isq is None else isq.value.in_situ,
        packed_cache=_packed_cache(options, device, machine or Machine()),
        packed_cache_limit=host.parse_size(options.packed_cache_size, "--packed-cache-size"),
        kernels=kernels.value,
        capture=capture.value,
        attention=uses,
        states=states,
        speculation=drafting.value.speculation if drafting is not None else None,
        chat_format=chat_format.value,
        grammars=grammars.value,
        num_parameters=matrices.num_parameters,
        cache_policy=policy.value.name,
        dtype=dtype,
        device=device,
        threads=options.threads or _threads(matrices.nbytes),
        seed=options.seed,
        vocab_size=model.vocab_size,
        max_model_len=cache.value.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        block_size=block_size,
        groups=cache.value.groups,
        memory_limit=limit.value,
        memory=(*fixed, cache.value.memory),
        chosen=chosen_of(decisions, catalog.plugins),
        considered=refusals_of(decisions),
        notes=(*_architecture_notes(catalog, architecture.value, name), *notes),
        disable=options.disable,
        only=options.only,
    )
    return Opened(
        plan=plan,
        parts=Parts.of(plan, catalog),
        config=model,
        assets=assets,
        checkpoint=checkpoint,
        draft=drafting.value.opened if drafting is not None else None,
    )


def _architecture_notes(catalog: Catalog, offered: Architecture, wanted: str) -> list[str]:
    notes = [offered.note] if offered.note else []
    if offered.name == ANY and (hint := catalog.hint("architecture", wanted)):
        notes.append(f"a plugin made for {wanted} is not installed: {hint}")
    return notes


def _rotary_notes(model: ModelConfig, max_model_len: int) -> list[str]:
    rope = getattr(model, "rope", None)
    if not isinstance(rope, RopeConfig):
        return []
    original = rope.outgrown(model.max_position_embeddings, max_model_len)
    if original is None:
        return []
    return [
        f"contexts may exceed the original {original} tokens, so all prompts, short ones too, are "
        f"computed with longrope's long factors; --max-model-len {original} uses the short ones"
    ]


def compute_dtype(asked: str, checkpoint: Checkpoint) -> DType:
    """Return the requested dtype, else the config's, else that of most stored values: but not
    float16, which says how a file was written, not that the activations stay below 65504."""
    if asked != "auto":
        return cast(DType, asked)
    if (declared := declared_dtype(checkpoint)) is not None:
        return declared
    found = stored_dtype(checkpoint)
    return "bfloat16" if found == "float16" else found


def declared_dtype(checkpoint: Checkpoint) -> DType | None:
    """Return the config's dtype, if it is one to compute in."""
    config = checkpoint.config
    declared = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return declared if declared in COMPUTE_DTYPES else None


def stored_dtype(checkpoint: Checkpoint) -> DType:
    """Return the dtype of most values that are stored plainly."""
    sizes = Counter[DType]()
    for info in checkpoint.tensors.values():
        if info.dtype in COMPUTE_DTYPES:
            sizes[info.dtype] += math.prod(info.shape)
    return sizes.most_common(1)[0][0] if sizes else "bfloat16"


def on_device(dtype: DType, asked: str, device: Device) -> Decided[DType]:
    """Return the dtype, or float16 where a GPU has no instructions for bfloat16, with a note on the
    range of float16. Raises OptionError if bfloat16 was asked for by name there."""
    capability = device.capability
    old = device.kind == "cuda" and capability is not None and capability < BFLOAT16_SINCE
    if not old or capability is None:
        narrow = "float16 overflows beyond 65504, and gives NaN then; --dtype bfloat16 does not"
        return Decided(dtype, notes=(narrow,) if dtype == "float16" else ())
    if dtype == "float32":
        return Decided(dtype)
    has = f"{device} has compute capability {capability[0]}.{capability[1]}, bfloat16 needs 8.0"
    if dtype == asked == "bfloat16":
        raise OptionError(has, "Use --dtype float16, or float32 where its range is too small.")
    note = f"{has}: float16 is used, which overflows beyond 65504; --dtype float32 does not"
    return Decided("float16", notes=(note,))


def _packed_cache(options: Options, device: Device, machine: Machine) -> str | None:
    """Return the folder of packed weights. None on devices that have no providers which keep any,
    and for plans of other machines."""
    if options.packed_cache == "none" or device.kind != "cpu" or machine.elsewhere:
        return None
    if options.packed_cache != "auto":
        return str(Path(options.packed_cache).expanduser().absolute())
    return str(default_folder(machine.environ))


def _threads(weights: int) -> int:
    """One for tiny models: handing work to another core takes microseconds, as long as a whole
    layer."""
    return 1 if weights < SHARED_FROM else host.usable_cores()
