"""SentencePiece's vocabularies, trained here and written as llama.cpp's converters would: the same
ids for any string."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest
import tokenizers
from gguf import TokenType
from gguf_models import architectures
from gguf_vocabulary import WORDS, assert_same, backend, tokens_of, write
from tokenizers import Regex, decoders, models, normalizers, trainers

from inferno.errors import CheckpointError
from inferno.testing import Tokenizer
from inferno_gguf.checkpoint import GgufCheckpoint
from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text

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
    tokens = tokens_of(trained)
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


@pytest.mark.parametrize(
    ("architecture", "tokens"),
    [
        ("phi3", ["<|user|>", "▁H", "<|end|>", "<|user|>", "<s>", "▁", "▁H"]),
        ("llama", ["<|user|>", "▁", "\n", "H", "<|end|>", "▁", "\n", "<|user|>", "<s>", "▁", "▁H"]),
    ],
)
def test_added_tokens_strip_what_follows_where_the_dialect_says_so(
    architecture: str, tokens: list[str], tmp_path: Path
) -> None:
    """Phi-3's do, in Hugging Face's tokenizer and in llama.cpp; no file says it."""
    pieces = ["<unk>", "<s>", "</s>", "▁", "H", "\n", "▁H", "<|user|>", "<|end|>"]
    types = [2, 3, 3, 1, 1, 1, 1, 3, 4]
    path = write(
        tmp_path / "model.gguf",
        "llama",
        pieces,
        types,
        architecture,
        scores=[0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -0.5, 0.0, 0.0],
        **{f"{architecture}.block_count": 0, f"{architecture}.context_length": 64},
    )
    checkpoint = GgufCheckpoint.open(path, architectures())
    document = checkpoint.text().tokenizer_json
    assert document is not None
    ours = tokenizers.Tokenizer.from_buffer(document)
    token_ids = ours.encode("<|user|>\nH<|end|>\n<|user|><s> H", add_special_tokens=False).ids
    assert [pieces[i] for i in token_ids] == tokens


@pytest.mark.parametrize("said", [True, False], ids=["said", "older file"])
def test_a_unigram_of_xlm_roberta_has_tokens_around_and_between_texts(
    said: bool, tmp_path: Path
) -> None:
    """Ids 0 to 3 are <s>, <pad>, </s> and <unk>; two </s> are between the texts of a pair."""
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁", "a", "b", "▁a", "<mask>"]
    control, normal = TokenType.CONTROL, TokenType.NORMAL
    types = [control, control, control, TokenType.UNKNOWN, *[normal] * 4, control]
    ids = {"bos": 0, "padding": 1, "eos": 2, "unknown": 3, "seperator": 2, "cls": 0, "mask": 8}
    path = write(
        tmp_path / "model.gguf",
        "t5",
        tokens,
        types,
        "bert",
        scores=[0.0] * 4 + [-2.0, -1.0, -1.5, -0.5, 0.0],
        add_bos_token=True,
        add_eos_token=True,
        **({"add_sep_token": True} if said else {}),
        **{f"{name}_token_id": i for name, i in ids.items()},
    )
    ours = backend(path)
    assert ours.encode("a b").ids == [0, 7, 4, 6, 2]
    assert ours.encode("a", "b").ids == [0, 7, 2, 2, 4, 6, 2]
    assert read_text(GgufFile.open(path)).tokenizer_config["mask_token"] == "<mask>"
