"""How a rule that carries a state from token to token runs over a step's packed sequences.

Suffixes: T packed tokens, S sequences, B those of them that are no drafts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from inferno.nn.batch import Batch

SPAN = 512
"""Tokens that a rule computes at once: what it needs on its way grows with them. A multiple of the
rules' chunks."""

Rule = Callable[..., tuple[Tensor, Tensor]]
"""(*inputs, states) -> (outputs, new states)."""
Packed = Callable[[Sequence[Tensor], Tensor, Sequence[int]], tuple[Tensor, Tensor]]
"""(inputs, states, query_starts) -> (outputs, new states) of packed sequences."""


def in_turn(
    rule: Packed, inputs: Sequence[Tensor], states_B: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    """Outputs (T, ...) and new states (S, ...) of inputs (T, ...), by a rule for sequences that do
    not depend on each other.

    Drafts do: each goes on with the state that the sequence before it leaves, which must be kept
    for each of them, because only the draw says how many are right. So first come all sequences
    that are no drafts, then the first draft of each, and so on: each of these calls is what a step
    without drafts computes.
    """
    starts, (first, *later) = batch.query_starts, _depths(batch)
    if not later:
        return rule(inputs, states_B, starts)
    lengths = [starts[s + 1] - starts[s] for s in first]
    tokens = [t for s in first for t in range(starts[s], starts[s + 1])]
    own_starts = list(itertools.accumulate(lengths, initial=0))
    y_N, new_N = rule([taken(x_T, tokens) for x_T in inputs], states_B, own_starts)
    outputs, states, order, before = [y_N], [new_N], list(first), first
    for depth in later:
        at = [starts[s] for s in depth]
        held_N = taken(new_N, [before.index(s - 1) for s in depth])
        y_N, new_N = rule([taken(x_T, at) for x_T in inputs], held_N, range(len(at) + 1))
        outputs.append(y_N)
        states.append(new_N)
        tokens, order, before = tokens + at, order + depth, depth
    return _sorted(torch.cat(outputs), tokens), _sorted(torch.cat(states), order)


def _depths(batch: Batch) -> list[list[int]]:
    """The sequences that are no drafts, the first draft of each, the second, and so on."""
    if not any(batch.follows):
        return [[]]
    depths: list[list[int]] = []
    depth = 0
    for sequence, follows in enumerate(batch.follows):
        depth = depth + 1 if follows else 0
        if depth == len(depths):
            depths.append([])
        depths[depth].append(sequence)
    return depths


def beginning(batch: Batch) -> Sequence[int]:
    """The sequences that begin with states of their own: those that are no drafts."""
    if not any(batch.follows):
        return range(len(batch.query_starts) - 1)
    return [s for s, follows in enumerate(batch.follows) if not follows]


def taken(x_N: Tensor, indices: Sequence[int]) -> Tensor:
    """The elements at these ascending indices: a view, if they are neighbours."""
    first, count = indices[0], len(indices)
    if indices[-1] - first + 1 == count:
        return x_N if count == len(x_N) else x_N[first : first + count]
    return x_N.index_select(0, torch.tensor(indices, device=x_N.device))


def _sorted(x_N: Tensor, indices: Sequence[int]) -> Tensor:
    """The elements in the order of their indices."""
    if all(i < j for i, j in itertools.pairwise(indices)):
        return x_N
    order = sorted(range(len(indices)), key=indices.__getitem__)
    return x_N.index_select(0, torch.tensor(order, device=x_N.device))


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
