"""The small files of a Hugging Face folder: config, tokenizer, chat template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inferno.contracts import TextAssets

COPIED = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "tekken.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
)
"""Files that do not depend on how weights are stored."""
_MODULE = re.compile(r"\w[\w.-]*")
"""A module's folder in modules.json: never outside of the checkpoint."""


def text_files(path: Path, assets: TextAssets, config: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the small files of a folder with this config: copies of those at `path`, if it is a
    Hugging Face folder, else what its format has of them."""
    folder = path if path.is_dir() else path.parent
    written = {"config.json": _json(config)}
    if (folder / "config.json").is_file():
        paths = {name: folder / name for name in (*COPIED, *_of_modules(assets))}
        return written | {name: f.read_bytes() for name, f in paths.items() if f.is_file()}
    return written | _made(assets)


def _of_modules(assets: TextAssets) -> list[str]:
    """Return the files of sentence-transformers' modules, each in a folder of its own."""
    paths = [str(module.get("path")) for module in assets.modules]
    return [
        f"{path}/{name}"
        for path in paths
        if _MODULE.fullmatch(path)
        for name in ("config.json", "model.safetensors")
    ]


def _made(assets: TextAssets) -> dict[str, bytes]:
    made: dict[str, bytes] = {}
    if assets.tokenizer_json is not None:
        made["tokenizer.json"] = assets.tokenizer_json
        kind = {"tokenizer_class": "PreTrainedTokenizerFast"}
        made["tokenizer_config.json"] = _json({**kind, **assets.tokenizer_config})
    if assets.chat_template is not None:
        made["chat_template.jinja"] = assets.chat_template.encode()
    if assets.generation_config:
        made["generation_config.json"] = _json(assets.generation_config)
    return made


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
