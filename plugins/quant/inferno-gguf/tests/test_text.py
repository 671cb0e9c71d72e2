"""Tokenizers trained here, written as llama.cpp's converters would, and read back: the same ids for
any text."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from gguf import TokenType
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from inferno.errors import CheckpointError
from inferno.testing import ChatTemplate, Tokenizer, eos_token_ids
from inferno_gguf.pretokenizers import PRETOKENIZERS
from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text

repeatable = settings(deadline=None, derandomize=True, database=None)

WORDS = (
    """The quick brown fox jumps over 12 lazy dogs, doesn't it?  Größe, naïve, façade; 3.14159 and 2718281828!
def f(x):\n\treturn x ** 2  # squares\n\nこんにちは世界。 Привет, мир! 你好，世界 1234 ¿Qué tal? 🚀🚀 e\u0301 I'LL they've we're
<tag attr="value">text</tag> CamelCaseWords HTTPServer snake_case_words ... --- *** ((())) a  b   c    d\r\n\r\n"""
    * 3
)
"""A text that the tokenizers are trained on: pieces of every kind, often enough to merge."""
ODD = ["  ", "\n\n", "'S", "<|end|>", "<think>", "\u2028", "ſ", "0", "٣", "x̄"]
PIECES = sorted({*WORDS.split(" "), *"abcé ö世🚀\n\t\r ", *ODD})
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=12).map("".join)
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}"


def write(path: Path, model: str, tokens: Sequence[str], types: Sequence[int], **keys: Any) -> Path:
    """A file with that vocabulary; `keys` are of tokenizer.ggml, or whole ones where they have a
    dot."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(list(tokens))
    writer.add_token_types([int(t) for t in types])
    for key, value in keys.items():
        name = key if "." in key else f"tokenizer.ggml.{key}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        else:
            {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}[type(value)](
                name, value
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


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


# --- byte-level BPE -------------------------------------------------------------------------------

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
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}"
        r"\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| "
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
    tokens = [trained.id_to_token(i) for i in range(size)] + [
        f"[PAD{i}]" for i in range(size, size + fillers)
    ]
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
    special, thinking = (trained.token_to_id(t) for t in SPECIAL)
    assert tokenizer.eos_token_ids == (special,)
    assert tokenizer.is_special(special) and not tokenizer.is_special(thinking)
    assert tokenizer.token_bytes(trained.token_to_id("Ġ")) == b" " and not tokenizer.knows(
        trained.get_vocab_size()
    )


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


# --- SentencePiece --------------------------------------------------------------------------------

BYTES = [f"<0x{b:02X}>" for b in range(256)]


def sentencepiece_bpe(prefix: bool) -> tokenizers.Tokenizer:
    """A BPE over whole texts, written spaces and all, with bytes for what it does not know: what
    `llama` models are."""
    trained = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.normalizer = normalizers.Sequence(
        [*([normalizers.Prepend("▁")] if prefix else []), normalizers.Replace(" ", "▁")]
    )
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    trained.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<unk>", "<s>", "</s>", *BYTES, "<|user|>"],
        limit_alphabet=90,
        show_progress=False,
    )
    trained.train_from_iterator(WORDS.split("\n"), trainer)
    added = trained.get_vocab_size()
    document = json.loads(trained.to_str())
    document["added_tokens"] = [t for t in document["added_tokens"] if t["content"] not in BYTES]
    assert added == len(document["model"]["vocab"])
    return tokenizers.Tokenizer.from_str(json.dumps(document))


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_bpe(prefix: bool, tmp_path: Path) -> None:
    trained = sentencepiece_bpe(prefix)
    document = json.loads(trained.to_str())
    ranks = {
        left + right: i
        for i, (left, right) in reversed(list(enumerate(document["model"]["merges"])))
    }
    tokens = [trained.id_to_token(i) for i in range(trained.get_vocab_size())]
    kinds = dict.fromkeys(["<s>", "</s>"], TokenType.CONTROL)
    kinds |= {"<unk>": TokenType.UNKNOWN, "<|user|>": TokenType.USER_DEFINED}
    types = [TokenType.BYTE if t in BYTES else kinds.get(t, TokenType.NORMAL) for t in tokens]
    scores = [-float(ranks.get(t, 1e6)) for t in tokens]
    path = write(
        tmp_path / "model.gguf", "llama", tokens, types, scores=scores, add_space_prefix=prefix
    )
    ours = backend(path)
    assert ours.encode("").ids == [1], "these begin with BOS unless the file says otherwise"
    document["added_tokens"] = [
        {**t, "special": t["content"] != "<|user|>"} for t in document["added_tokens"]
    ]
    assert_same(ours, tokenizers.Tokenizer.from_str(json.dumps(document)))
    tokenizer = Tokenizer.from_assets(read_text(GgufFile.open(path)))
    assert tokenizer is not None and tokenizer.token_bytes(tokens.index("<0xE4>")) == b"\xe4"


