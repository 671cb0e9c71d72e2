"""Resolves a reference and options to a plan, or to every refusal with its remedy. Reads headers
only, imports no torch."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, TypeVar

from inferno import host
from inferno.catalog import Catalog, load_catalog
from inferno.contracts import FetchOptions
from inferno.plan import stages
from inferno.plan.choices import Choices, choose
from inferno.plan.composite import open_overrides
from inferno.plan.decided import Decided, chosen_of, refusals_of
from inferno.plan.devices import Machine
from inferno.plan.encoder_file import AUTO, choose_encoder
from inferno.plan.names import model_name
from inferno.plan.opened import Opened, Parts
from inferno.plan.options import Options
from inferno.plan.origins import origin_of
from inferno.plan.plan import Plan

T = TypeVar("T")


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
        opened = _opened(choose(given))
        on_error.pop_all()
        return opened


def _opened(choices: Choices) -> Opened:
    """What loading needs of the choices: the plan, and what is open."""
    catalog, model = choices.given.catalog, choices.computation.model
    drafting = choices.computation.drafting
    plan = Plan(
        chosen=chosen_of([*choices.decisions()], catalog.plugins),
        considered=refusals_of([*choices.decisions()]),
        notes=tuple(choices.notes()),
        **_named(choices),
        **_computed(choices),
        **_cached(choices),
        **_served(choices),
    )
    return Opened(
        plan=plan,
        parts=Parts.of(plan, catalog),
        config=model.config,
        assets=model.assets,
        checkpoint=model.checkpoint,
        draft=drafting.opened if drafting is not None else None,
    )


def _named(choices: Choices) -> dict[str, Any]:
    """The plan's fields that say which model it is, and where it comes from."""
    given, model = choices.given, choices.computation.model
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
        "vocab_size": model.config.vocab_size,
        "disable": options.disable,
        "only": options.only,
    }


def _computed(choices: Choices) -> dict[str, Any]:
    """The plan's fields that say what computes."""
    options, parts, steps = choices.given.options, choices.computation, choices.steps
    weights, isq = parts.weights, parts.weights.isq
    return {
        "schemes": weights.matrices.uses,
        "modules": weights.matrices.modules,
        "overrides": weights.matrices.overrides,
        "num_parameters": weights.whole.num_parameters,
        "engines": parts.engines.value,
        "dealt": weights.shared.dealt,
        "ranks": weights.ranks.value,
        "adapters": weights.adapters.value,
        "images": choices.media.images.value,
        "audio": choices.media.audio.value,
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
        "dtype": parts.compute.dtype.value,
        "device": parts.compute.device,
        "threads": weights.threads,
        "seed": options.seed,
    }


def _cached(choices: Choices) -> dict[str, Any]:
    """The plan's fields that say what is cached, and how much runs at once."""
    options, attention = choices.given.options, choices.computation.attention
    drafting, blocks = choices.computation.drafting, choices.blocks
    size, cache = blocks.cache.size.value, blocks.cache
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
        "store": _value(blocks.store),
        "events": _value(blocks.events),
        "sessions": _value(blocks.sessions),
    }


def _served(choices: Choices) -> dict[str, Any]:
    """The plan's fields that say how requests and answers are read."""
    serving = choices.computation.serving
    return {
        "chat_format": serving.chat_format.value,
        "grammars": serving.grammars.value,
        "sandbox": _value(choices.sandbox),
    }


def _value(decision: Decided[T] | None) -> T | None:
    return decision.value if decision is not None else None
