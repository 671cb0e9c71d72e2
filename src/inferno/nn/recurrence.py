"""How a rule that carries a state from token to token runs over a step's packed sequences.

Suffixes: T packed tokens, S sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

SPAN = 512
"""Tokens that a rule computes at once: what it needs on its way grows with them. A multiple of the
rules' chunks."""

Rule = Callable[..., tuple[Tensor, Tensor]]
"""(*inputs, states) -> (outputs, new states)."""


def over_sequences(
    inputs: Sequence[Tensor],
    states_S: Tensor,
    query_starts: Sequence[int],
    *,
    step: Rule,
    scan: Rule,
) -> tuple[Tensor, Tensor]:
    """Outputs (T, ...) and new states (S, ...) of inputs (T, ...), each sequence by itself.

    `step` is given neighbouring sequences of one token each, all at once: row s of the inputs is
    sequence s. `scan` is given up to `SPAN` tokens of one sequence, and its state as (1, ...). A
    step in which every sequence decodes is one call. Every sequence has at least one token.
    """
    outputs, new = [], []
    for first, last in runs(query_starts):
        start, stop, states = query_starts[first], query_starts[last], states_S[first:last]
        alone = stop - start > last - first
        rule, size = (scan, SPAN) if alone else (step, stop - start)
        for begin in range(start, stop, size):
            tokens = slice(begin, min(begin + size, stop))
            y_T, states = rule(*(x_T[tokens] for x_T in inputs), states)
            outputs.append(y_T)
        new.append(states)
    return _joined(outputs), _joined(new)


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def runs(query_starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(first, last + 1) of sequences: neighbours of one token each together, every longer one
    alone."""
    lengths = [stop - start for start, stop in itertools.pairwise(query_starts)]
    first = 0
    while first < len(lengths):
        last = first + 1
        if lengths[first] == 1:
            while last < len(lengths) and lengths[last] == 1:
                last += 1
        yield first, last
        first = last
