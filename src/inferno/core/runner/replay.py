"""Replays small steps without the model's Python, on the memory of their capture.

With few tokens in a step, calling a few hundred operators costs more than a packed model's
arithmetic. A kernel provider (`contracts.KernelProvider.capture`) captures a step of padding rows,
which changes nothing. Steps of that shape write their inputs to its memory and run it again.

These are decode steps, and those with a few tokens more: the last tokens of a prompt whose other
blocks are cached. Each of these is a sequence in the captured step, as drafts are. Where attention
reads from tensors which tokens are whose, steps with parts of prompts are captured as they are.

Suffixes: T tokens of the step, M blocks, L sampled rows, V vocabulary.
"""

from __future__ import annotations

import logging
import math
import sys
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Protocol

from attrs import define, field, frozen
from torch import Tensor, nn

from inferno.contracts import Capture, Captured, Uncaptured
from inferno.core.runner.inputs import Inputs, InputSpec
from inferno.core.runner.tables import StepArrays
from inferno.nn.batch import Batch
from inferno.nn.rope import fill_tables
from inferno.plan import NOT_CAPTURED, CaptureUse

_DRAFTED = 256
"""The most blocks of a sequence in the steps that are captured for drafts."""


class Compute(Protocol):
    def __call__(self, batch: Batch, last_L: Tensor | None = None, /) -> Tensor:
        """Return the logits of a batch's tokens; of those at `last_L`, if it is given."""


log = logging.getLogger("inferno.runner")


@frozen(eq=False)
class Shape:
    """A captured step of sequences with at most M blocks each: one token each, or one of
    `CaptureUse.prompts`."""

    inputs: Inputs
    captured: Captured


