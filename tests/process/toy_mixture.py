"""A checkpoint of a small mixture of experts."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copy
from typing import Any

from inferno.plan import Options, resolve
from inferno.testing import TOY_MOE_SIZES, random_tensors

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    **TOY_MOE_SIZES,
}


def write_mixture(path: Path) -> None:
    """Write one of six experts, with the tokenizer of `demo`."""
    demo = resolve("demo", Options(device="cpu"))
    config = {**CONFIG, "vocab_size": demo.vocab_size}
    random_tensors(config, path)
    (path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        copy(Path(demo.path) / name, path)
