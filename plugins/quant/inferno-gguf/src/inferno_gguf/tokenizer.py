"""A GGUF vocabulary as a `tokenizer.json` document.

A file stores tokens, their types, scores or merges, and the name of the algorithm
(`tokenizer.ggml.model`):

- gpt2: byte-level BPE by merges, after pre-tokenizing by `tokenizer.ggml.pre` (`pretokenizers`);
- llama: SentencePiece's BPE, which merges the pair whose piece scores highest. Each way to
  make a piece of two others is a merge, best score first: the order of a plain BPE's list;
- gemma4: the same tokens, but with stored merges;
- t5: SentencePiece's unigram model, the best path by scores;
- bert: WordPiece (`wordpiece`).
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from inferno.errors import CheckpointError
from inferno_gguf import charsmap, wordpiece
from inferno_gguf.pretokenizers import DEFAULT, FALLBACK, PRETOKENIZERS, PreTokenizer
from inferno_gguf.reader import DAMAGED
from inferno_gguf.tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    Vocabulary,
    values_of,
)

log = logging.getLogger("inferno.gguf")

_ADDED = frozenset({CONTROL, UNKNOWN, USER_DEFINED})


def tokenizer_json(
    vocabulary: Vocabulary, not_stripping: Collection[str] | None = None
) -> dict[str, Any]:
    """Build the document, with the file's ids. If `not_stripping` is given, all other added tokens
    also match the whitespace after them."""
    document = _MODELS[vocabulary.model](vocabulary)
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary, not_stripping),
        "pre_tokenizer": None,
        **document,
    }


def _added_tokens(
    vocabulary: Vocabulary, not_stripping: Collection[str] | None
) -> list[dict[str, Any]]:
    """Tokens that are matched before normalization and pre-tokenization."""
    flags = {"single_word": False, "lstrip": False, "normalized": False}
    return [
        {
            "id": i,
            "content": (token := vocabulary.tokens[i]),
            **flags,
            "rstrip": not_stripping is not None and token not in not_stripping,
            "special": kind != USER_DEFINED,
        }
        for i, kind in enumerate(vocabulary.types)
        if kind in _ADDED
    ]


def _byte_level(vocabulary: Vocabulary) -> dict[str, Any]:
    pre = _pre_tokenizer(vocabulary)
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    cuts = [
        {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        for p in pre.patterns
    ]
    return {
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, byte_level]},
        "post_processor": _post_processor(vocabulary, bos=pre.add_bos, eos=False),
        "decoder": byte_level,
        "model": _bpe(vocabulary.ids(), vocabulary.merges(), ignore_merges=pre.ignore_merges),
    }


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    name = vocabulary.file.metadata.get("tokenizer.ggml.pre")
    if name is None:
        return DEFAULT
    known = PRETOKENIZERS.get(name) if isinstance(name, str) else None
    if known is None:
        log.warning(
            "%s: unknown pre-tokenizer %r; using llama-bpe's",
            vocabulary.file.path.name,
            name,
        )
    return known or FALLBACK


def _sentencepiece_bpe(vocabulary: Vocabulary) -> dict[str, Any]:
    ids, types = vocabulary.ids(), vocabulary.types
    pieces = {token: i for token, i in ids.items() if types[i] == NORMAL}
    stored = vocabulary.merges() if vocabulary.model == "gemma4" else None
    merges = _merges_of(pieces, vocabulary.scores()) if stored is None else stored
    bytes_known = "<0x00>" in ids
    unknown = vocabulary.tokens[vocabulary.special["unk"]] if "unk" in vocabulary.special else None
    prefix = vocabulary.flag("add_space_prefix", stored is None)
    cuts = {
        "type": "Split",
        "pattern": {"Regex": r"[^\n]+|[\n]+"},
        "behavior": "Isolated",
        "invert": False,
    }
    return {
        "normalizer": _spaces_written(prefix=prefix),
        "pre_tokenizer": None if stored is None else cuts,
        "post_processor": _post_processor(vocabulary, bos=True, eos=False),
        "decoder": _spaces_read(prefix=prefix),
        "model": _bpe(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=bytes_known),
    }


def _merges_of(pieces: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """List every way to make a piece of two others, best scored pieces first; for one piece,
    longest left part first."""
    merges = [
        (-scores[i], -cut, i, piece[:cut], piece[cut:])
        for piece, i in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _unigram(vocabulary: Vocabulary) -> dict[str, Any]:
    scores, tokens, types = vocabulary.scores(), vocabulary.tokens, vocabulary.types
    if "unk" not in vocabulary.special:
        raise CheckpointError(
            f"{vocabulary.file.path.name}: the tokenizer has no unknown token", DAMAGED
        )
    least = min((s for s, kind in zip(scores, types, strict=True) if kind == NORMAL), default=0.0)
    # The unknown token's score is derived from the lowest one, so fillers' scores must not count.
    # Trailing fillers can be left out.
    last = max((i for i, kind in enumerate(types) if kind != UNUSED), default=-1)
    pieces = [
        [t, s if kind == NORMAL else least]
        for t, s, kind in zip(tokens, scores, types, strict=True)
    ][: last + 1]
    normalizers = _charsmap(vocabulary)
    if vocabulary.flag("remove_extra_whitespaces", False):
        normalizers += [
            {"type": "Replace", "pattern": {"Regex": "^ +| +$"}, "content": ""},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]
    prefix = vocabulary.flag("add_space_prefix", True)
    normalizers += _spaces_written(prefix=prefix)["normalizers"]
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "post_processor": _post_processor(vocabulary, bos=False, eos=True),
        "decoder": _spaces_read(prefix=prefix),
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.special["unk"],
            "vocab": pieces,
            "byte_fallback": BYTE in types,
        },
    }


def _charsmap(vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """SentencePiece's compiled normalization rules, if the file has them."""
    values = values_of(vocabulary.file, "precompiled_charsmap", int)
    if not values:
        return []
    blob = bytes(v & 255 for v in values)
    if wrong := charsmap.problem(blob):
        raise CheckpointError(
            f"{vocabulary.file.path.name}: the tokenizer's normalization cannot be used: {wrong}",
            DAMAGED,
        )
    return [{"type": "Precompiled", "precompiled_charsmap": base64.b64encode(blob).decode()}]


