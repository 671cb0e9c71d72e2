"""What an architecture is compared with: transformers' model of its config, and a Python without
torch.

Suffixes: L tokens of a sequence, V vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from inferno.testing.tiny import randomize, run_python


@cache
def assert_torch_free(configs: tuple[str, ...]) -> None:
    """Discovery, and reading these configs, import no torch."""
    code = (
        "import json, sys; from inferno.catalog import find_architecture, load_catalog\n"
        "catalog = load_catalog()\n"
        "for config in map(json.loads, sys.argv[1:]):\n"
        "    architecture = find_architecture(catalog, config).item\n"
        "    architecture.config(config).cache_specs()\n"
        "    if 'torch' in sys.modules: sys.exit(f'torch is imported: {config}')\n"
    )
    done = run_python(code, *configs)
    assert done.returncode == 0, done.stderr


def transformers_model(config: Mapping[str, Any], head: str = "AutoModelForCausalLM") -> nn.Module:
    """transformers' model of a `config.json`, in float32, with random weights. `head` names the
    class that makes it."""
    import transformers

    auto: Any = transformers
    fields = {k: v for k, v in config.items() if k not in ("model_type", "architectures")}
    read = auto.AutoConfig.for_model(config["model_type"], **json.loads(json.dumps(fields)))
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)  # some modules draw what `randomize` only adds noise to
        model: nn.Module = getattr(auto, head).from_config(read, dtype=torch.float32)
    randomize(model)
    return model.eval()


def reference_logits(reference: nn.Module, token_ids: list[int]) -> Tensor:
    """Return transformers' logits of all positions of a prompt: (tokens, vocabulary), float32."""
    with torch.inference_mode():
        logits_LV: Tensor = reference(torch.tensor([token_ids])).logits[0].float()
    return logits_LV
