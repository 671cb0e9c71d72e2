"""Seed-OSS for inferno. Imports no torch until a model is built."""

from __future__ import annotations

from inferno import hookimpl
from inferno.contracts import DECODER, Architecture
from inferno_seed_oss.gguf import SEED_OSS


@hookimpl
def inferno_architectures() -> list[Architecture]:
    return [
        Architecture(
            name="SeedOssForCausalLM",
            model_types=("seed_oss",),
            config="inferno_seed_oss.config:SeedOssConfig.from_json",
            build="inferno_seed_oss.model:SeedOssForCausalLM",
            adapt="inferno.contracts:with_head",
            divides=DECODER,
            dialects={"gguf": SEED_OSS},
            stop_tokens=("<seed:eos>",),
            checkpoints=(
                "ByteDance-Seed/Seed-OSS-36B-Instruct",
                "ByteDance-Seed/Seed-OSS-36B-Base",
                "ByteDance-Seed/Seed-OSS-36B-Base-woSyn",
            ),
        )
    ]
