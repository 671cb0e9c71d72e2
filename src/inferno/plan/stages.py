"""The stages of a plan (`resolver`): each decides one thing from the values of those before it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from attrs import evolve, frozen

from inferno import host
from inferno.catalog import Catalog, Offer, architecture_name, find_architecture
from inferno.contracts import (
    ADAPTER_OPS,
    COLLECTIVES,
    AdapterBase,
    Architecture,
    AttentionNeed,
    AttentionSpec,
    CacheDType,
    CachePolicy,
    Checkpoint,
    FetchOptions,
    ModelConfig,
    Proposer,
    QueuePolicy,
    Shard,
    TextAssets,
)
from inferno.plan.adapter_use import AdapterRoom
from inferno.plan.adapters import adapter_memory, choose_adapters
from inferno.plan.attention import choose_attention
from inferno.plan.backends import (
    choose_capture,
    choose_kernels,
    choose_onednn,
    products_of,
)
from inferno.plan.cache_groups import StateUse, state_uses
from inferno.plan.capture_use import CaptureUse
from inferno.plan.composite import Override, composed
from inferno.plan.compute import Compute
from inferno.plan.decided import Decided
from inferno.plan.devices import Machine
from inferno.plan.encoder_file import EncoderChoice
from inferno.plan.encoders import is_encoder
from inferno.plan.host_experts import choose_host_experts
from inferno.plan.host_use import HostExpertsUse
from inferno.plan.isq import IsqChoice, choose_isq, quantizable
from inferno.plan.kernel_use import KernelUse
from inferno.plan.memory import CacheSize, fixed_memory, memory_limit, size_cache
from inferno.plan.numa import process_cores
from inferno.plan.opened import Opened, model_config, text_assets
from inferno.plan.options import Options
from inferno.plan.packed_folder import choose_folder
from inferno.plan.pipeline import Shared, share_model
from inferno.plan.plan import AttentionUse, MemoryItem
from inferno.plan.rank_choice import choose_ranks
from inferno.plan.rank_use import RankUse
from inferno.plan.schemes import Matrices, choose_schemes
from inferno.plan.speculation import Drafting, MTPUse, choose_drafting, choose_proposer, mtp_use
from inferno.plan.step_budget import max_step_time
from inferno.plan.stored import adapted, unused_tensors

SHARED_FROM = 64 * host.UNITS["MI"]
"""Bytes of weights from which a step uses more than one thread."""
ENCODERS_SHARED_FROM = 8 * host.UNITS["MI"]
"""Those of encoders: their steps have the tokens of whole texts, not one of each request."""
KEPT_FROM = 64 * host.UNITS["MI"]
"""Bytes of weights from which packed weights are kept on disk: repacking fewer takes no time."""


@frozen(kw_only=True)
class Given:
    """What the stages decide from."""

    ref: str
    path: Path
    options: Options
    fetch: FetchOptions
    catalog: Catalog
    machine: Machine | None
    source: Decided[Any]
    format: Decided[Any]
    stored: Checkpoint
    """As its format opened it."""
    encoder: EncoderChoice
    overrides: Decided[list[Override]]
    open_draft: Callable[[str, Options], Opened]
    on_error: ExitStack
    """Closes what the stages open, if a later one fails."""


@frozen(kw_only=True)
class ModelFacts:
    """The architecture, and what it reads of the checkpoint."""

    name: str
    """As `config.json` names the architecture."""
    architecture: Decided[Architecture]
    checkpoint: Checkpoint
    """As the architecture sees it, with the modules of other checkpoints."""
    config: ModelConfig
    assets: TextAssets


def read_model(given: Given) -> ModelFacts:
    """Raises UnsupportedError, CheckpointError."""
    name = architecture_name(given.stored.config)
    architecture = Decided.by("architecture", find_architecture(given.catalog, given.stored.config))
    checkpoint = adapted(given.stored, architecture.value)
    config = model_config(architecture.value, checkpoint)
    unused = unused_tensors(config)
    checkpoint = composed(checkpoint, given.overrides.value, architecture.value, unused)
    return ModelFacts(
        name=name,
        architecture=architecture,
        checkpoint=checkpoint,
        config=config,
        assets=text_assets(checkpoint, architecture.value),
    )


@frozen(kw_only=True)
class Proposal:
    """What proposes drafts, before its cost and memory are known."""

    proposer: Offer[Proposer] | None = None
    mtp: MTPUse = MTPUse()


def choose_proposal(given: Given, model: ModelFacts) -> Proposal:
    """Raises OptionError, UnsupportedError."""
    if given.options.speculative is None:
        return Proposal()
    proposer = choose_proposer(given.catalog, given.options.speculative)
    mtp = mtp_use(proposer.item, model.architecture.value, model.config, model.checkpoint)
    return Proposal(proposer=proposer, mtp=mtp)


@frozen(kw_only=True)
class Weights:
    """How matrices are stored, held and multiplied."""

    schemes: Decided[Any]
    isq: Decided[IsqChoice] | None
    whole: Matrices
    matrices: Matrices
    """Those of one rank; without ranks `whole`."""
    shared: Shared
    ranks: Decided[RankUse | None]
    adapters: Decided[AdapterRoom | None]
    kernels: Decided[tuple[KernelUse, ...]]
    host: Decided[HostExpertsUse | None]
    products: Mapping[str, str]
    onednn: bool
    packed_cache: str | None
    threads: int


def choose_weights(
    given: Given, model: ModelFacts, compute: Compute, proposal: Proposal
) -> Weights:
    """Raises UnsupportedError, CheckpointError, OptionError."""
    options, catalog, dtype = given.options, given.catalog, compute.dtype.value
    schemes = choose_schemes(catalog, model.checkpoint, model.config, dtype, proposal.mtp.tensors)
    isq: Decided[IsqChoice] | None = None
    if options.isq is not None:
        shapes = schemes.value.dense(requantize=options.requantize)
        dense = quantizable(model.architecture.value, model.checkpoint, shapes)
        isq = choose_isq(catalog, options, dense, dtype, schemes.value.packed())
    packed = {} if isq is None else isq.value.packed
    architecture = model.architecture.value
    whole = schemes.value.loaded(packed, dtype)
    stored = schemes.value, packed, whole
    shared = share_model(options, architecture, model.config, *stored, dtype, proposal.mtp)
    matrices = shared.matrices
    machine, device = given.machine or Machine(), compute.device
    environ = machine.environ
    ranks = choose_ranks(catalog, options, compute.devices, shared, model.config, dtype, environ)
    base = AdapterBase(architecture=architecture, config=model.checkpoint.config)
    vocab_size, mtp = model.config.vocab_size, bool(proposal.mtp.tensors)
    adapters = choose_adapters(catalog, options, given.fetch, base, vocab_size, mtp=mtp)
    more = () if adapters.value is None else ADAPTER_OPS
    more = (*more, COLLECTIVES) if options.exchanges else more
    kernels = choose_kernels(
        catalog,
        matrices,
        model.config,
        dtype,
        compute.device,
        more,
        batch_invariant=options.batch_invariant,
    )
    held = shared.held(schemes.value.held(packed))
    room = adapters.value
    rest = held, model.config, dtype, room, shared.largest
    hosted = choose_host_experts(catalog, options, device, machine, *rest)
    return Weights(
        schemes=schemes,
        isq=isq,
        whole=whole,
        matrices=matrices,
        shared=shared,
        ranks=ranks,
        adapters=adapters,
        kernels=kernels,
        host=hosted,
        products=products_of(kernels, matrices, dtype, compute.device),
        onednn=choose_onednn(kernels, matrices, device, machine.cpu_flags()),
        packed_cache=choose_folder(options, environ, device, model.checkpoint, kernels)
        if matrices.nbytes >= KEPT_FROM
        else None,
        threads=options.threads or _threads(matrices.nbytes, model.config, options, compute),
    )


def _threads(weights: int, config: ModelConfig, options: Options, compute: Compute) -> int:
    """One for tiny models: handing work to another core takes microseconds, as long as a whole
    layer. Ranks and engines share the cores."""
    if weights < (ENCODERS_SHARED_FROM if is_encoder(config) else SHARED_FROM):
        return 1
    shares = process_cores(options, compute.devices)
    return min(map(len, shares), default=max(1, host.usable_cores() // options.processes_here))


@frozen(kw_only=True)
class Attention:
    """What layers cache, and the backends that read it."""

    backends: Decided[tuple[tuple[AttentionUse, ...], int]]
    uses: tuple[AttentionUse, ...]
    states: tuple[StateUse, ...]
    num_layers: int
    block_size: int
    policy: Decided[CachePolicy]
    queue: Decided[QueuePolicy]


def choose_layers(
    given: Given, model: ModelFacts, compute: Compute, proposal: Proposal, weights: Weights
) -> Attention:
    """Raises UnsupportedError, OptionError."""
    options, dtype = given.options, compute.dtype.value
    cache_dtype = cast(CacheDType, options.kv_cache_dtype)
    shard = Shard() if (ranks := weights.ranks.value) is None else ranks.shard
    specs = dict(enumerate(map(shard.local, [*model.config.cache_specs(), *proposal.mtp.specs])))
    needs = {
        layer: AttentionNeed.of(
            spec,
            dtype=dtype,
            device=compute.device,
            cache_dtype=cache_dtype,
            batch_invariant=options.batch_invariant,
        )
        for layer, spec in specs.items()
        if isinstance(spec, AttentionSpec)
    }
    backends = choose_attention(given.catalog, needs, options)
    policy = "none" if is_encoder(model.config) else options.cache_policy
    uses, block_size = backends.value
    return Attention(
        backends=backends,
        uses=uses,
        states=state_uses(specs, dtype),
        num_layers=len(specs),
        block_size=block_size,
        policy=Decided.by("cache policy", given.catalog.cache_policy(policy)),
        queue=Decided.by("queue policy", given.catalog.queue_policy(options.queue_policy)),
    )


def choose_drafts(
    given: Given, model: ModelFacts, proposal: Proposal, attention: Attention
) -> Decided[Drafting] | None:
    """Return how drafts are made and what they take; None without a proposer. Raises OptionError,
    UnsupportedError."""
    if proposal.proposer is None:
        return None
    sizes = attention.num_layers, attention.block_size
    drafting = choose_drafting(
        given.catalog, proposal.proposer, given.options, model.config, *sizes, given.open_draft
    )
    if drafting.value.opened is not None:
        given.on_error.callback(drafting.value.opened.close)
    return drafting


def with_drafts(weights: Weights, drafting: Drafting | None) -> Weights:
    """Give the last pipeline stage the draft model's layers."""
    layers = [layer for use in drafting.attention for layer in use.layers] if drafting else []
    ranks, pipeline = weights.ranks, weights.shared.pipeline
    if not layers or pipeline is None or ranks.value is None:
        return weights
    pipeline = pipeline.drafting(layers)
    ranks = evolve(ranks, value=evolve(ranks.value, pipeline=pipeline.stages))
    return evolve(weights, ranks=ranks, shared=evolve(weights.shared, pipeline=pipeline))


