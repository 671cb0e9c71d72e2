"""Prompt lookup: drafts are what followed the same tokens earlier in the sequence. No model.

Good where an output repeats its prompt: edited code, quotes, extracts. Source: Saxena 2023, "Prompt
Lookup Decoding".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inferno.contracts import Drafter, DraftParts, DraftRequest, Lookahead

LONGEST, SHORTEST = 5, 2
"""Lengths of the longest and the shortest end that is looked up. Shorter ones match by chance."""
SEARCHED = 16_384
"""The number of latest tokens that are searched: a step must not slow down with the context."""


class NgramDrafter(Drafter):
    """Looks up the end of a sequence among its own tokens."""

    def __init__(self, parts: DraftParts) -> None:
        pass

    def propose(
        self, requests: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        return [continuation(request.token_ids, request.count) for request in requests]


def continuation(token_ids: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> list[int]:
    """Return up to `count` tokens that followed the latest earlier occurrence of the longest end of
    `token_ids`. A continuation that reaches the end of `token_ids` is repeated."""
    token_ids = token_ids[-SEARCHED:]
    num_tokens = len(token_ids)
    ends, best = np.arange(max(0, num_tokens - 1)), 0  # the last tokens of earlier occurrences
    for length in range(1, min(LONGEST, num_tokens) + 1):
        longer = ends[ends >= length - 1]
        longer = longer[token_ids[longer - length + 1] == token_ids[num_tokens - length]]
        if not len(longer):
            break
        ends, best = longer, length
    if best < SHORTEST:
        return []
    begin = int(ends[-1]) + 1
    drafts: list[int] = token_ids[begin : begin + count].tolist()
    return [drafts[i % len(drafts)] for i in range(count)]
