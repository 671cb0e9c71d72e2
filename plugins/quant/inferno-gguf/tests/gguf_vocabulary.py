"""GGUF files of a vocabulary alone, and what tokenizers of them must agree with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text

repeatable = settings(deadline=None, derandomize=True, database=None)

WORDS = (
    """The quick brown fox jumps over 12 lazy dogs, doesn't it?  Größe, naïve, façade; 3.14159 \
and 2718281828!
def f(x):\n\treturn x ** 2  # squares\n\nこんにちは世界。 Привет, мир! 你好，世界 1234 \
¿Qué tal? 🚀🚀 e\u0301 I'LL they've we're
<tag attr="value">text</tag> CamelCaseWords HTTPServer \
snake_case_words ... --- *** ((())) a  b   c    d\r\n\r\n"""
    * 3
)
"""A text that the tokenizers are trained on: pieces of every kind, often enough to merge."""
ODD = ["  ", "\n\n", "'S", "<|end|>", "<think>", "\u2028", "ſ", "0", "٣", "x̄"]
PIECES = sorted({*WORDS.split(" "), *"abcé ö世🚀\n\t\r ", *ODD})
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join)


def write(
    path: Path,
    model: str,
    tokens: Sequence[str],
    types: Sequence[int],
    architecture: str = "llama",
    **keys: Any,
) -> Path:
    """A file with that vocabulary; `keys` are of tokenizer.ggml, or whole ones where they have a
    dot."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types([int(t) for t in types])
    for key, value in keys.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        match value:
            case list():
                writer.add_array(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def tokens_of(tokenizer: tokenizers.Tokenizer) -> list[str]:
    """All tokens, by their ids."""
    return sorted(vocabulary := tokenizer.get_vocab(), key=vocabulary.__getitem__)


def backend(path: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_buffer(read_text(GgufFile.open(path)).tokenizer_json or b"")


def assert_same(ours: tokenizers.Tokenizer, theirs: tokenizers.Tokenizer) -> None:
    @repeatable
    @given(TEXTS)
    def run(text: str) -> None:
        a, b = (t.encode(text, add_special_tokens=False).ids for t in (ours, theirs))
        assert a == b, text
        assert ours.decode(a) == theirs.decode(b)

    run()
