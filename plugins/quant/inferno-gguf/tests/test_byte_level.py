"""Byte-level BPE, trained here and written as llama.cpp's converters would: the same ids for any
string."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import TokenType
from gguf_vocabulary import WORDS, assert_same, backend, tokens_of, write
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from inferno.testing import Tokenizer
from inferno_gguf.pretokenizers import PRETOKENIZERS
from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text

ORIGINAL = {
    "llama-bpe": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
        r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "qwen2": [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
        r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| "
        r"?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"],
}
"""As they stand in the `tokenizer.json` of Llama 3, Qwen 2, Mistral Nemo and GPT-2."""
SPECIAL = ["<|end|>", "<think>"]


def byte_level(patterns: list[str], ignore_merges: bool) -> tokenizers.Tokenizer:
    trained = tokenizers.Tokenizer(models.BPE(ignore_merges=ignore_merges))
    trained.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(pre_tokenizers.Split(Regex(p), "isolated") for p in patterns),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trained.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trained.train_from_iterator(
        [WORDS], trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    trained.add_special_tokens([SPECIAL[0]])
    trained.add_tokens([tokenizers.AddedToken(SPECIAL[1], normalized=False)])
    return trained


def write_bpe(
    path: Path, trained: tokenizers.Tokenizer, pre: str | None, fillers: int = 3, **keys: Any
) -> Path:
    """As llama.cpp's converter does: added tokens by their type, and fillers up to the size of the
    embedding."""
    document = json.loads(trained.to_str())
    size = trained.get_vocab_size()
    tokens = tokens_of(trained) + [f"[PAD{i}]" for i in range(size, size + fillers)]
    kinds = {SPECIAL[0]: TokenType.CONTROL, SPECIAL[1]: TokenType.USER_DEFINED}
    types = [
        TokenType.UNUSED if t.startswith("[PAD") else kinds.get(t, TokenType.NORMAL) for t in tokens
    ]
    merges = [m if isinstance(m, str) else " ".join(m) for m in document["model"]["merges"]]
    given = {} if pre is None else {"pre": pre}
    return write(
        path,
        "gpt2",
        tokens,
        types,
        merges=merges,
        eos_token_id=tokens.index(SPECIAL[0]),
        **given,
        **keys,
    )


@pytest.mark.parametrize("pre", ORIGINAL)
def test_byte_level_bpe(pre: str, tmp_path: Path) -> None:
    trained = byte_level(ORIGINAL[pre], PRETOKENIZERS[pre].ignore_merges)
    path = write_bpe(tmp_path / "model.gguf", trained, pre)
    ours = backend(path)
    assert ours.get_vocab() == trained.get_vocab(), "the fillers are no tokens"
    assert_same(ours, trained)
    tokenizer = Tokenizer.from_assets(read_text(GgufFile.open(path)))
    assert tokenizer is not None
    ids = trained.get_vocab()
    special, thinking = (ids[t] for t in SPECIAL)
    assert tokenizer.eos_token_ids == (special,)
    assert tokenizer.is_special(special) and not tokenizer.is_special(thinking)
    assert tokenizer.token_bytes(ids["Ġ"]) == b" " and not tokenizer.knows(len(ids))


@pytest.mark.parametrize("name", PRETOKENIZERS)
def test_every_pre_tokenizer_loads_and_loses_nothing(name: str, tmp_path: Path) -> None:
    trained = byte_level(ORIGINAL["gpt-2"], False)
    ours = backend(write_bpe(tmp_path / "model.gguf", trained, name))
    for text in (WORDS, "", " ", "\n", "1234567 ABCdef", "İstanbul ǅ ªº"):
        assert ours.decode(ours.encode(text, add_special_tokens=False).ids) == text


PARTS = {
    "llama-bpe": ("I'LL 12345 x\n\n  y", ["I", "'LL", " ", "123", "45", " x", "\n\n", " ", " y"]),
    "qwen2": ("I'll 123", ["I", "'ll", " ", "1", "2", "3"]),
    "gpt-2": ("I'll 12345  x", ["I", "'ll", " 12345", " ", " x"]),
    "falcon": ("a,b 12345", ["a", ",", "b", " ", "123", "45"]),
    "default": ("a,b 1234 x", ["a", ",", "b", " ", "123", "4", " x"]),
    "starcoder": ("ab 12 c", ["ab", " ", "1", "2", " c"]),
    "deepseek-llm": ("ab cd 12\n世界x", ["ab", " cd", " ", "1", "2", "\n", "世界", "x"]),
    "deepseek-coder": ("ab cd!1\n", ["ab", " cd", "!", "1", "\n"]),
    "deepseek-v3": ("ab 1234 世界 x!", ["ab", " ", "123", "4", " ", "世界", " x", "!"]),
    "tekken": ("HelloWorld 12", ["Hello", "World", " ", "1", "2"]),
    "gpt-4o": ("HelloWorld's 1234", ["Hello", "World's", " ", "123", "4"]),
    "glm4": ("Hello 1234", ["Hello", " ", "123", "4"]),
    "bloom": ("a b.c", ["a", " b", ".", "c"]),
    "viking": ("ab12", ["ab", "1", "2"]),
    "kimi-k2": ("你好abc 1234", ["你好", "abc", " ", "123", "4"]),
    "qwen35": ("e\u0301a 12", ["e\u0301a", " ", "1", "2"]),
    "superbpe": ("1234567", ["1", "234", "567"]),
    "seed-coder": ("a !!\n12", ["a", " !!", "\n", "1", "2"]),
    "bailingmoe": ("I'll\n\n x", ["I", "'ll", "\n\n", " x"]),
    "minicpm5": ("a1234", ["a", "123", "4"]),
    "tiny_aya": ("1234567 a", ["1", "234", "567", " a"]),
}


@pytest.mark.parametrize("name", PARTS)
def test_how_a_text_is_cut(name: str, tmp_path: Path) -> None:
    text, expected = PARTS[name]
    trained = byte_level(ORIGINAL["gpt-2"], False)
    cut = backend(write_bpe(tmp_path / "model.gguf", trained, name)).pre_tokenizer.pre_tokenize_str(
        text
    )
    assert [text[start:end] for _, (start, end) in cut] == expected


def test_a_name_from_the_future_falls_back_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trained = byte_level(ORIGINAL["llama-bpe"], False)
    assert_same(backend(write_bpe(tmp_path / "model.gguf", trained, "gpt-9")), trained)
    assert "unknown pre-tokenizer 'gpt-9'" in caplog.text


@pytest.mark.parametrize(
    ("pre", "given", "added"),
    [("gpt-2", None, 0), ("gpt-2", True, 1), ("llama-bpe", None, 1), ("llama-bpe", False, 0)],
)
def test_what_is_put_before_a_text(
    pre: str, given: bool | None, added: int, tmp_path: Path
) -> None:
    trained = byte_level(ORIGINAL[pre], False)
    bos = trained.token_to_id(SPECIAL[0])
    keys = {} if given is None else {"add_bos_token": given}
    ours = backend(
        write_bpe(
            tmp_path / "model.gguf", trained, pre, bos_token_id=bos, add_eos_token=True, **keys
        )
    )
    assert ours.encode("").ids == [bos] * added + [bos]
    assert ours.encode("a").ids == [bos] * added + [trained.token_to_id("a"), bos]