@define(eq=False)
class Replays:
    """The captured steps of one model."""

    compute: Compute
    capture: Capture
    use: CaptureUse
    spec: InputSpec
    prepare: Callable[[Batch], None] = lambda batch: None
    """Computes what depends on the context's length in Python, such as the size of tables."""
    begin: Callable[[Batch], None] | None = None
    """Called before every replay, and before a step is captured."""
    drafts: tuple[int, ...] = ()
    """The numbers of drafts that a step of one sequence may verify. Such steps are captured before
    the first one: in the middle of an answer that would take longer than drafts gain."""
    refusal: str | None = None
    """Why steps are not captured."""
    _shapes: dict[tuple[int, int, bool], Shape] = field(factory=dict)
    """By tokens, blocks, and whether all but the first are drafts that go on with its states."""
    _prompts: dict[int, Shape] = field(factory=dict)
    """Steps with prompts, by their number of tokens."""
    _seen: set[tuple[int, int]] = field(factory=set)
    """Shapes of steps with parts of prompts so far."""
    _waiting: list[tuple[int, int, bool]] = field(init=False)
    """Keys of `_shapes`, or (tokens, 0, False) of steps with prompts."""

    @classmethod
    def of_model(
        cls,
        model: nn.Module,
        capture: Capture | None,
        use: CaptureUse | None,
        spec: InputSpec,
        begin: Callable[[Batch], None] | None,
        drafts: tuple[int, ...] = (),
        around: Callable[[Compute], Compute] = lambda compute: compute,
    ) -> Replays | None:
        """Return the captured steps of a model (`contracts.Model`), or None if it has none.
        `around` changes what is captured."""
        if capture is None or use is None:
            return None

        def compute(batch: Batch, last_L: Tensor | None = None, /) -> Tensor:
            hidden_TD = model(batch) if last_L is None else model(batch)[last_L]
            logits_LV: Tensor = model.logits(hidden_TD)  # type: ignore[operator]
            return logits_LV

        return cls(around(compute), capture, use, spec, partial(fill_tables, model), begin, drafts)

    def __attrs_post_init__(self) -> None:
        use = self.use
        wide = max((width for width in use.blocks if width <= _DRAFTED), default=use.blocks[0])
        counts = (0, *self.drafts) if self.drafts else ()
        sizes = dict.fromkeys(at_least(use.sizes, 1 + count) for count in counts)
        shapes = [(size, wide, self._in_turn and size > 1) for size in sizes if size is not None]
        if use.ahead:
            usual = [(size, width, False) for size in use.sizes for width in use.blocks]
            chains = [
                (size, width, True) for size, _, chain in shapes if chain for width in use.blocks
            ]
            shapes = [*chains, *usual]
        self._waiting = [(size, 0, False) for size in use.prompts[::-1]] + shapes[::-1]

    @property
    def _in_turn(self) -> bool:
        """Whether drafts wait for the states of those before them."""
        return self.spec.trial_slot is not None

    @property
    def shapes(self) -> set[tuple[int, int]]:
        """(sequences, blocks of a table) of each captured step."""
        return {(size, width) for size, width, _ in self._shapes}

    @property
    def num_waiting(self) -> int:
        """Number of shapes that `capture_ahead` has not captured yet."""
        return len(self._waiting)

    def capture_ahead(self, most: int = sys.maxsize) -> None:
        """Capture the shapes that the plan wants before the first step, the largest first, but at
        most the `most` next ones. Shapes that cannot be captured run without a capture."""
        for size, width, chain in self._waiting[:most]:
            try:
                if width:
                    self._shapes[size, width, chain] = self._captured(size, size, width, chain)
                else:
                    use = self.use
                    self._prompts[size] = self._captured(size, use.sequences, use.blocks[-1])
            except Uncaptured as reason:
                if width:
                    self._refuse(f"{reason}, in steps of {size}")
                else:
                    log.warning("steps of %s tokens of prompts are not captured: %s", size, reason)
        del self._waiting[:most]
        if not self._waiting and self._shapes:
            self.refusal = None  # smaller ones could be captured

    def seconds(self, size: int) -> float:
        """Return the time of a captured step of `size` padding rows on a CPU, or infinity."""
        shape = next((each for key, each in self._shapes.items() if key[0] == size), None)
        if shape is None:
            return math.inf
        shape.inputs.clear()
        start = perf_counter()
        shape.captured.replay()
        return perf_counter() - start

    def _refuse(self, reason: str) -> None:
        if self.refusal is None:
            log.warning("%s: %s", NOT_CAPTURED, reason)
        self.refusal = reason

    def run(self, arrays: StepArrays) -> Tensor | None:
        """Return the logits of the step's sampled tokens, valid until the next step. None if it
        must be computed in the usual way: it is large, or it samples nothing."""
        tokens, sequences, blocks = len(arrays.token_ids), len(arrays.rows), arrays.width
        if not len(arrays.last):
            return None
        if prompt := tokens > sequences:
            if (shape := self._with_prompts(tokens, sequences)) is not None:
                return self._replayed(shape, arrays)[: len(arrays.last)]
            # Recurrent states see one token of a sequence in a step.
            if tokens - sequences >= self.spec.block_size or self._in_turn:
                return None
            arrays = arrays.token_by_token()
        chain = self._in_turn and any(arrays.follows)
        if chain and arrays.follows.count(False) > 1:
            return None  # of several sequences with drafts
        if (shape := self._shape(tokens, blocks, chain, at_once=not prompt)) is None:
            return None
        logits_TV = self._replayed(shape, arrays)
        if len(arrays.last) < tokens:
            return logits_TV[shape.inputs.last_L[: len(arrays.last)]]
        return logits_TV if logits_TV.shape[0] == tokens else logits_TV[:tokens]

    def _replayed(self, shape: Shape, arrays: StepArrays) -> Tensor:
        shape.inputs.write(arrays)
        if self.begin is not None:
            self.begin(shape.inputs.batch(arrays))
        shape.captured.replay()
        return shape.captured.output

    def _with_prompts(self, tokens: int, sequences: int) -> Shape | None:
        """Return the smallest captured step of as many tokens, with a sequence for the padding."""
        size = at_least(self.use.prompts, tokens)
        return self._prompts.get(size or 0) if sequences < self.use.sequences else None

    def _shape(self, sequences: int, blocks: int, chain: bool, *, at_once: bool) -> Shape | None:
        """Return the smallest captured shape for so many sequences: a wide table costs nothing. A
        new one is captured now, or if not `at_once`, the second time: one prompt alone is not worth
        it."""
        size, width = at_least(self.use.sizes, sequences), at_least(self.use.blocks, blocks)
        if self.refusal is not None or size is None or width is None:
            return None
        if (shape := self._shapes.get(key := (size, width, chain))) is not None or self.use.ahead:
            return shape
        if wider := [k for k in self._shapes if k[::2] == key[::2] and k[1] > width]:
            shape = self._shapes[key] = self._shapes[min(wider)]
            return shape
        if not at_once and (size, width) not in self._seen:
            self._seen.add((size, width))
            return None
        try:
            shape = self._shapes[key] = self._captured(size, size, width, chain)
        except Uncaptured as reason:
            self._refuse(str(reason))
        return shape

    def _captured(self, tokens: int, sequences: int, width: int, chain: bool = False) -> Shape:
        inputs = Inputs(self.spec, tokens, sequences, width, sequences)
        last_L = None if tokens == sequences else inputs.last_L
        inputs.clear()
        batch = partial(inputs.to_capture, chain)
        self.prepare(batch())
        if self.begin is not None:
            self.begin(batch())
        if not (self._shapes or self._prompts):  # values made on first use: a float32 bias
            self.compute(batch(), last_L)
        # A new batch for each run: what a backend keeps in `scratch` belongs to one.
        return Shape(inputs, self.capture(lambda: self.compute(batch(), last_L)))


def at_least(numbers: Sequence[int], wanted: int) -> int | None:
    """Return the first of ascending numbers that is not less."""
    index = bisect_left(numbers, wanted)
    return numbers[index] if index < len(numbers) else None
