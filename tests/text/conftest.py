"""Tokenizers small enough to read, of the two kinds that generative models have."""

import json
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from inferno.contracts import TextAssets
from inferno.text import Tokenizer


def byte_level() -> tokenizers.Tokenizer:
    """GPT-2's kind: ids 0..255 are bytes in the alphabet's order, then merges, then added
    tokens."""
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + ["th", "the", "Ġthe", "ðŁ", "ðŁĺ"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("ð", "Ł"), ("ðŁ", "ĺ")]
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=merges)
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>", AddedToken("<|é 日|>", special=True)])
    backend.add_tokens([AddedToken("<think>", special=False), AddedToken("日本 ", special=False)])
    return backend


def byte_fallback() -> tokenizers.Tokenizer:
    """Llama 2's kind: a space before the text, byte tokens for what is not in the vocabulary."""
    pieces = [
        "<unk>",
        *(f"<0x{b:02X}>" for b in range(256)),
        "▁",
        "a",
        "b",
        "é",
        "▁a",
        "▁▁",
        "ab",
        "▁ab",
    ]
    merges = [("▁", "a"), ("▁", "▁"), ("a", "b"), ("▁", "ab")]
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab={p: i for i, p in enumerate(pieces)},
            merges=merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return backend


def opened(backend: tokenizers.Tokenizer, **files: Any) -> Tokenizer:
    config = files.pop("config", None)
    tokenizer = Tokenizer.from_assets(
        TextAssets(tokenizer_json=backend.to_str().encode(), **files), config
    )
    assert tokenizer is not None
    return tokenizer


@pytest.fixture(scope="session")
def bytes_tokenizer() -> Tokenizer:
    return opened(byte_level())


@pytest.fixture(scope="session")
def fallback_tokenizer() -> Tokenizer:
    return opened(byte_fallback())


@pytest.fixture(scope="session")
def metaspace_tokenizer() -> Tokenizer:
    backend = byte_fallback()
    document = json.loads(backend.to_str().encode())
    document["decoder"] = {
        "type": "Metaspace",
        "replacement": "▁",
        "prepend_scheme": "always",
        "split": True,
    }
    return opened(tokenizers.Tokenizer.from_str(json.dumps(document)))
