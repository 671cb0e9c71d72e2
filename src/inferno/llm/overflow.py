"""What is kept of a conversation that outgrows the context: its system messages and its latest
turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_OVERHEAD = 8
"""Tokens that a chat template adds to a message, about."""
_SYSTEM = ("system", "developer")


def room(max_model_len: int, max_tokens: int | None) -> int:
    """Return how many tokens of a conversation leave room for the answer: for `max_tokens`, but not
    more than half of the context, or for a quarter of it."""
    return max_model_len - min(max_tokens or max_model_len // 4, max_model_len // 2)


def windows(roles: Sequence[str], sizes: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the indices of the messages to keep, fewer each time, down to the last turn: the first
    that makes a prompt that fits is the one to take. `sizes` are the tokens of the messages, about.

    Whole turns are dropped, each from a message of the user to the next one. They are dropped by
    the half, where the conversation would have overflown: its prompts then begin alike until the
    next time, and the prefix cache finds them."""
    head = next((i for i, role in enumerate(roles) if role not in _SYSTEM), len(roles))
    starts = [i for i in range(head, len(roles)) if i == head or roles[i] == "user"]
    costs = [size + _OVERHEAD for size in sizes]
    budget = room - sum(costs[:head])
    first = 0
    for last, start in enumerate(starts):  # as when this message was asked: without its answer
        if sum(costs[starts[first] : start + 1]) > budget:
            while first < last and sum(costs[starts[first] : start + 1]) > budget // 2:
                first += 1
    for each in starts[first:]:
        yield [*range(head), *range(each, len(roles))]