def charsmap(**replaced: str) -> bytes:
    """SentencePiece's rules that replace one character by another."""
    units, texts = [0] * 1024, b""
    units[0] = 256 << 10
    for i, (source, target) in enumerate(replaced.items()):
        at, leaf = 256 ^ ord(source), 512 + i
        units[at], units[leaf] = ord(source) | 1 << 8 | (at ^ leaf) << 10, 1 << 31 | len(texts)
        texts += target.encode() + b"\0"
    return struct.pack(f"<{len(units) + 1}I", 4 * len(units), *units) + texts


@pytest.mark.parametrize("extra", [True, False], ids=["extra spaces removed", "kept"])
def test_unigram(extra: bool, tmp_path: Path) -> None:
    trained = tokenizers.Tokenizer(models.Unigram())
    rules = charsmap(x="y", Q="qu")
    spaces = (
        [normalizers.Replace(Regex("^ +| +$"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        if extra
        else []
    )
    trained.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(rules),
            *spaces,
            normalizers.Prepend("▁"),
            normalizers.Replace(" ", "▁"),
        ]
    )
    trained.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = trainers.UnigramTrainer(
        vocab_size=250,
        unk_token="<unk>",
        special_tokens=["<pad>", "</s>", "<unk>"],
        show_progress=False,
    )
    trained.train_from_iterator(WORDS.split("\n"), trainer)
    pieces = json.loads(trained.to_str())["model"]["vocab"]
    fillers = [(f"[PAD{i}]", -10_000.0) for i in range(len(pieces), len(pieces) + 5)]
    tokens, scores = ([p[i] for p in [*pieces, *fillers]] for i in (0, 1))
    scores = [
        struct.unpack("f", struct.pack("f", score))[0] for score in scores
    ]  # as they are stored: near-ties depend on it
    kinds = {"<pad>": TokenType.CONTROL, "</s>": TokenType.CONTROL, "<unk>": TokenType.UNKNOWN}
    types = [
        TokenType.UNUSED if t.startswith("[PAD") else kinds.get(t, TokenType.NORMAL) for t in tokens
    ]
    path = write(
        tmp_path / "model.gguf",
        "t5",
        tokens,
        types,
        scores=scores,
        remove_extra_whitespaces=extra,
        precompiled_charsmap=list(rules),
    )
    ours = backend(path)
    assert ours.get_vocab_size() == len(pieces)
    assert ours.encode("xQ").tokens == [
        *ours.encode("yqu", add_special_tokens=False).tokens,
        "</s>",
    ]
    document = json.loads(trained.to_str())
    least = min(scores[3 : len(pieces)])
    document["model"]["vocab"] = [
        [p[0], scores[i] if i > 2 else least] for i, p in enumerate(pieces)
    ]
    assert_same(ours, tokenizers.Tokenizer.from_str(json.dumps(document)))
    assert base64.b64encode(rules) in (read_text(GgufFile.open(path)).tokenizer_json or b"")


DAMAGED_RULES = {
    "empty trie": struct.pack("<I", 0) + b"x\0",
    "cut off": b"\4\0",
    "trie longer than the rest": struct.pack("<I", 2**32 - 4) + b"\0" * 8,
    "trie of parts of units": struct.pack("<I", 6) + b"\0" * 8,
    "trie smaller than a byte's children": struct.pack("<II", 4, 0) + b"x\0",
    "children outside": charsmap(x="y")[:4] + struct.pack("<I", 4096 << 10) + charsmap(x="y")[8:],
    "replacement outside": charsmap(x="y")[:-2],
    "replacement within a character": charsmap(x="ü", y="z").replace(b"\3\0\0\x80", b"\1\0\0\x80"),
    "replacement no text": charsmap(x="y")[:-2] + b"\xff\0",
}


@pytest.mark.parametrize("kind", DAMAGED_RULES)
def test_normalization_rules_that_would_crash_the_tokenizer_are_refused(
    kind: str, tmp_path: Path
) -> None:
    path = write(
        tmp_path / "model.gguf",
        "t5",
        ["<pad>", "</s>", "<unk>", "x"],
        [3, 3, 2, 1],
        scores=[0.0, 0.0, 0.0, -1.0],
        precompiled_charsmap=list(DAMAGED_RULES[kind]),
    )
    with pytest.raises(CheckpointError, match="normalization"):
        read_text(GgufFile.open(path))


def test_merges_that_are_stored_for_written_spaces(tmp_path: Path) -> None:
    """gemma4: neither bytes as letters nor scores."""
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", *BYTES, "▁", "a", "b", "▁a", "ab", "\n", "\n\n"]
    types = [3, 3, 3, 2, *[6] * 256, *[1] * 7]
    merges = ["▁ a", "a b", "\n \n"]
    path = write(
        tmp_path / "model.gguf",
        "gemma4",
        tokens,
        types,
        merges=merges,
        bos_token_id=2,
        eos_token_id=1,
        unknown_token_id=3,
    )
    ours = backend(path)
    assert ours.encode("a ab\n\na€").tokens == [
        "<bos>",
        "a",
        "▁a",
        "b",
        "\n\n",
        "a",
        "<0xE2>",
        "<0x82>",
        "<0xAC>",
    ]
    assert ours.decode(ours.encode("a ab\n\na€").ids) == "a ab\n\na€"


# --- what else a file says ------------------------------------------------------------------------

PLAIN: dict[str, Any] = {
    "model": "gpt2",
    "tokens": ["a", "b", "ab", "<|x|>", "<|im_end|>"],
    "types": [1, 1, 1, 3, 3],
    "merges": ["a b"],
}


def test_ends_of_a_turn_are_all_that_the_file_names_or_that_their_names_tell(
    tmp_path: Path,
) -> None:
    path = write(
        tmp_path / "model.gguf",
        **{**PLAIN, "eos_token_id": 3, "eot_token_id": 2, "padding_token_id": 0},
    )
    assets = read_text(GgufFile.open(path))
    assert eos_token_ids(assets) == (3, 2, 4)
    assert assets.tokenizer_config == {"eos_token": "<|x|>", "eot_token": "ab", "pad_token": "a"}


def test_a_message_of_several_does_not_end_the_turn(tmp_path: Path) -> None:
    tokens = ["a", "<|end|>", "<|return|>", "<|call|>"]
    path = write(
        tmp_path / "model.gguf", "gpt2", tokens, [1, 3, 3, 3], merges=["a b"], eos_token_id=2
    )
    assert set(eos_token_ids(read_text(GgufFile.open(path)))) == {2, 3}


def test_chat_templates(tmp_path: Path) -> None:
    key = "tokenizer.chat_template"
    path = write(tmp_path / "model.gguf", **PLAIN, **{key: TEMPLATE})
    rendered = ChatTemplate.from_assets(read_text(GgufFile.open(path))).render(
        [{"role": "user", "content": "hi"}]
    )
    assert rendered == "<|user|>hi<|end|>"
    named = {key: TEMPLATE, f"{key}.tool_use": "tools {{ bos_token }}"}
    path = write(tmp_path / "model.gguf", **PLAIN, **named, bos_token_id=3)
    template = ChatTemplate.from_assets(read_text(GgufFile.open(path)))
    assert template.source() == TEMPLATE
    assert (
        template.render([{"role": "user", "content": "hi"}], tools=[{"type": "function"}])
        == "tools <|x|>"
    )


def test_recommended_sampling(tmp_path: Path) -> None:
    keys = {
        "general.sampling.temp": 0.6,
        "general.sampling.top_k": 20,
        "general.sampling.top_p": 0.95,
    }
    config = read_text(
        GgufFile.open(write(tmp_path / "model.gguf", **PLAIN, **keys))
    ).generation_config
    assert config == {"eos_token_id": [4], "temperature": 0.6, "top_k": 20, "top_p": 0.95}


def test_a_tokenizer_that_the_file_holds_whole_is_taken(tmp_path: Path) -> None:
    whole = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).to_str()
    path = write(tmp_path / "model.gguf", **PLAIN, **{"tokenizer.huggingface.json": whole})
    assert read_text(GgufFile.open(path)).tokenizer_json == whole.encode()


