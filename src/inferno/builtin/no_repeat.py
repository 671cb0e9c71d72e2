"""The logits processor `no_repeat_ngram`, as transformers' `no_repeat_ngram_size`: the output
contains no sequence of that many tokens twice.

Suffixes: V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.contracts import FieldEffect, ProcessorContext

if TYPE_CHECKING:
    from torch import Tensor


def check(args: Mapping[str, Any]) -> None:
    """Raise ValueError unless the arguments are a size."""
    size = args.get("size")
    if args.keys() != {"size"} or isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError("it takes `size`, a number of tokens of at least 1")


def build(args: Mapping[str, Any], context: ProcessorContext) -> NoRepeat:
    return NoRepeat(args["size"], tuple(context.prompt_token_ids))


def apply(size: int) -> FieldEffect:
    """The effect of the request field `no_repeat_ngram_size`."""
    return FieldEffect(logits_processors=[{"name": "no_repeat_ngram", "args": {"size": size}}])


@define
class NoRepeat:
    """Excludes each token that would repeat a sequence of the prompt or the output."""

    size: int
    prompt: tuple[int, ...]
    _seen: dict[tuple[int, ...], set[int]] = field(factory=dict)
    """The tokens that followed each sequence of size - 1 tokens."""
    _counted: int = 0

    def process(self, token_ids: Sequence[int], logits_V: Tensor) -> Tensor:
        known = (*self.prompt, *token_ids)
        for end in range(max(self._counted, self.size - 1), len(known)):
            before = known[end - self.size + 1 : end]
            self._seen.setdefault(before, set()).add(known[end])
        self._counted = len(known)
        if len(known) >= self.size - 1:
            for token_id in self._seen.get(known[len(known) - self.size + 1 :], ()):
                logits_V[token_id] = -math.inf
        return logits_V
