"""Resolves a reference and options to a plan, or to every refusal with its remedy. Reads headers
only, imports no torch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from inferno import host
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import FetchOptions
from inferno.plan import stages
from inferno.plan.audio import audio_memory, choose_audio
from inferno.plan.composite import open_overrides
from inferno.plan.decided import Decided, chosen_of, refusals_of
from inferno.plan.devices import Machine
from inferno.plan.encoder_file import AUTO, choose_encoder
from inferno.plan.encoders import check_options, is_encoder
from inferno.plan.engines import choose_engines
from inferno.plan.event_sinks import choose_sink
from inferno.plan.images import choose_images, image_memory
from inferno.plan.invariance import check_asked, choose_invariance
from inferno.plan.names import model_name
from inferno.plan.notes import notes_of_model, notes_of_positions
from inferno.plan.opened import Opened, Parts
from inferno.plan.options import Options
from inferno.plan.origins import origin_of
from inferno.plan.plan import Plan
from inferno.plan.ranks import check_ranks
from inferno.plan.sandbox import check_reachable, choose_sandbox, files_of
from inferno.plan.sandbox_use import SandboxUse
from inferno.plan.serving import choose_serving
from inferno.plan.sessions import choose_sessions
from inferno.plan.speculation import Drafting
from inferno.plan.store_use import StoreUse
from inferno.plan.stores import choose_store


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
        revision=options.revision,
        offline=options.offline,
        progress=options.progress,
        encoder=options.mmproj == AUTO,
    )
    path = source.item.fetch(ref, fetch)
    encoder = choose_encoder(catalog, path, options.mmproj, fetch)
    format, checkpoint = catalog.open(path, encoder.path)
    with ExitStack() as on_error:
        on_error.callback(checkpoint.close)
        given = stages.Given(
            ref=ref,
            path=path,
            options=options,
            fetch=fetch,
            catalog=catalog,
            machine=machine,
            source=Decided.by("source", source),
            format=Decided.by("format", format),
            stored=checkpoint,
            encoder=encoder,
            overrides=open_overrides(options.overrides, catalog, fetch, on_error),
            open_draft=lambda ref, options: open_model(ref, options, catalog, machine),
            on_error=on_error,
        )
        opened = _decide(given)
        on_error.pop_all()
        return opened


def _decide(given: stages.Given) -> Opened:
    """Run the stages in order, each from the values of those before it."""
    model = stages.read_model(given)
    compute = stages.choose_compute(given, model)
    check_asked(given.options, compute.device, model)
    check_reachable(given.options)
    if is_encoder(model.config):
        check_options(given.options)
    proposal = stages.choose_proposal(given, model)
    architecture, device = model.architecture.value, compute.device
    check_ranks(given.options, device, model.name, architecture, model.config)
    elsewhere = given.machine is not None and given.machine.elsewhere
    engines = choose_engines(given.options, device, elsewhere=elsewhere)
    weights = stages.choose_weights(given, model, compute, proposal)
    attention = stages.choose_layers(given, model, compute, proposal, weights)
    invariance = choose_invariance(
        given.options, model.config, weights, attention, given.catalog.hint("kernels", "cpu")
    )
    serving = choose_serving(given, model)
    drafts = stages.choose_drafts(given, model, proposal, attention)
    drafting = drafts.value if drafts is not None else None
    weights = stages.with_drafts(weights, drafting)
    dtype = compute.dtype.value
    images = choose_images(given, model, dtype)
    audio = choose_audio(given, model, dtype)
    seen = image_memory(images.value, model.config, dtype)
    heard = audio_memory(audio.value, model.config, dtype)
    cache = stages.choose_cache(given, model, compute, weights, attention, drafting, seen + heard)
    policy, environ = attention.policy.value.name, (given.machine or Machine()).environ
    store = choose_store(given.catalog, given.options, policy, environ)
    events = choose_sink(given.catalog, given.options, policy)
    longest = cache.size.value.max_model_len
    sessions = choose_sessions(given.catalog, given.options, policy, longest)
    steps = stages.choose_steps(given, compute, weights, attention, proposal, drafting, cache)
    sandbox = _sandbox(given, compute, weights, drafting, store)
    decisions = [
        *(given.source, given.format, given.overrides, model.architecture, compute.dtype),
        *(weights.schemes, attention.backends, attention.policy, attention.queue),
        *(
            each
            for each in (weights.isq, drafts, store, events, sessions, sandbox)
            if each is not None
        ),
        *(weights.ranks, engines, weights.adapters, weights.kernels, weights.host, invariance),
        steps.capture,
        *(serving.chat_format, cache.limit, cache.size),
        *(serving.grammars, serving.processors, serving.fields),
    ]
    notes = [
        *notes_of_model(given, model),
        *(note for decision in decisions for note in decision.notes),
        *images.notes,
        *audio.notes,
        *weights.whole.notes,
        *notes_of_positions(model.config, longest),
    ]
    plan = Plan(
        chosen=chosen_of(decisions, given.catalog.plugins),
        considered=refusals_of(decisions),
        notes=tuple(notes),
        **_named(given, model),
        **_computed(given, compute, weights, steps),
        **_cached(given, attention, drafting, cache),
        store=store.value if store is not None else None,
        events=events.value if events is not None else None,
        sessions=sessions.value if sessions is not None else None,
        sandbox=sandbox.value if sandbox is not None else None,
        engines=engines.value,
        adapters=weights.adapters.value,
        images=images.value,
        audio=audio.value,
        chat_format=serving.chat_format.value,
        grammars=serving.grammars.value,
        vocab_size=model.config.vocab_size,
    )
    return Opened(
        plan=plan,
        parts=Parts.of(plan, given.catalog),
        config=model.config,
        assets=model.assets,
        checkpoint=model.checkpoint,
        draft=drafting.opened if drafting is not None else None,
    )


def _sandbox(
    given: stages.Given,
    compute: stages.Compute,
    weights: stages.Weights,
    drafting: Drafting | None,
    store: Decided[StoreUse | None] | None,
) -> Decided[SandboxUse] | None:
    """Choose the sandbox, and name the files that all other choices need."""
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
    stored = store.value if store is not None else None
    return choose_sandbox(
        given.catalog,
        given.options,
        compute.device.kind,
        weights.kernels.value,
        next((offer.item for _, offer in weights.ranks.offers), None),
        reads=reads,
        writes=[weights.packed_cache, stored.folder if stored is not None else None],
    )


def _named(given: stages.Given, model: stages.ModelFacts) -> dict[str, Any]:
    """The plan's fields that say which model it is, and where it comes from."""
    options, source = given.options, given.source.value
    return {
        "ref": given.ref,
        "path": str(given.path),
        "model_id": options.served_model_name or model_name(given.ref),
        "source": source.name,
        "origin": origin_of(source, given.ref),
        "architecture": model.name,
        "format": given.format.value.name,
        "config": dict(model.checkpoint.config),
        "disable": options.disable,
        "only": options.only,
    }


