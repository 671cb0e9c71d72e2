"""BERT's WordPiece vocabularies (`tokenizer.ggml.model` is `bert`).

Files write the first piece of a word with SentencePiece's character before it, and those that go on
without WordPiece's `##`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

SPACE = "▁"
CONTINUES = "##"
LONGEST_WORD = 100
"""Characters; a longer word is unknown. Of all published vocabularies."""


def spelt(token: str, *, is_control: bool) -> str:
    """Return a file's token as WordPiece writes it."""
    is_bracketed = len(token) > 2 and token.startswith("[") and token.endswith("]")
    if is_control or is_bracketed:  # older converters left all names in brackets as they were
        return token
    return token[1:] if token.startswith(SPACE) and len(token) > 1 else f"{CONTINUES}{token}"


def stored(token: str, *, is_control: bool) -> str:
    """Return a token of WordPiece as files write it: the inverse of `spelt`."""
    if is_control:
        return token
    return token.removeprefix(CONTINUES) if token.startswith(CONTINUES) else f"{SPACE}{token}"


def is_cased(tokens: Collection[str], controls: Collection[str]) -> bool:
    """Return whether a vocabulary has upper case: then texts keep theirs."""
    names = set(controls)
    plain = (t for t in tokens if t not in names and not (t.startswith("[") and t.endswith("]")))
    return any(character.isupper() for token in plain for character in token)


def document(
    ids: Mapping[str, int],
    ends: tuple[str, str],
    unknown: str,
    *,
    lowercase: bool,
    strip_accents: bool | None,
) -> dict[str, Any]:
    """Build the parts of a `tokenizer.json`. `ends` are the tokens before and behind a text;
    `strip_accents` of None is as `lowercase`."""
    first, last = ends
    return {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": strip_accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [_special(first), _text("A"), _special(last)],
            "pair": [
                _special(first),
                _text("A"),
                _special(last),
                _text("B", kind=1),
                _special(last, kind=1),
            ],
            "special_tokens": {
                token: {"id": token, "ids": [ids[token]], "tokens": [token]} for token in ends
            },
        },
        "decoder": {"type": "WordPiece", "prefix": CONTINUES, "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unknown,
            "continuing_subword_prefix": CONTINUES,
            "max_input_chars_per_word": LONGEST_WORD,
            "vocab": ids,
        },
    }


def _special(token: str, kind: int = 0) -> dict[str, Any]:
    return {"SpecialToken": {"id": token, "type_id": kind}}


def _text(name: str, kind: int = 0) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": kind}}


def metadata(
    document: Mapping[str, Any], tokens: Sequence[str], controls: Collection[str]
) -> dict[str, Any]:
    """Return the keys of a `tokenizer.json` of WordPiece. Raises ValueError for what files do not
    say."""
    normalizer, model = document.get("normalizer") or {}, document["model"]
    if normalizer.get("type") != "BertNormalizer" or not normalizer.get("clean_text", True):
        raise ValueError(f"with a normalizer of type {normalizer.get('type')}")
    if model.get("continuing_subword_prefix", CONTINUES) != CONTINUES:
        raise ValueError(f"with {model['continuing_subword_prefix']!r} before pieces of a word")
    lowercase = bool(normalizer.get("lowercase", True))
    strips = normalizer.get("strip_accents")
    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [stored(t, is_control=t in controls) for t in tokens],
        "tokenizer.ggml.normalizer.lowercase": lowercase,
        "tokenizer.ggml.normalizer.strip_accents": lowercase if strips is None else bool(strips),
    }
