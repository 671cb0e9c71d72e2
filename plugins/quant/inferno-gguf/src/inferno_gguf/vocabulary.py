"""A `tokenizer.json` as a GGUF file's vocabulary: the inverse of `tokenizer.tokenizer_json`.

Files store the name of a pre-tokenizer instead of its patterns, and scores instead of
SentencePiece's merges. What is written is read back and compared with the original, so that a
tokenizer that files cannot describe is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from inferno.contracts import TextAssets
from inferno.errors import CheckpointError, UnsupportedError
from inferno_gguf import wordpiece
from inferno_gguf.header import Typed
from inferno_gguf.pretokenizers import PRETOKENIZERS
from inferno_gguf.tokens import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    SPECIAL,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
)

USUAL = ("llama-bpe", "qwen2", "gpt-2", "deepseek-v3", "tekken", "gpt-4o", "glm4", "llama3")
"""Names of pre-tokenizers that are taken first, of several with the same patterns."""
_GPT2 = PRETOKENIZERS["gpt-2"].patterns[0]
WHOLE = "tokenizer.huggingface.json"

STRINGS = (
    "The quick brown fox jumps over 13 lazy dogs. It's 3.14159, isn't it? I'LL we've",
    "def f(x: int) -> int:\n    return x ** 2  # squares\n\n\n\tif a != b:\r\n",
    "  two   spaces\t\ttabs \n\n\n end   ",
    "Größe naïve façade Привет мир жизнь ΑΒΓ",
    "汉字と かな 한국어 你好，世界 1234567",
    "🙂🚀 \U0001f469\u200d\U0001f467 x ½ ² !!!??? ...,;:--__//\\ [](){}<>",
    "<s> [INST] hi </s> <unk> <0x0A> ▁under CamelCase HTTPServer snake_case",
    "مرحبا 123 \u00a0no\u2003break\u200b a1b22c333d4444",
    "",
    " ",
    "\n",
    "x",
)
"""What both tokenizers must cut alike."""


def vocabulary_metadata(assets: TextAssets, rows: int) -> dict[str, Any]:
    """Return the keys of the tokenizer, for an embedding of `rows` rows. Raises CheckpointError
    without a tokenizer, UnsupportedError for one that files cannot describe."""
    if assets.tokenizer_json is None:
        raise CheckpointError(
            "the model has no tokenizer.json, and GGUF files need a tokenizer",
            "Put it into the model's folder: transformers writes it with "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR).",
        )
    document = json.loads(assets.tokenizer_json)
    model = document.get("model", {})
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in ("BPE", "WordPiece"):
        raise _refused(
            f"of type {kind}, and BPE (byte-level or SentencePiece's) and WordPiece are written"
        )
    tokens, types = _tokens(document, rows)
    entries: dict[str, Any] = {"tokenizer.ggml.tokens": tokens}
    if kind == "WordPiece":
        controls = {t for t, each in zip(tokens, types, strict=True) if each != NORMAL}
        try:
            entries |= wordpiece.metadata(document, tokens, controls)
        except ValueError as error:
            raise _refused(f"WordPiece, {error}") from error
    elif model.get("byte_fallback"):
        entries |= _sentencepiece(document, tokens)
    else:
        entries |= _byte_level(document)
    entries["tokenizer.ggml.token_type"] = Typed("i32", types)
    entries |= _special(assets, tokens, types)
    entries |= _around(assets, entries, tokens)
    if document.get("normalizer") and kind == "BPE" and not model.get("byte_fallback"):
        # Unicode normalization: inferno reads it from here, llama.cpp does without.
        entries[WHOLE] = assets.tokenizer_json.decode()
    return entries


def _refused(what: str) -> UnsupportedError:
    return UnsupportedError(
        f"GGUF files cannot describe this tokenizer: it is {what}",
        "Convert to safetensors or to a scheme of it instead.",
    )


def _tokens(document: Mapping[str, Any], rows: int) -> tuple[list[str], list[int]]:
    """Return the tokens and their types, with fillers for the embedding's other rows."""
    vocab: Mapping[str, int] = document["model"]["vocab"]
    names = {i: token for token, i in vocab.items()}
    types = dict.fromkeys(names, NORMAL)
    unknown = document["model"].get("unk_token")
    if document["model"].get("byte_fallback"):
        types |= {vocab[b]: BYTE for n in range(256) if (b := f"<0x{n:02X}>") in vocab}
    for added in document.get("added_tokens", ()):
        names[added["id"]] = added["content"]
        types[added["id"]] = CONTROL if added["special"] else USER_DEFINED
    if unknown in vocab and document["model"].get("byte_fallback"):
        types[vocab[unknown]] = UNKNOWN
    size = max(names, default=-1) + 1
    if size > rows:
        raise CheckpointError(
            f"the tokenizer has {size} tokens, and the model's embedding has {rows} rows",
            "The tokenizer belongs to another model: check tokenizer.json.",
        )
    tokens = [names.get(i, f"[PAD{i}]") for i in range(rows)]
    return tokens, [types.get(i, UNUSED) for i in range(rows)]


def _byte_level(document: Mapping[str, Any]) -> dict[str, Any]:
    patterns = _patterns(document.get("pre_tokenizer"))
    ignore = bool(document["model"].get("ignore_merges", False))
    names = [
        name
        for name in dict.fromkeys((*USUAL, *PRETOKENIZERS))
        if name in PRETOKENIZERS
        and PRETOKENIZERS[name].patterns == patterns
        and PRETOKENIZERS[name].ignore_merges == ignore
    ]
    if not names:
        raise _refused("byte-level, with patterns of a pre-tokenizer that has no name")
    merges = document["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": names[0],
        "tokenizer.ggml.merges": [m if isinstance(m, str) else " ".join(m) for m in merges],
    }


