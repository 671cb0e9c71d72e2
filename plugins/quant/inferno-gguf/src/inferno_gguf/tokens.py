"""The tokens of a GGUF file, and what it says of them, checked."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Self

from attrs import field, frozen

from inferno.errors import CheckpointError
from inferno_gguf import wordpiece
from inferno_gguf.reader import DAMAGED, GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""Token types, by ggml's ids."""
SPACE = "▁"
"""SentencePiece's character for a space."""

MODELS = ("gpt2", "llama", "gemma4", "t5", "bert")
"""Tokenizers that are read."""

SPECIAL = {
    "bos": "bos",
    "eos": "eos",
    "eot": "eot",
    "eom": "eom",
    "unk": "unknown",
    "pad": "padding",
    "sep": "seperator",
    "cls": "cls",
    "mask": "mask",
}
"""Special tokens -> how the keys of their ids spell them."""
DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "llama": {"bos": 1, "eos": 2, "unk": 0},
    "t5": {"eos": 1, "unk": 2, "pad": 0},
    "bert": {"unk": 100, "sep": 102, "pad": 0, "mask": 103},
}
"""Ids that files leave out, by tokenizer."""


@frozen
class Vocabulary:
    """The tokenizer's metadata, checked."""

    file: GgufFile
    model: str
    tokens: list[str]
    types: list[int]
    special: Mapping[str, int]
    """Ids by name: bos, eos, eot, eom, unk, pad, sep, cls, mask."""
    _ids: dict[str, int] = field(factory=dict)

    @classmethod
    def read(cls, file: GgufFile) -> Self:
        model = file.metadata["tokenizer.ggml.model"]
        if model not in MODELS:
            raise CheckpointError(
                f"{file.path.name}: tokenizers of type {model!r} are not supported",
                f"Supported: {', '.join(MODELS)}.",
            )
        tokens = values_of(file, "tokens", str)
        tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
        types = values_of(file, "token_type", int) or [NORMAL] * len(tokens)
        if model == "bert" and len(types) == len(tokens):
            tokens = [
                wordpiece.spelt(token, is_control=kind == CONTROL)
                for token, kind in zip(tokens, types, strict=True)
            ]
        ids = {token: i for i, token in enumerate(tokens)}
        if len(types) != len(tokens) or len(ids) != len(tokens):
            raise CheckpointError(
                f"{file.path.name}: {len(tokens)} tokens, {len(ids)} of them different, with "
                f"{len(types)} types",
                DAMAGED,
            )
        special = dict(DEFAULTS.get(model, {}))
        for name, key in SPECIAL.items():
            given = file.metadata.get(f"tokenizer.ggml.{key}_token_id")
            if type(given) is int:
                special[name] = given
        ends: tuple[str, ...] = ("bos", "eos", "eot", "eom")
        if model == "bert":
            special.setdefault("cls", special.get("bos", 101))
            ends = ("unk", "sep", "pad", "cls", "mask")
        special = {name: i for name, i in special.items() if 0 <= i < len(tokens)}
        for name in ends:  # some converters omit their types
            if name in special and types[special[name]] == NORMAL:
                types[special[name]] = CONTROL
        return cls(file, model, tokens, types, special, ids)

    def has(self, key: str) -> bool:
        return f"tokenizer.ggml.{key}" in self.file.metadata

    def flag(self, key: str, default: bool) -> bool:
        value = self.file.metadata.get(f"tokenizer.ggml.{key}", default)
        return value if isinstance(value, bool) else default

    def scores(self) -> list[float]:
        array = values_of(self.file, "scores", float)
        if len(array) != len(self.tokens):
            raise CheckpointError(
                f"{self.file.path.name}: {len(array)} scores for {len(self.tokens)} tokens", DAMAGED
            )
        return array

    def merges(self) -> list[str] | list[tuple[str, str]]:
        """Pairs in order, most as "left right". A token may hold a space, but begins with none that
        ends a pair."""
        merges: list[str] = values_of(self.file, "merges", str)
        if all(merge.count(" ") == 1 for merge in merges):
            return merges
        cuts = [merge.find(" ", 1) for merge in merges]
        if -1 in cuts:
            raise CheckpointError(
                f"{self.file.path.name}: the merge {merges[cuts.index(-1)]!r} is not a pair",
                DAMAGED,
            )
        return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]

    def ids(self) -> dict[str, int]:
        """Ids by token, without the fillers that converters invent for unused rows."""
        by_token = dict(self._ids)
        for i, kind in enumerate(self.types):
            if kind == UNUSED and self.tokens[i] == f"[PAD{i}]":
                del by_token[self.tokens[i]]
        return by_token

    def controls(self, names: Collection[str]) -> list[int]:
        """Ids of the control tokens with one of these names."""
        return [
            i
            for name in names
            if (i := self._ids.get(name)) is not None and self.types[i] == CONTROL
        ]

    def special_names(self) -> dict[str, Any]:
        """The entries of `tokenizer_config.json`."""
        return {
            f"{name}_token": self.tokens[self.special[name]]
            for name in SPECIAL
            if name in self.special
        }


def values_of(file: GgufFile, key: str, kind: type) -> list[Any]:
    """An array of the tokenizer's metadata; empty where there is none."""
    values = file.metadata.get(f"tokenizer.ggml.{key}", [])
    if not isinstance(values, list) or (
        values and type(values[0]) is not kind and (kind, type(values[0])) != (float, int)
    ):
        raise CheckpointError(
            f"{file.path.name}: tokenizer.ggml.{key} is not a list of {kind.__name__}", DAMAGED
        )
    return values
