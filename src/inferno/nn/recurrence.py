"""How a rule that carries a state from token to token runs over a step's packed sequences.

Suffixes: T packed tokens, S sequences.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

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
    sequence s. `scan` is given one sequence of several tokens, and its state as (1, ...). A step in
    which every sequence decodes is one call. Every sequence has at least one token.
    """
    pieces = []
    for first, last in runs(query_starts):
        tokens = slice(query_starts[first], query_starts[last])
        rule = step if tokens.stop - tokens.start == last - first else scan
        pieces.append(rule(*(x_T[tokens] for x_T in inputs), states_S[first:last]))
    if len(pieces) == 1:
        return pieces[0]
    return torch.cat([y_T for y_T, _ in pieces]), torch.cat([new_S for _, new_S in pieces])


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
