"""A GGUF file's tokenizer, special tokens and chat templates, in the form of a Hugging Face
folder's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError
from inferno_gguf import sentence
from inferno_gguf.reader import DAMAGED, GgufFile, Metadata
from inferno_gguf.tokenizer import tokenizer_json
from inferno_gguf.tokens import Vocabulary

TEMPLATE = "tokenizer.chat_template"

SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""Recommended sampling, `general.sampling.*` -> generation_config.json."""

ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "_<EOT>",
        "[EOT]",
        "<｜end▁of▁sentence｜>",
        "<end_of_utterance>",
        "<|return|>",
        "<|call|>",
    }
)
"""Names of control tokens that end a turn. Files store at most one id, but models have several."""


def read_text(
    file: GgufFile, strip_after: Mapping[str, tuple[str, ...]] | None = None
) -> TextAssets:
    """Read the text files' content; `strip_after` is the dialect's. Raises CheckpointError if the
    tokenizer cannot be read."""
    metadata = file.metadata
    model = metadata.get("tokenizer.ggml.model", "none")
    templates = _templates(file)
    if model in ("none", "no_vocab"):
        return TextAssets(chat_template=templates.get("default"))
    vocabulary = Vocabulary.read(file)
    config: dict[str, Any] = vocabulary.special_names()
    if templates.keys() - {"default"}:
        config["chat_template"] = templates
    given = metadata.get("tokenizer.huggingface.json")
    return TextAssets(
        tokenizer_json=given.encode()
        if isinstance(given, str)
        else msgspec.json.encode(tokenizer_json(vocabulary, (strip_after or {}).get(model))),
        tokenizer_config=config,
        chat_template=templates.get("default") if "chat_template" not in config else None,
        generation_config=_generation_config(metadata, vocabulary),
        modules=sentence.modules(metadata),
    )


def _templates(file: GgufFile) -> dict[str, str]:
    """Chat templates by name."""
    texts: dict[str, str] = {}
    for key in file.metadata:
        if key == TEMPLATE or key.startswith(f"{TEMPLATE}."):
            template = file.metadata[key]
            if not isinstance(template, str):
                raise CheckpointError(f"{file.path.name}: {key} is not a string", DAMAGED)
            texts[key.removeprefix(TEMPLATE).removeprefix(".") or "default"] = template
    return texts


def _generation_config(metadata: Metadata, vocabulary: Vocabulary) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    ends = [
        vocabulary.special[name] for name in ("eos", "eot", "eom") if name in vocabulary.special
    ]
    ends += vocabulary.controls(
        ENDS - {"<|end|>"} if vocabulary.controls({"<|return|>"}) else ENDS
    )  # one of several messages
    if ends:
        fields["eos_token_id"] = list(dict.fromkeys(ends))
    fields |= {
        f"{name}_token_id": vocabulary.special[name]
        for name in ("bos", "pad")
        if name in vocabulary.special
    }
    for theirs, ours in SAMPLING.items():
        value = metadata.get(f"general.sampling.{theirs}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            fields[ours] = round(value, 6) if isinstance(value, float) else value
    return fields
