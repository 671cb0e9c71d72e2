"""Pebble models and a loyal prefix cache for inferno."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, CachePolicy


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