def test_a_model_without_a_tokenizer_still_runs_on_ids(tmp_path: Path) -> None:
    assert (
        read_text(GgufFile.open(write(tmp_path / "model.gguf", "none", ["a"], [1]))).tokenizer_json
        is None
    )


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"model": "bert"}, "type 'bert'.*"),
        ({"model": "rwkv"}, "type 'rwkv'"),
        ({"tokens": ["a", "a", "b", "c", "d"]}, "5 tokens, 4 of them different"),
        ({"types": [1, 1]}, "with 2 types"),
        ({"merges": ["ab"]}, "not a pair"),
        ({"merges": [1, 2]}, "merges is not a list of str"),
        ({"model": "llama"}, "0 scores for 5 tokens"),
        ({"model": "llama", "scores": [1.0]}, "1 scores for 5 tokens"),
        (
            {
                "model": "t5",
                "scores": [0.0] * 5,
                "unknown_token_id": 5,
                "tokens": list("ab"),
                "types": [1, 1],
            },
            "scores",
        ),
        (
            {"model": "t5", "scores": [0.0] * 2, "tokens": list("ab"), "types": [1, 1]},
            "no unknown token",
        ),
        ({"tokenizer.chat_template": 3}, "not a string"),
    ],
)
def test_vocabularies_that_cannot_be(
    changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "model.gguf", **{**PLAIN, **changes})
    with pytest.raises(CheckpointError, match=complaint) as caught:
        read_text(GgufFile.open(path))
    assert caught.value.remedy
