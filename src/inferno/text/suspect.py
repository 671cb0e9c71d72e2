"""Whether a tokenizer's file describes work that may take far longer than its text is long.

A regular expression that repeats a group may try every way to divide a text: seconds for thirty
characters, and the library gives up on each of them only after ten million attempts. One that reads
a run of characters anew from each of them takes minutes for a prompt of a hundred thousand
(`expressions`). Replacements may make a text a thousand times as long. What most tokenizers have is
none of these.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from inferno.text.expressions import is_proportionate

if TYPE_CHECKING:
    import tokenizers

_LONGEST_WORD = 1000
"""Characters of a word that WordPiece looks up in parts: the time grows with their square."""
_MOST_GROWTH = 1000
"""How many times as long replacements may make a text."""


def is_suspect(backend: tokenizers.Tokenizer) -> bool:
    """Whether to encode may take far longer than a text is long."""
    longest = getattr(backend.model, "max_input_chars_per_word", 0) or 0
    parts = (backend.normalizer, backend.pre_tokenizer)
    return longest > _LONGEST_WORD or any(map(_is_suspect_part, parts))


def decodes_suspectly(backend: tokenizers.Tokenizer) -> bool:
    """Whether to decode may."""
    return _is_suspect_part(backend.decoder)


def _is_suspect_part(part: Any) -> bool:
    if part is None:
        return False
    # Its pickled state is its part of `tokenizer.json`, without names in an escaped spelling.
    steps, growth = json.loads(part.__getstate__()), 1
    for step in _steps(steps):
        pattern = step.get("pattern")
        regex = pattern.get("Regex", "") if isinstance(pattern, dict) else ""
        if not is_proportionate(regex):
            return True
        if step.get("type") == "Replace":
            growth *= max(1, len(step.get("content", "")))
    return growth > _MOST_GROWTH


def _steps(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a document."""
    if isinstance(document, dict):
        yield document
        document = document.values()
    elif not isinstance(document, list):
        return
    for each in document:
        yield from _steps(each)
