"""What a waiting sequence may have of those that run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from inferno.core.types import Sequence


def is_being_computed(
    sequence: Sequence, index: int, running: Iterable[Sequence], block_size: int
) -> bool:
    """Whether a running sequence is about to compute the block that this one needs next: the same
    prompt, or `n` > 1."""
    last = (len(sequence.token_ids) - 1) // block_size
    if index >= min(len(sequence.keys), last):
        return False
    key = sequence.keys[index]
    return any(
        s.num_inserted <= index < len(s.keys) and s.keys[index] == key
        for s in running
        if len(s.token_ids) - s.num_computed > 1
    )


def fork_of(
    sequence: Sequence,
    last: int | None,
    running: Iterable[Sequence],
    block_size: int,
    has_places: Callable[[int], bool],
) -> int | None:
    """Return the block to copy as this sequence's last one, so that only its last token is computed
    again. It is cached (`Match.last`), or it belongs to a running sequence with the same prompt
    (for example the first of `n` outputs). None if there is no such block with a place in every
    group."""
    block_ids, request = sequence.block_ids, sequence.request
    first, stop = len(block_ids) * block_size, len(sequence.token_ids) - 1
    is_partial = first < stop < first + block_size
    if not is_partial or needs_prompt(sequence):
        return None
    if last is not None and has_places(last):
        return last
    for other in running:
        if (
            other is not sequence
            and other.arriving is None  # its blocks may not be loaded yet
            and other.num_computed >= stop
            and other.block_ids[: len(block_ids)] == block_ids
            and other.request.token_ids == request.token_ids == tuple(sequence.token_ids)
            and other.request.content == request.content
            and other.request.images == request.images
            and has_places(other.block_ids[len(block_ids)])
        ):
            return other.block_ids[len(block_ids)]
    return None


def needs_prompt(sequence: Sequence) -> bool:
    """Whether results for every prompt token are wanted: none can come from the cache."""
    request = sequence.request
    every = request.pooling not in (None, "last", "score")
    return request.params.prompt_logprobs is not None or every
