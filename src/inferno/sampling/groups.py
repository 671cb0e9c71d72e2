"""The draws of a step, in groups of those that are drawn alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve, frozen

from inferno.constraints import Masks
from inferno.constraints.constraint import Mask
from inferno.constraints.rules import few_allowed
from inferno.ops.masses import UNDECIDED
from inferno.sampling.state import RowState, Strategy


@frozen(eq=False)
class Draw:
    """One draw of a step."""

    index: int
    """Of its row of logits."""
    place: tuple[int, int]
    """Its resident row, and the number of drafts before the draw."""
    state: RowState
    number: int
    """Its uniform number."""
    asks: bool
    """Whether it asks for single tokens, and has a mask only if they do not decide it: a draw from
    the whole vocabulary for the token drawn without a mask, another one for the best tokens
    (`asked`)."""
    mask_W: Mask | None = None
    few: Any = None
    """The ids of the tokens that the mask allows, if they are few."""

    @property
    def is_full(self) -> bool:
        """Whether it is one from the whole vocabulary."""
        return self.state.strategy is Strategy.FULL

    def under(self, mask_W: Mask | None, vocab_size: int) -> Draw:
        """Return the draw with a mask."""
        few = None if mask_W is None else few_allowed(mask_W, vocab_size)
        return evolve(self, mask_W=mask_W, few=few)


def draws_of(
    places: Sequence[tuple[int, int]],
    states: Sequence[RowState],
    masks: Masks,
    *,
    offset: int,
    vocab_size: int,
    first: bool,
) -> list[Draw]:
    """Return the draws of the rows of logits, whose tokens are `offset` positions ahead: those of
    the `first` attempt, or of one that looks at more candidates."""
    draws = []
    for i, (place, state) in enumerate(zip(places, states, strict=True)):
        greedy, full = state.strategy is Strategy.GREEDY, state.strategy is Strategy.FULL
        asks = place[0] in masks.asking and not greedy and (full or first)
        draw = Draw(i, place, state, state.uniform(offset), asks)
        draws.append(draw if greedy or asks else draw.under(masks.of(*place), vocab_size))
    return draws


def drawn_again(
    draws: Sequence[Draw],
    token_ids: Sequence[int],
    masks: Masks,
    *,
    offset: int,
    vocab_size: int,
    last: bool,
) -> list[Draw]:
    """Return the draws that need their masks. Those from the whole vocabulary whose tokens the
    grammar refuses are repeated with other numbers; of the undecided ones only those of the `last`
    attempt. The others are repeated as they are if they are undecided.

    So a token of the whole vocabulary has the probability p + (1 - A) p / A = p / A, where p is
    that without a grammar, and A the sum of p over the allowed tokens: as if it were drawn from
    these at once."""
    undecided = [draw for draw in draws if draw.asks and token_ids[draw.index] == UNDECIDED]
    asking = [draw for draw in draws if draw.asks and draw.is_full]
    asking = [draw for draw in asking if token_ids[draw.index] != UNDECIDED]
    allowed = masks.allow([draw.place for draw in asking], [token_ids[d.index] for d in asking])
    again = [draw for draw, ok in zip(asking, allowed, strict=True) if not ok]
    again += [draw for draw in undecided if last or not draw.is_full]
    masks.fill({draw.place[0] for draw in again})  # together
    return [
        evolve(draw, asks=False, number=draw.state.uniform(offset, refused=draw.is_full)).under(
            masks.of(*draw.place), vocab_size
        )
        for draw in again
    ]


def grouped(draws: Sequence[Draw], most: int) -> Iterator[list[Draw]]:
    """Group draws by strategy, width, whether they ask and whether few tokens are allowed, at most
    so many at once. Their indexes ascend."""
    groups: dict[Any, list[Draw]] = {}
    for draw in sorted(draws, key=lambda draw: draw.index):
        kind = draw.state.strategy, draw.state.width, draw.asks, draw.few is None
        groups.setdefault(kind, []).append(draw)
    for members in groups.values():
        for start in range(0, len(members), most):
            yield members[start : start + most]
