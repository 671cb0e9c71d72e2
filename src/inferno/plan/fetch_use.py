"""What a plan says of experts that the device fetches from the host's memory."""

from __future__ import annotations

import math

from attrs import frozen


@frozen
class Timed:
    """A layer's experts on the host, in a step of some tokens."""

    tokens: int
    computed: float
    """Seconds in which the host computes them."""
    fetched: float
    """Seconds in which the device copies and computes them."""


@frozen(kw_only=True)
class FetchUse:
    """Steps in which the device copies the experts that it needs from the host's memory."""

    from_tokens: int | None
    """The fewest tokens of a step; None: it is measured at the start."""
    buffer_bytes: int
    """Of the buffers on the device."""
    measured: tuple[Timed, ...] = ()
    """In growing numbers of tokens."""
    copy_rate: float = 0.0
    """Bytes that were copied in a second."""

    @property
    def chosen(self) -> int | None:
        """The fewest tokens of a step whose experts are fetched; None: of none, as measured, or not
        measured yet."""
        return self.from_tokens or fetch_from(self.measured)


def fetch_from(times: tuple[Timed, ...]) -> int | None:
    """Return the fewest tokens from which fetching takes no longer than computing on the host, by
    times in growing numbers of tokens, between which both are taken for linear; None: it always
    takes longer."""
    slower = [i for i, each in enumerate(times) if each.fetched > each.computed]
    if not times or len(times) - 1 in slower:
        return None
    if not slower:
        return times[0].tokens
    last, following = times[slower[-1]], times[slower[-1] + 1]
    more, less = last.fetched - last.computed, following.computed - following.fetched
    share = more / (more + less)
    return last.tokens + max(1, math.ceil(share * (following.tokens - last.tokens)))
