"""Encodes and decodes text with a checkpoint's `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from inferno.contracts import Checkpoint, TextAssets
from inferno.errors import CheckpointError, InfernoError, OptionError, RequestError
from inferno.text.suspect import decodes_suspectly, is_suspect

if TYPE_CHECKING:  # the engine process has no tokenizer until a grammar needs one
    import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MAX_ID = 2**32
"""The library's ids are unsigned 32-bit integers."""
_LONG = 10_000
"""Characters from which a string is encoded as a batch of one: that lets other threads run."""
_ANCHOR = "x"
"""A first token that no decoder changes: the token after it is decoded as in mid-string."""


def _byte_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-ins to the bytes they represent in byte-level vocabularies."""
    plain = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    rest = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(rest)}


_BYTES = _byte_alphabet()


class Encoded(Protocol):
    """What a text is encoded to."""

    @property
    def ids(self) -> list[int]: ...
    @property
    def offsets(self) -> list[tuple[int, int]]: ...
    @property
    def type_ids(self) -> list[int]: ...


class Tokenizer:
    """A checkpoint's tokenizer, with the bytes of each token."""

    waits: bool = False
    """Whether who encodes waits for another process."""

    def __init__(self, backend: tokenizers.Tokenizer, *, eos_token_ids: Sequence[int] = ()) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.eos_token_ids = tuple(eos_token_ids)
        """The model's end tokens, from every file that names some."""
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        """Number of tokens, including added ones. The model's vocabulary may be padded beyond
        it."""
        self._special = {
            i for i, token in backend.get_added_tokens_decoder().items() if token.special
        }
        # The special token that the tokenizer puts before every string, if any.
        self._bos = next((i for i in backend.encode("").ids if i in self._special), None)
        kinds = _kinds(backend.decoder)
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._known: dict[int, bytes] = {}

    @property
    def inside(self) -> Tokenizer:
        """The one that encodes in this process."""
        return self

    @property
    def backend(self) -> tokenizers.Tokenizer:
        return self._backend

    @property
    def is_suspect(self) -> bool:
        """Whether to encode may take far longer than a text is long (`text.suspect`)."""
        return is_suspect(self._backend)

    @cached_property
    def longest_token(self) -> int:
        """The most characters that a token can have: those of the longest entry of the
        vocabulary, which has one for each byte or character."""
        return max(map(len, self._backend.get_vocab(with_added_tokens=True)), default=1)

    def same_vocabulary(self, other: Tokenizer) -> bool:
        """Whether every token id that both have is the same string."""
        ours, theirs = (
            {i: token for token, i in each._backend.get_vocab(with_added_tokens=True).items()}
            for each in (self, other)
        )
        return all(theirs.get(i, token) == token for i, token in ours.items())

    @classmethod
    def from_assets(
        cls,
        assets: TextAssets,
        config: Mapping[str, Any] | None = None,
        *,
        stop_tokens: Sequence[str] = (),
    ) -> Tokenizer | None:
        """The checkpoint's tokenizer, or None if it has none. `config` is its config.json,
        `stop_tokens` are the architecture's.

        Raises CheckpointError if the tokenizer cannot be read."""
        if assets.tokenizer_json is not None:
            import tokenizers

            try:
                backend = tokenizers.Tokenizer.from_buffer(assets.tokenizer_json)
                if decodes_suspectly(backend):
                    raise ValueError("its decoder repeats groups, or writes long replacements")
            except BaseException as error:  # the library raises bare Exception
                if not isinstance(error, Exception) and not _is_panic(error):
                    raise
                raise CheckpointError(
                    f"tokenizer.json cannot be read: {error}",
                    "Fetch the checkpoint again, or update `tokenizers`.",
                ) from error
        elif assets.tokenizer_dir is not None:
            backend = _from_directory(assets.tokenizer_dir)
        else:
            return None
        return cls(backend, eos_token_ids=eos_token_ids(assets, config, backend, stop_tokens))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Encode a string. The special tokens are those the tokenizer itself adds, such as a
        leading BOS; a string that already begins with BOS, as rendered chats do, gets no second.
        Raises RequestError if the string is not valid Unicode."""
        ids: list[int] = self._encoded(text, add_special_tokens).ids
        doubled = add_special_tokens and self._bos is not None and ids[:2] == [self._bos, self._bos]
        return ids[1:] if doubled else ids

    def encode_pair(self, first: str, second: str) -> tuple[list[int], int]:
        """Encode two strings as one, with what the tokenizer writes around and between them.
        Returns also at which token the second begins, if the tokenizer says it by other token
        types, else 0. Raises RequestError as `encode`."""
        encoding = self._encoded(first, add_special_tokens=True, pair=second)
        return encoding.ids, encoding.type_ids.index(1) if 1 in encoding.type_ids else 0

    def encode_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Encode a string without adding special tokens. Returns the ids, and the start and end of
        each token in `text`, in characters. Raises RequestError as `encode`."""
        encoding = self._encoded(text, add_special_tokens=False, spans=True)
        return encoding.ids, encoding.offsets

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Decode ids. Ids without a token, such as padding rows of an embedding, are skipped."""
        known = [i for i in ids if 0 <= i < _MAX_ID]
        try:
            text: str = self._backend.decode(known, skip_special_tokens=skip_special_tokens)
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise InfernoError(
                "the model's tokenizer fails on these tokens", "Use another model."
            ) from error
        return text

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds in mid-string, perhaps part of a character. Empty for
        unknown ids."""
        data = self._known.get(token_id)
        if data is None:
            data = self._known[token_id] = self._middle(token_id)
        return data

    def middle_bytes(self, token_ids: Iterable[int], *, skip_special: bool = False) -> bytes:
        """Return the `token_bytes` of several tokens, without special ones if `skip_special`."""
        known, skipped = self._known, self._special if skip_special else ()
        return b"".join(
            [known[i] if i in known else self.token_bytes(i) for i in token_ids if i not in skipped]
        )

    def token_text(self, token_id: int) -> str:
        """`token_bytes` as a printable string; an incomplete character becomes U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def first_bytes(self, token_id: int) -> bytes:
        """The bytes that the token adds at the start of a string: SentencePiece tokenizers drop a
        space there."""
        token = self._token(token_id)
        if token is None or self._byte_level or self._fallback_byte(token) is not None:
            return self.token_bytes(token_id)
        return self._decode_tokens([token]).encode()

    def knows(self, token_id: int) -> bool:
        return self._token(token_id) is not None

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special

    def token_id(self, token: str) -> int | None:
        """The id of a token as it is written in the vocabulary."""
        number: int | None = self._backend.token_to_id(token)
        return number

    def _encoded(
        self, text: str, add_special_tokens: bool, *, spans: bool = False, pair: str | None = None
    ) -> Encoded:
        encoding: Encoded
        try:
            if len(text) + len(pair or "") < _LONG:
                encoding = self._backend.encode(text, pair, add_special_tokens=add_special_tokens)
                return encoding
            encode = self._backend.encode_batch if spans else self._backend.encode_batch_fast
            given = text if pair is None else (text, pair)
            [encoding] = encode([given], add_special_tokens=add_special_tokens)
            return encoding
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(
                "the prompt is not valid Unicode text",
                "Remove lone surrogates (\\ud800 to \\udfff).",
                param="prompt",
            ) from error
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise RequestError(
                "the model's tokenizer fails on this text",
                "Send another text, or use a model whose tokenizer.json is as usual.",
                param="prompt",
                code="tokenizer_failed",
            ) from error

    def _token(self, token_id: int) -> str | None:
        return self._backend.id_to_token(token_id) if 0 <= token_id < _MAX_ID else None

    def _middle(self, token_id: int) -> bytes:
        token = self._token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            # A character outside the alphabet means plain text: added tokens are stored
            # literally.
            return (
                bytes(_BYTES[c] for c in token)
                if all(c in _BYTES for c in token)
                else token.encode()
            )
        byte = self._fallback_byte(token)
        if byte is not None:
            return bytes((byte,))
        return self._decode_tokens([_ANCHOR, token])[len(_ANCHOR) :].encode()

    def _fallback_byte(self, token: str) -> int | None:
        """The byte of a byte token that is part of a character. The decoder handles ASCII ones,
        which are whole characters."""
        match = _BYTE_TOKEN.fullmatch(token) if self._byte_fallback else None
        return int(match[1], 16) if match and int(match[1], 16) >= 0x80 else None

    def _decode_tokens(self, tokens: list[str]) -> str:
        if self._backend.decoder is None:
            return " ".join(tokens)
        text: str = self._backend.decoder.decode(tokens)
        return text


def eos_token_ids(
    assets: TextAssets,
    config: Mapping[str, Any] | None = None,
    backend: tokenizers.Tokenizer | None = None,
    stop_tokens: Sequence[str] = (),
) -> tuple[int, ...]:
    """A model's end tokens: the union of those in generation_config.json, config.json, the
    tokenizer's `eos_token` and the architecture, in that order. Llama 3 names its end of turn only
    in the first, many others only in the third, and GGUF files often not at all."""
    ids: list[int] = []
    for source in (assets.generation_config, config or {}):
        value = source.get("eos_token_id")
        ids += [
            i for i in (value if isinstance(value, list | tuple) else [value]) if isinstance(i, int)
        ]
    for token in (special_token(assets.tokenizer_config, "eos_token"), *stop_tokens):
        if (
            backend is not None
            and token is not None
            and (token_id := backend.token_to_id(token)) is not None
        ):
            ids.append(token_id)
    return tuple(dict.fromkeys(ids))


def special_token(tokenizer_config: Mapping[str, Any], name: str) -> str | None:
    """A special token, stored as a string or as an object with `content`."""
    value = tokenizer_config.get(name)
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _is_panic(error: BaseException) -> bool:
    """Whether the library's own code has failed, in Rust: that is no Exception in Python."""
    return type(error).__name__ == "PanicException"


def _kinds(decoder: tokenizers.decoders.Decoder | None) -> set[str]:
    """The types of the decoder's steps. Its pickled state is its part of `tokenizer.json`;
    serializing the whole document would write megabytes of vocabulary."""
    if decoder is None:
        return set()
    document = json.loads(decoder.__getstate__())
    return {d["type"] for d in (document, *document.get("decoders", ()))}


def _from_directory(path: str) -> tokenizers.Tokenizer:
    """A tokenizer that only transformers can read, such as a bare SentencePiece model."""
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True).backend_tokenizer
    except Exception as error:  # tokenizer classes raise anything
        raise CheckpointError(
            f"the tokenizer in {path} cannot be read: {error}", "Fetch the checkpoint again."
        ) from error


def check_vocabulary(name: str, other: Checkpoint, tokenizer: Tokenizer | None) -> None:
    """Raise OptionError if a checkpoint's tokenizer differs: its tokens would mean other text."""
    theirs = Tokenizer.from_assets(other.text(), other.config)
    if tokenizer and theirs and not tokenizer.same_vocabulary(theirs):
        raise OptionError(f"{name} has another vocabulary", "Choose one with the same tokenizer.")