@frozen(kw_only=True)
class Cache:
    """Memory: what is fixed, and the cache that fits beside it."""

    limit: Decided[int]
    fixed: tuple[MemoryItem, ...]
    size: Decided[CacheSize]


def choose_cache(
    given: Given,
    model: ModelFacts,
    compute: Compute,
    weights: Weights,
    attention: Attention,
    drafting: Drafting | None,
    beside: tuple[MemoryItem, ...] = (),
) -> Cache:
    """Raises OptionError, OutOfMemoryError."""
    options, dtype = given.options, compute.dtype.value
    elsewhere = given.machine is not None and given.machine.elsewhere
    limit = memory_limit(options, compute.device, elsewhere=elsewhere)
    limit = evolve(limit, value=limit.value // compute.sharing)
    hosted = weights.host.value if compute.device.kind != "cpu" else None
    fixed = fixed_memory(weights.matrices, model.checkpoint, model.config, dtype, options, hosted)
    fixed += drafting.memory if drafting is not None else ()
    room, part, whole = weights.adapters.value, weights.matrices, weights.whole
    largest, vocab_size = weights.shared.largest, model.config.vocab_size
    fixed += beside + adapter_memory(room, part, whole, vocab_size, dtype, largest)
    size = size_cache(
        options,
        model.config,
        attention.uses + (drafting.attention if drafting is not None else ()),
        attention.states,
        attention.block_size,
        limit=limit.value,
        fixed=sum(item.nbytes for item in fixed),
        declared=model.assets.max_seq_length,
        num_drafts=0 if drafting is None else drafting.speculation.num_drafts,
        count=weights.shared.count,
    )
    return Cache(limit=limit, fixed=fixed, size=size)


def _on_the_host(weights: Weights) -> str | None:
    """Return what the host does within a device's step, if anything."""
    if weights.host.value is not None:
        return "the host computes experts"
    if (ranks := weights.ranks.value) is not None and ranks.shard.ranks > 1:
        return "gloo exchanges in the host's memory" if ranks.exchange == "gloo" else None
    return None


@frozen(kw_only=True)
class Steps:
    """How steps run: captured or not, one at a time or overlapping."""

    capture: Decided[CaptureUse | None]
    overlap: bool
    max_step_time: float


def choose_steps(
    given: Given,
    compute: Compute,
    weights: Weights,
    attention: Attention,
    proposal: Proposal,
    drafting: Drafting | None,
    cache: Cache,
) -> Steps:
    num_drafts = drafting.speculation.num_drafts if drafting is not None else 0
    proposer, block_size = proposal.proposer, attention.block_size
    rows = given.options.max_num_seqs * (1 + num_drafts)
    capture = choose_capture(
        weights.kernels,
        attention.uses + (drafting.attention if drafting is not None else ()),
        compute.device,
        max_tokens=rows + block_size - 1,  # the rest of a prompt
        max_blocks=-(-cache.size.value.max_model_len // block_size),
        max_batched=0 if attention.states else given.options.max_num_batched_tokens,
        max_sequences=rows,
        reads_hidden=proposer.item.name if proposer is not None and proposal.mtp.specs else None,
        stops=_on_the_host(weights),
    )
    return Steps(
        capture=capture,
        # Ranks are told what a step drew before they are told the next one.
        overlap=compute.device.kind == "cuda" and drafting is None and given.options.ranks == 1,
        max_step_time=max_step_time(given.options.max_step_time, compute.device.kind),
    )
