"""Runs the stages of a plan in order, each from the values of those before it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import frozen

from inferno.plan import stages
from inferno.plan.addresses import check_addresses
from inferno.plan.audio import audio_memory, choose_audio
from inferno.plan.audio_use import AudioUse
from inferno.plan.compute import Compute, choose_compute
from inferno.plan.dealing import check_dealing
from inferno.plan.decided import Decided
from inferno.plan.devices import Machine
from inferno.plan.encoders import check_options, is_encoder
from inferno.plan.engine_use import EnginesUse
from inferno.plan.engines import choose_engines
from inferno.plan.event_sinks import choose_sink
from inferno.plan.event_use import EventUse
from inferno.plan.image_use import ImageUse
from inferno.plan.images import choose_images, image_memory
from inferno.plan.invariance import check_asked, choose_invariance
from inferno.plan.notes import notes_of_model, notes_of_positions
from inferno.plan.options import Options
from inferno.plan.rank_choice import exchange_memory
from inferno.plan.ranks import check_ranks
from inferno.plan.sandbox import check_reachable, choose_sandbox, files_of
from inferno.plan.sandbox_use import SandboxUse
from inferno.plan.serving import Serving, choose_serving
from inferno.plan.session_use import SessionUse
from inferno.plan.sessions import choose_sessions
from inferno.plan.speculation import Drafting
from inferno.plan.store_use import StoreUse
from inferno.plan.stores import choose_store, with_room


@frozen(kw_only=True)
class Computation:
    """What computes, and where."""

    model: stages.ModelFacts
    compute: Compute
    proposal: stages.Proposal
    engines: Decided[EnginesUse | None]
    weights: stages.Weights
    attention: stages.Attention
    invariance: Decided[bool]
    serving: Serving
    drafts: Decided[Drafting] | None

    @property
    def drafting(self) -> Drafting | None:
        return self.drafts.value if self.drafts is not None else None


@frozen(kw_only=True)
class Media:
    """What sees and hears."""

    images: Decided[ImageUse | None]
    audio: Decided[AudioUse | None]


@frozen(kw_only=True)
class Blocks:
    """What keeps blocks, and who hears of them."""

    cache: stages.Cache
    store: Decided[StoreUse | None] | None
    events: Decided[EventUse] | None
    sessions: Decided[SessionUse | None] | None


@frozen(kw_only=True)
class Choices:
    """What all stages decided."""

    given: stages.Given
    computation: Computation
    media: Media
    blocks: Blocks
    steps: stages.Steps
    sandbox: Decided[SandboxUse] | None

    def decisions(self) -> Iterator[Decided[Any]]:
        """In the order in which a plan names them."""
        given, parts, blocks = self.given, self.computation, self.blocks
        weights, attention, serving = parts.weights, parts.attention, parts.serving
        yield from (given.source, given.format, given.overrides)
        yield from (parts.model.architecture, parts.compute.dtype)
        yield from (weights.schemes, attention.backends, attention.policy, attention.queue)
        some = weights.isq, parts.drafts, blocks.store, blocks.events, blocks.sessions, self.sandbox
        yield from (each for each in some if each is not None)
        yield from (weights.ranks, parts.engines, weights.adapters, weights.kernels, weights.host)
        yield from (parts.invariance, self.steps.capture, serving.chat_format)
        yield from (blocks.cache.limit, blocks.cache.size)
        yield from (serving.grammars, serving.processors, serving.fields)

    def notes(self) -> Iterator[str]:
        model = self.computation.model
        yield from notes_of_model(self.given, model)
        for decision in self.decisions():
            yield from decision.notes
        yield from self.media.images.notes
        yield from self.media.audio.notes
        yield from self.computation.weights.whole.notes
        yield from notes_of_positions(model.config, self.blocks.cache.size.value.max_model_len)


def choose(given: stages.Given) -> Choices:
    """Raises an InfernoError naming every refusal."""
    parts = _choose_computation(given)
    dtype = parts.compute.dtype.value
    media = Media(
        images=choose_images(given, parts.model, dtype),
        audio=choose_audio(given, parts.model, dtype),
    )
    blocks = _choose_blocks(given, parts, media)
    compute, weights, attention = parts.compute, parts.weights, parts.attention
    steps = stages.choose_steps(
        given, compute, weights, attention, parts.proposal, parts.drafting, blocks.cache
    )
    return Choices(
        given=given,
        computation=parts,
        media=media,
        blocks=blocks,
        steps=steps,
        sandbox=_choose_sandbox(given, parts, blocks),
    )


def _choose_computation(given: stages.Given) -> Computation:
    model = stages.read_model(given)
    compute = choose_compute(given.options, model.checkpoint, given.machine)
    check_asked(given.options, compute.device, model)
    check_reachable(given.options)
    check_addresses(given.options)
    if is_encoder(model.config):
        check_options(given.options)
    proposal = stages.choose_proposal(given, model)
    architecture = model.architecture.value
    check_ranks(given.options, compute.device, model.name, architecture, model.config)
    check_dealing(given.options, compute.device, model.name, architecture)
    elsewhere = given.machine is not None and given.machine.elsewhere
    engines = choose_engines(given.options, compute.devices, elsewhere=elsewhere)
    weights = stages.choose_weights(given, model, compute, proposal)
    attention = stages.choose_layers(given, model, compute, proposal, weights)
    kernels = given.catalog.hint("kernels", "cpu")
    invariance = choose_invariance(given.options, model.config, weights, attention, kernels)
    serving = choose_serving(given, model)
    drafts = stages.choose_drafts(given, model, proposal, attention)
    return Computation(
        model=model,
        compute=compute,
        proposal=proposal,
        engines=engines,
        weights=stages.with_drafts(weights, drafts.value if drafts is not None else None),
        attention=attention,
        invariance=invariance,
        serving=serving,
        drafts=drafts,
    )


def _choose_blocks(given: stages.Given, parts: Computation, media: Media) -> Blocks:
    model, compute, attention = parts.model, parts.compute, parts.attention
    dtype, policy = compute.dtype.value, attention.policy.value.name
    far = given.options.nodes > 1 and compute.device.kind == "cpu"  # else in the host's memory
    sent = given.options.max_num_batched_tokens if far else 0
    encoders = image_memory(media.images.value, model.config, dtype, sent)
    encoders += audio_memory(media.audio.value, model.config, dtype, sent)
    tokens = given.options.max_num_batched_tokens
    beside = encoders + exchange_memory(parts.weights.ranks.value, model.config, dtype, tokens)
    cache = stages.choose_cache(
        given, model, compute, parts.weights, attention, parts.drafting, beside
    )
    catalog, options, longest = given.catalog, given.options, cache.size.value.max_model_len
    machine = given.machine or Machine()
    store = choose_store(catalog, options, policy, machine.environ)
    return Blocks(
        cache=cache,
        store=_with_room(store, options, machine, parts, cache),
        events=choose_sink(catalog, options, policy),
        sessions=choose_sessions(catalog, options, policy, longest),
    )


def _with_room(
    store: Decided[StoreUse | None] | None,
    options: Options,
    machine: Machine,
    parts: Computation,
    cache: stages.Cache,
) -> Decided[StoreUse | None] | None:
    """Return the store with a host tier that fits into this machine, unless the plan is for another
    one."""
    if parts.compute.device.kind == "cpu":
        total, size = parts.compute.device.total, cache.size.value
        taken = sum(item.nbytes for item in (*cache.fixed, size.memory))
        foreign = machine.elsewhere and cache.limit.value * options.processes_here > total
    else:
        total, experts = machine.cpu().total, parts.weights.host.value
        taken, foreign = 0 if experts is None else experts.host_bytes, machine.elsewhere
    if foreign:
        return store
    return with_room(store, cache.size.value.groups, options, taken, total)


def _choose_sandbox(
    given: stages.Given, parts: Computation, blocks: Blocks
) -> Decided[SandboxUse] | None:
    """Choose the sandbox, and name the files that all other choices need."""
    weights, drafting = parts.weights, parts.drafting
    reads = [*files_of(given.path, given.stored)]
    if given.encoder.path is not None:
        reads.append(str(given.encoder.path))
    for override in given.overrides.value:
        reads += files_of(override.use.path, override.checkpoint)
    if drafting is not None and drafting.opened is not None:
        reads += files_of(drafting.opened.plan.path, drafting.opened.checkpoint)
    if (room := weights.adapters.value) is not None:
        reads += [path for use in room.loaded for path in files_of(use.adapter.path)]
    if weights.isq is not None and (file := weights.isq.value.in_situ.importance) is not None:
        reads.append(file)
    stored = blocks.store.value if blocks.store is not None else None
    return choose_sandbox(
        given.catalog,
        given.options,
        parts.compute.device.kind,
        weights.kernels.value,
        next((offer.item for _, offer in weights.ranks.offers), None),
        reads=reads,
        writes=[weights.packed_cache, stored.folder if stored is not None else None],
    )
