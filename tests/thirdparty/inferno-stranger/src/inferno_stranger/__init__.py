"""Pebble models and a loyal prefix cache for inferno."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, CachePolicy, LogitsProcessor, RequestField


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="PebbleForCausalLM",
            config="inferno_stranger.config:PebbleConfig.from_json",
            build="inferno_stranger.model:PebbleForCausalLM",
        )
    ]


@hookimpl
def inferno_cache_policies() -> list[CachePolicy]:
    return [CachePolicy(name="loyal", build="inferno_stranger.loyal:LoyalCache", priority=-5)]


@hookimpl
def inferno_logits_processors() -> list[LogitsProcessor]:
    return [
        LogitsProcessor(
            name="favour",
            build="inferno_stranger.favour:build",
            check="inferno_stranger.favour:check",
            help="Adds `bias` to the logit of `token_id`.",
        )
    ]


@hookimpl
def inferno_request_fields() -> list[RequestField]:
    return [
        RequestField(
            name="favourite",
            type="integer",
            minimum=0,
            apply="inferno_stranger.favour:apply",
            help="A token id that is favoured.",
        )
    ]
