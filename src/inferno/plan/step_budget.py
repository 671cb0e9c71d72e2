"""How many tokens a step may compute, and how many of them of prompts while streams wait."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable

from attrs import define, field

from inferno.plan.audio_use import AudioUse
from inferno.plan.image_use import ImageUse
from inferno.plan.step_cost import StepCost, Work
from inferno.request.requests import EngineStats, ImagePart

FIRST_TOKENS = 64
"""Tokens of prompts in a step beside streams, as long as nothing is known of such steps."""
TRY_EVERY = 8
"""After so many steps one has twice the tokens of prompts: from steps of one size nobody learns
which part of their time is a constant."""
LEAST_TOKENS = 16
"""However long steps take, prompts go on by so many tokens in each, or by what twice the limit has
time for: behind 100 000 tokens 16 more may take seconds."""
FEWEST_TOKENS = 2
"""So many are always computed. A step in which a prompt has one token counts as one of streams
alone: whatever is known of the others would stay as it is."""

FIRST_SECONDS = 3.0
"""The least that is expected of the first step of a kind: it may compile kernels."""


def max_step_time(given: float | None, device: str) -> float:
    """Return the seconds that a step may take on a kind of device while a stream waits: a fifth of
    a second looks like a stream, and a GPU computes as much in less."""
    if given is None:
        return 0.2 if device == "cpu" else 0.05
    return given


@define(eq=False)
class StepBudget:
    """Bounds steps: in tokens always, and in seconds while a stream waits for its next token.

    Time is saved on prompts only: every stream gets its next token. Where streams alone take half
    of `max_seconds` or more, prompts get as much time as they do: with less, a prompt would hold a
    row for so long that fewer tokens are drawn in all. For the same reason a step may take twice
    its limit, if with less its prompts would have less than half of it.
    """

    max_tokens: int
    max_seconds: float = 0.0
    """0: steps are not bounded in time."""
    streams: Callable[[], tuple[Work, bool]] = lambda: (Work(), False)
    """Returns the next tokens of the streams in the step, and whether any stream waits for one."""
    others_stream: Callable[[], bool] = lambda: False
    """Returns whether a stream of another engine waits for this one's step."""
    _alone: StepCost = field(factory=StepCost)
    """Of steps in which every sequence has one token, and perhaps drafts."""
    _mixed: StepCost = field(factory=StepCost)
    """Of all others."""
    _work: Work | None = None
    """What the step that is planned computes so far; None: nobody has asked yet."""
    _given: int = 0
    """Its tokens of prompts so far."""
    max_images: int = sys.maxsize
    """The most positions whose images an encoder may begin to compute in a step, but one image
    always: streams wait for it."""
    whole_images: bool = False
    """Whether a step has all of an image that is not computed, however long it takes."""
    _images: int = 0
    """Those of the step that is planned so far."""
    _limit: float = 0.0
    """Its limit in seconds; 0: none, because no stream waits."""

    def sees(self, media: Collection[ImageUse | AudioUse]) -> None:
        """Bound the images of steps, too, if the model sees any, and audio."""
        if media:
            self.max_images = max(use.most_tokens for use in media)
            self.whole_images = any(use.whole for use in media)

    def begin(self) -> int:
        """Begin to plan a step. Returns the most tokens that it may have."""
        self._work, self._given, self._images = None, 0, 0
        return self.max_tokens

    def fitting(self, most: int, start: int = 0) -> int:
        """Return how many tokens, at most `most`, still fit into the step, if they are of a prompt
        of which `start` tokens are computed."""
        if not self.max_seconds:
            return most
        work = self._looked() if self._work is None else self._work
        if not self._limit:
            return most
        least = LEAST_TOKENS - self._given
        if (used := self._mixed.seconds(work)) is None:
            fits = FIRST_TOKENS - self._given
        else:
            least = min(least, max(FEWEST_TOKENS - self._given, self._twice(used, start)))
            fits = self._mixed.tokens(self._limit - used, start)
            if self._mixed.num_recorded % TRY_EVERY == TRY_EVERY - 1:
                fits = max(
                    fits, min(2 * max(fits, LEAST_TOKENS) - self._given, self._twice(used, start))
                )
            if fits < (even := self._mixed.even_tokens(start) - self._given):
                fits = max(fits, min(even, self._twice(used, start)))
        return max(0, min(most, max(fits, least)))

    def _twice(self, used: float, start: int) -> int:
        """Return how many tokens fit into twice the limit."""
        return self._mixed.tokens(2 * self._limit - used, start)

    def give(self, most: int, start: int, images: tuple[ImagePart, ...] = ()) -> int:
        """Return what fits of a prompt with these images, and count it."""
        count = self.first(most, start, images)
        if images:
            count = self._seeing(images, start, count)
        if self._work is not None:
            self._work, self._given = self._work.plus(start, count), self._given + count
        return count

    def admitting(self, most: int) -> int:
        """Return how many tokens of a new prompt may fit, at most `most`; 0: none does."""
        fits = self.fitting(most)
        return most if fits and self.whole_images else fits

    def within(self, most: int, start: int, images: Collection[ImagePart]) -> int:
        """Return how many tokens at most a new prompt's first slice has; 0 if it must wait."""
        return self.first(most, start, images) if images and self.whole_images else most

    def first(self, most: int, start: int, images: Iterable[ImagePart]) -> int:
        """Return how many tokens of a prompt fit, but for images that are begun: where none is
        divided, 0 if one is at `start` that does not fit."""
        count = self.fitting(most, start)
        for image in images if self.whole_images and count else ():
            ends_inside = image.start < start + count < image.stop and start < image.stop
            if ends_inside and image.medium == "image":  # audio may be divided
                left = image.stop - start
                return image.start - start if image.start > start else left * (left <= most)
        return count

    def _seeing(self, images: Iterable[ImagePart], start: int, count: int) -> int:
        """Return how many of a prompt's `count` tokens from `start` on the step may have, so that
        it does not begin too many images."""
        for image in images:
            if not start <= image.start < start + count:
                continue
            begun = self._images and (image.start > start or not self.whole_images)
            if begun and self._images + image.count > self.max_images:
                return image.start - start
            self._images += image.count
        return count

    def record(self, work: Work, seconds: float, *, alone: bool) -> None:
        """Learn that a step took so long. `alone`: it had only streams."""
        (self._alone if alone else self._mixed).record(work, seconds)

    def expected(self, work: Work, *, alone: bool) -> float | None:
        """Return the seconds that a step should take; None if that is not known. For the first
        step of one kind it is an upper bound, from steps of the other kind."""
        if (seconds := self.seconds(*work, alone)) is not None or not work.tokens:
            return seconds
        # Tokens together take at most as long as one after another.
        steps, each = (1, work) if alone else (work.tokens, Work(1, work.pairs / work.tokens))
        seconds = self.seconds(*each, not alone)
        return None if seconds is None else max(FIRST_SECONDS, steps * seconds)

    def gauge(self, stats: EngineStats) -> EngineStats:
        """Write what tokens cost into the stats, and return them."""
        work, _ = self.streams()
        stats.prompt_seconds = self._mixed.token_seconds
        if work.tokens and (seconds := self._alone.seconds(work)) is not None:
            stats.row_seconds = seconds / work.tokens
        return stats

    def seconds(self, tokens: int, pairs: float, alone: bool) -> float | None:
        """Return the seconds that a step with these numbers of tokens and pairs takes; None if no
        step of its kind was recorded."""
        return (self._alone if alone else self._mixed).seconds(Work(tokens, pairs))

    def _looked(self) -> Work:
        """Look which streams wait."""
        work, waits = self.streams()
        self._work, alone = work, self._alone.seconds(work) or 0.0
        self._limit = max(self.max_seconds, 2 * alone) if waits or self.others_stream() else 0.0
        return work