def _patterns(pre_tokenizer: Any) -> tuple[str, ...]:
    """Return the patterns of a byte-level pre-tokenizer, in order."""
    steps = (pre_tokenizer or {}).get("pretokenizers", [pre_tokenizer])
    regexes: list[str] = []
    for step in steps:
        match step:
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated"}:
                regexes.append(pattern)
            case {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed"} if step[
                "invert"
            ]:
                regexes.append(pattern)  # the matches, and all is matched
            case {"type": "Digits", "individual_digits": True}:
                regexes.append(r"\p{N}")
            case {"type": "ByteLevel", "add_prefix_space": False}:
                regexes += [_GPT2] if step.get("use_regex", True) else []
            case _:
                kind = step.get("type") if isinstance(step, Mapping) else None
                raise _refused(f"byte-level, with a pre-tokenizer of type {kind}")
    return tuple(regexes)


def _sentencepiece(document: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Give each piece a score: the earlier it is merged, the higher."""
    merges = document["model"]["merges"]
    pairs = [m.split(" ", 1) if isinstance(m, str) else m for m in merges]
    rank: dict[str, int] = {}
    for number, (left, right) in enumerate(pairs):
        rank.setdefault(left + right, number)
    last = float(len(pairs))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": [-float(rank.get(token, last)) for token in tokens],
        "tokenizer.ggml.add_space_prefix": _prefixes(document),
    }


def _prefixes(document: Mapping[str, Any]) -> bool:
    """Whether a space is put before a string."""
    normalizer, pre = document.get("normalizer") or {}, document.get("pre_tokenizer") or {}
    steps = normalizer.get("normalizers", [normalizer])
    if pre.get("type") == "Metaspace":
        return bool(pre.get("prepend_scheme", "always") != "never")
    return any(step.get("type") == "Prepend" and step["prepend"] == SPACE for step in steps)


def _special(assets: TextAssets, tokens: Sequence[str], types: Sequence[int]) -> dict[str, Any]:
    """Return the ids of special tokens: by their names, else those of `generation_config.json`.
    Tokens of plain text are left out: readers would not find them in a string."""
    ids = {token: i for i, token in enumerate(tokens) if types[i] != NORMAL}
    by_name: dict[str, int] = {}
    for name in SPECIAL:
        token = assets.tokenizer_config.get(f"{name}_token")
        token = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(token, str) and token in ids:
            by_name[name] = ids[token]
    for name in ("bos", "eos", "pad"):
        given = assets.generation_config.get(f"{name}_token_id")
        all_of = given if isinstance(given, list) else [given]
        known = [i for i in all_of if type(i) is int and i in ids.values()]
        if known:
            by_name.setdefault(name, known[0])
        if name == "eos":  # one that ends the turn and is not the end of a document
            others = [i for i in known if i != by_name.get("eos")]
            by_name |= {"eot": others[0]} if others else {}
    for name, other in (("bos", "cls"), ("eos", "sep")):  # encoders' names of the same
        if other in by_name:
            by_name.setdefault(name, by_name[other])
    return {f"tokenizer.ggml.{SPECIAL[name]}_token_id": i for name, i in by_name.items()}


def _around(assets: TextAssets, found: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    """Return whether BOS and EOS are put around a string."""
    assert assets.tokenizer_json is not None
    ids = _loaded(assets.tokenizer_json).encode("x").ids
    bos, eos = (found.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    return {
        "tokenizer.ggml.add_bos_token": len(ids) > 1 and bos is not None and ids[0] == bos,
        "tokenizer.ggml.add_eos_token": len(ids) > 1 and eos is not None and ids[-1] == eos,
    }


def _loaded(document: bytes) -> tokenizers.Tokenizer:
    """Return a tokenizer that gives a string's own tokens."""
    backend = tokenizers.Tokenizer.from_buffer(document)
    backend.no_padding()
    backend.no_truncation()
    return backend


def check_alike(original: bytes, written: bytes) -> None:
    """Raise UnsupportedError unless the tokenizer that is read from a file cuts strings like the
    original, up to Unicode normalization."""
    ours, theirs = _loaded(written), _loaded(original)
    normalized = theirs.normalizer is not None and ours.normalizer is None
    for string in STRINGS:
        given = theirs.normalizer.normalize_str(string) if normalized else string
        if ours.encode(given).ids != theirs.encode(string).ids:
            raise _refused(f"cut differently: {string[:40]!r}")


def template_metadata(assets: TextAssets) -> dict[str, Any]:
    """Return the keys of the chat templates."""
    named = assets.tokenizer_config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(named, Mapping):
        templates |= {str(name): text for name, text in named.items() if isinstance(text, str)}
    elif isinstance(named, list):
        templates |= {each["name"]: each["template"] for each in named}
    if assets.chat_template is not None and isinstance(assets.chat_template, str):
        templates["default"] = assets.chat_template
    metadata = {
        "tokenizer.chat_template" if name == "default" else f"tokenizer.chat_template.{name}": text
        for name, text in templates.items()
    }
    others = [name for name in templates if name != "default"]
    return metadata | ({"tokenizer.chat_templates": others} if others else {})
