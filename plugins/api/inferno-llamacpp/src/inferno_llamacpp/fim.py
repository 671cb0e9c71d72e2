"""Prompts that ask for the text between two others, by the special tokens of the vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import frozen

from inferno.errors import RequestError

if TYPE_CHECKING:
    from inferno.text import Tokenizer

_NAMES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<|fim_begin|>", "<|fim_hole|>", "<|fim_end|>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("<PRE>", "<SUF>", "<MID>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
"""Names under which vocabularies have the tokens: before the prefix, the suffix, the middle."""
_REPO = ("<|repo_name|>", "<reponame>")
_FILE = ("<|file_sep|>", "<file_sep>")


@frozen
class FIM:
    """The tokens of a vocabulary."""

    prefix: int
    suffix: int
    middle: int
    file: int | None
    repo: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> FIM:
        """Find the tokens. Raises RequestError if the vocabulary has none."""
        for names in _NAMES:
            prefix, suffix, middle = map(tokenizer.token_id, names)
            if prefix is not None and suffix is not None and middle is not None:
                return cls(
                    prefix, suffix, middle, _first(tokenizer, _FILE), _first(tokenizer, _REPO)
                )
        raise RequestError(
            "this model cannot fill in: its vocabulary has no tokens for prefix, suffix and middle",
            "Serve a model that was trained for it, or use /completion.",
            param="input_suffix",
        )

    def prompt(
        self,
        tokenizer: Tokenizer,
        prefix: str,
        suffix: str,
        *,
        extra: Sequence[tuple[str, str]] = (),
        begun: str = "",
    ) -> list[int]:
        """Return the prompt: other files by name, then prefix, suffix, and what the middle begins
        with."""

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        ids: list[int] = []
        if extra and self.file is not None:
            if self.repo is not None:
                ids += [self.repo, *encode("project\n")]
            for name, text in extra:
                ids += [self.file, *encode(f"{name}\n{text}")]
            ids += [self.file, *encode("file\n")]
        else:
            ids += encode("".join(f"--- {name} ---\n{text}\n\n" for name, text in extra))
        ids += [self.prefix, *encode(prefix), self.suffix, *encode(suffix), self.middle]
        return ids + encode(begun)


def _first(tokenizer: Tokenizer, names: Sequence[str]) -> int | None:
    return next((i for i in map(tokenizer.token_id, names) if i is not None), None)


def files(extra: Sequence[dict[str, Any]] | None) -> list[tuple[str, str]]:
    """Return the names and contents of `input_extra`. Raises RequestError."""
    pairs = []
    for i, each in enumerate(extra or ()):
        name, text = each.get("filename", "file"), each.get("text")
        if not isinstance(name, str) or not isinstance(text, str):
            raise RequestError(
                f"input_extra[{i}] has no text",
                "Send objects of filename and text.",
                param=f"input_extra[{i}]",
            )
        pairs.append((name, text))
    return pairs