def _bpe(
    ids: Mapping[str, int], merges: Sequence[str] | Sequence[tuple[str, str]], **options: Any
) -> dict[str, Any]:
    defaults = {
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    return {"type": "BPE", **defaults, **options, "vocab": ids, "merges": merges}


def _spaces_written(*, prefix: bool) -> dict[str, Any]:
    before = [{"type": "Prepend", "prepend": SPACE}] if prefix else []
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    return {"type": "Sequence", "normalizers": [*before, replace]}


def _spaces_read(*, prefix: bool) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    return {
        "type": "Sequence",
        "decoders": [*steps, {"type": "Strip", "content": " ", "start": 1, "stop": 0}][
            : 3 + prefix
        ],
    }


def _wordpiece(vocabulary: Vocabulary) -> dict[str, Any]:
    tokens, special = vocabulary.tokens, vocabulary.special
    if missing := {"cls", "sep", "unk"} - special.keys():
        raise CheckpointError(
            f"{vocabulary.file.path.name}: the tokenizer has no token for {', '.join(missing)}",
            DAMAGED,
        )
    controls = [t for t, kind in zip(tokens, vocabulary.types, strict=True) if kind != NORMAL]
    cased = wordpiece.is_cased(tokens, controls)
    key = "normalizer.strip_accents"
    strips = vocabulary.flag(key, False) if vocabulary.has(key) else None
    return wordpiece.document(
        vocabulary.ids(),
        (tokens[special["cls"]], tokens[special["sep"]]),
        tokens[special["unk"]],
        lowercase=vocabulary.flag("normalizer.lowercase", not cased),
        strip_accents=strips,
    )


def _post_processor(vocabulary: Vocabulary, *, bos: bool, eos: bool) -> dict[str, Any] | None:
    """Add BOS before and EOS after a string as the file says, by default as usual for its
    kind."""
    added = [
        name
        for name, usual in (("bos", bos), ("eos", eos))
        if vocabulary.flag(f"add_{name}_token", usual)
    ]
    names = {name: vocabulary.tokens[i] for name, i in vocabulary.special.items() if name in added}
    if not names:
        return None

    def special(name: str) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[name], "type_id": 0}}] if name in names else []

    def text(sequence: str) -> list[dict[str, Any]]:
        return [{"Sequence": {"id": sequence, "type_id": 0}}]

    # Encoders have a token between two texts, and those of RoBERTa's kind a second one.
    both = {"bos", "eos"} <= names.keys()
    doubled = vocabulary.model == "t5" and not vocabulary.has("add_sep_token")
    doubled = doubled or vocabulary.flag("add_sep_token", False)
    doubled = doubled and vocabulary.file.metadata.get("tokenizer.ggml.pre") != "modern-bert"
    between = [*special("eos"), *(special("eos") if doubled else [])] if both else []

    tokens = {
        t: {"id": t, "ids": [vocabulary.special[name]], "tokens": [t]} for name, t in names.items()
    }
    return {
        "type": "TemplateProcessing",
        "single": [*special("bos"), *text("A"), *special("eos")],
        "pair": [*special("bos"), *text("A"), *between, *text("B"), *special("eos")],
        "special_tokens": tokens,
    }


_MODELS = {
    "gpt2": _byte_level,
    "llama": _sentencepiece_bpe,
    "gemma4": _sentencepiece_bpe,
    "t5": _unigram,
    "bert": _wordpiece,
}