def _computed(
    given: stages.Given, compute: stages.Compute, weights: stages.Weights, steps: stages.Steps
) -> dict[str, Any]:
    """The plan's fields that say what computes."""
    options, matrices, isq = given.options, weights.matrices, weights.isq
    return {
        "schemes": matrices.uses,
        "modules": matrices.modules,
        "overrides": matrices.overrides,
        "num_parameters": weights.whole.num_parameters,
        "ranks": weights.ranks.value,
        "isq": None if isq is None else isq.value.in_situ,
        "packed_cache": weights.packed_cache,
        "packed_cache_limit": host.parse_size(options.packed_cache_size, "--packed-cache-size"),
        "kernels": weights.kernels.value,
        "products": weights.products,
        "host_experts": weights.host.value,
        "batch_invariant": options.batch_invariant,
        "onednn": weights.onednn,
        "capture": steps.capture.value,
        "overlap": steps.overlap,
        "max_step_time": steps.max_step_time,
        "dtype": compute.dtype.value,
        "device": compute.device,
        "threads": weights.threads,
        "seed": options.seed,
    }


def _cached(
    given: stages.Given,
    attention: stages.Attention,
    drafting: Drafting | None,
    cache: stages.Cache,
) -> dict[str, Any]:
    """The plan's fields that say what is cached, and how much runs at once."""
    options, size = given.options, cache.size.value
    return {
        "attention": attention.uses + (drafting.attention if drafting is not None else ()),
        "states": attention.states,
        "speculation": drafting.speculation if drafting is not None else None,
        "cache_policy": attention.policy.value.name,
        "queue_policy": attention.queue.value.name,
        "block_size": attention.block_size,
        "max_model_len": size.max_model_len,
        "max_num_seqs": options.max_num_seqs,
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "groups": size.groups,
        "memory_limit": cache.limit.value,
        "memory": (*cache.fixed, size.memory),
    }
