"""BERT's vocabularies, trained here and written as llama.cpp's converters would: the same ids for
any string, and for pairs of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from gguf import TokenType
from gguf_vocabulary import WORDS, assert_same, backend, tokens_of, write
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, UnsupportedError
from inferno_gguf.reader import GgufFile
from inferno_gguf.text import read_text
from inferno_gguf.vocabulary import vocabulary_metadata

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def trained(*, lowercase: bool, strip_accents: bool | None = None) -> tokenizers.Tokenizer:
    bert = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=700, special_tokens=SPECIAL, limit_alphabet=90, show_progress=False
    )
    bert.train_from_iterator(WORDS.split("\n"), trainer)
    bert.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return bert


def phantom(token: str) -> str:
    """The spelling of files."""
    return token[2:] if token.startswith("##") else f"\u2581{token}"


def stored(path: Path, tokenizer: tokenizers.Tokenizer, **keys: Any) -> Path:
    tokens = tokens_of(tokenizer)
    types = [TokenType.CONTROL if t in SPECIAL else TokenType.NORMAL for t in tokens]
    names = [t if t in SPECIAL else phantom(t) for t in tokens]
    ids: dict[str, Any] = {
        "padding_token_id": 0,
        "unknown_token_id": 1,
        "bos_token_id": 2,
        "seperator_token_id": 3,
        "mask_token_id": 4,
    }
    return write(path, "bert", names, types, "bert", **{**ids, **keys})


@pytest.mark.parametrize("lowercase", [True, False])
def test_wordpiece(lowercase: bool, tmp_path: Path) -> None:
    """Of files that do not say whether texts keep their case, its vocabulary does."""
    theirs = trained(lowercase=lowercase)
    ours = backend(stored(tmp_path / "v.gguf", theirs))
    assert_same(ours, theirs)
    for pair in (("A heap", "is a tree [SEP] x"), ("", "x")):
        mine, other = (t.encode(*pair) for t in (ours, theirs))
        assert (mine.ids, mine.type_ids) == (other.ids, other.type_ids)


def test_a_file_may_say_what_a_normalizer_does(tmp_path: Path) -> None:
    theirs = trained(lowercase=True, strip_accents=False)
    keys = {"normalizer.lowercase": True, "normalizer.strip_accents": False}
    keys = {f"tokenizer.ggml.{key}": value for key, value in keys.items()}
    assert_same(backend(stored(tmp_path / "v.gguf", theirs, **keys)), theirs)


def test_names_in_brackets_are_whole_in_files_of_older_converters(tmp_path: Path) -> None:
    tokens = [*SPECIAL, "[unused0]", "\u2581a", "b", "\u2581"]
    types = [TokenType.CONTROL] * 5 + [TokenType.NORMAL] * 4
    path = write(tmp_path / "v.gguf", "bert", tokens, types, "bert", bos_token_id=2,
                 seperator_token_id=3, unknown_token_id=1)  # fmt: skip
    assert tokens_of(backend(path)) == [*SPECIAL, "[unused0]", "a", "##b", "##\u2581"]


def test_a_vocabulary_without_its_special_tokens_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "v.gguf", "bert", ["\u2581a"], [TokenType.NORMAL], "bert")
    with pytest.raises(CheckpointError, match="no token for"):
        read_text(GgufFile.open(path))


@pytest.mark.parametrize("lowercase", [True, False])
def test_what_is_written_reads_the_same(lowercase: bool, tmp_path: Path) -> None:
    theirs = trained(lowercase=lowercase)
    named = {f"{n}_token": f"[{n.upper()}]" for n in ("pad", "unk", "cls", "sep", "mask")}
    assets = TextAssets(tokenizer_json=theirs.to_str().encode(), tokenizer_config=named)
    metadata = vocabulary_metadata(assets, theirs.get_vocab_size())
    keys = {key: metadata[key] for key in metadata if key.endswith("_id") or "normalizer" in key}
    assert metadata["tokenizer.ggml.add_bos_token"] and metadata["tokenizer.ggml.add_eos_token"]
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"].value
    path = write(tmp_path / "v.gguf", "bert", tokens, types, "bert", **keys)
    assert_same(backend(path), theirs)


def test_a_normalizer_that_files_cannot_say_is_refused() -> None:
    document = json.loads(trained(lowercase=True).to_str())
    document["normalizer"] = {"type": "Lowercase"}
    assets = TextAssets(tokenizer_json=json.dumps(document).encode())
    with pytest.raises(UnsupportedError, match="normalizer of type Lowercase"):
        vocabulary_metadata(assets, 1000)
