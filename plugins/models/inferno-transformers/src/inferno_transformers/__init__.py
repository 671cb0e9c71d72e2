"""The fallback: any causal language model of the installed transformers that no other plugin has.
Imports no torch."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import Architecture, spelled
from inferno_transformers.spellings import FALCON


def _varies(config: object) -> str:
    return "transformers' own module multiplies in torch, whose sums depend on the shape of a step"


ANY = Architecture(
    name="*",
    config="inferno_transformers.config:HostedConfig.from_json",
    build="inferno_transformers.model:HostedForCausalLM",
    adapt="inferno_transformers.adapt:adapt",
    varies=_varies,
    note="no installed plugin has this architecture: transformers' own module "
    "computes it, slower than a native one",
)


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [ANY, spelled(ANY, FALCON)]
