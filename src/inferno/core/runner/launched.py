"""Steps in flight. Tokens are drawn at once, or on the device, where the next step finds them.

Suffixes: S sampled rows, L rows of logits (of S, and of drafts), R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import define, field, frozen
from torch import Tensor

from inferno.constraints import Masks
from inferno.core.runner.parts import PartResults
from inferno.core.runner.tables import StepArrays, Tables
from inferno.core.types import Sampled, Step, Verified
from inferno.device import Arriving
from inferno.errors import InfernoError
from inferno.plan import Plan
from inferno.request.requests import Logprobs
from inferno.sampling import Sampler, are_broken, not_finite

_NONE: Mapping[Any, Any] = {}


@define(eq=False)
class LaunchedStep:
    """A step in flight."""

    step: Step
    plan: Plan
    drawer: Callable[[LaunchedStep, Masks], Sampled | Callable[[], Sampled]]
    """Draws its tokens, and returns its results, or what waits for them."""
    arrays: StepArrays | None = None
    logits_LV: Tensor | None = None
    """One row for each token in `arrays.last`; None if the step samples nothing."""
    results: PartResults = field(factory=PartResults)
    sampled: Sampled | Callable[[], Sampled] | None = None
    """What `drawer` returned."""

    def draw(self, masks: Masks) -> None:
        """Draw its tokens under masks."""
        self.sampled = self.drawer(self, masks)
        self.logits_LV = None

    def sampled_of(
        self,
        token_ids: list[int],
        verified: Mapping[int, Verified] = _NONE,
        logprobs: Mapping[int, Logprobs] = _NONE,
        failed: Mapping[str, InfernoError] = _NONE,
    ) -> Sampled:
        """Return its results with these tokens."""
        results, moves = self.results, self.step.moves
        moved = tuple(dict.fromkeys([move.key for move in moves])) if moves else ()
        if broken := results.broken:
            failed = {
                **failed,
                **{id: not_finite(self.plan, f"request {id}", at) for id, at in broken.items()},
            }
        return Sampled(
            token_ids,
            verified=verified,
            logprobs=logprobs,
            failed=failed,
            prompt_logprobs=results.prompt_logprobs,
            embeddings=results.embeddings,
            moved=moved,
        )

    def result(self) -> Sampled:
        """Wait for the results."""
        assert self.sampled is not None, "a step is drawn before its result is taken"
        if not isinstance(self.sampled, Sampled):
            self.sampled = self.sampled()
        return self.sampled


@frozen(eq=False)
class Draws:
    """Draws the tokens of launched steps, and puts them into the tables."""

    sampler: Sampler
    tables: Tables
    last_tokens_R: Tensor | None
    """`InputSpec.last_tokens_R`, if draws may leave their tokens on the device."""

    def draw(self, launched: LaunchedStep, masks: Masks) -> Sampled | Callable[[], Sampled]:
        """Draw the tokens of a launched step. Returns its results, or what waits for them."""
        arrays, logits_LV = launched.arrays, launched.logits_LV
        if arrays is None or logits_LV is None:
            return launched.sampled_of([])
        sampler, rows, verified = self.sampler, arrays.sampling_rows, dict[int, Verified]()
        if arrays.drafts is None:
            if self.last_tokens_R is not None and not sampler.waits(rows):
                ids_S, on_device_S = sampler.start(logits_LV, rows, masks)
                self.last_tokens_R[on_device_S] = ids_S
                return self._arriving(
                    launched, arrays, ids_S.masked_fill(are_broken(logits_LV), -1)
                )
            drawn = sampler.sample(logits_LV, rows, masks)
            self.tables.append(arrays, drawn.token_ids)
            token_ids, logprobs = drawn.token_ids, drawn.logprobs
        else:
            ids_by_slice, logprobs = sampler.verify(logits_LV, rows, arrays.drafts, masks)
            self.tables.append_verified(arrays, ids_by_slice)
            token_ids = [token_id for ids in ids_by_slice for token_id in ids]
            verified = {
                row: Verified(len(drafts), len(ids) - 1)
                for row, drafts, ids in zip(rows, arrays.drafts, ids_by_slice, strict=True)
                if len(drafts)
            }
        if sampler.broken:
            launched.results.broken |= self._broken(arrays, verified)
        return launched.sampled_of(token_ids, verified, logprobs, sampler.failures(rows))

    def _broken(self, arrays: StepArrays, verified: Mapping[int, Verified]) -> dict[str, int]:
        """Return the requests whose logits were not finite, each with the position of the token."""
        broken = self.sampler.broken
        each = zip(arrays.sampling_rows, arrays.next_positions.tolist(), strict=True)
        return {
            self.sampler.request_id(row): at + verified.get(row, (0, 0))[1]
            for row, at in each
            if row in broken
        }

    def _arriving(
        self, launched: LaunchedStep, arrays: StepArrays, ids_S: Tensor
    ) -> Callable[[], Sampled]:
        """Start to copy the drawn tokens to the host, -1 where the logits were not finite. Returns
        what waits for them."""
        arriving = Arriving.of(ids_S)
        requests = [self.sampler.request_id(row) for row in arrays.sampling_rows]
        owners = self.tables.append_unknown(arrays)

        def results() -> Sampled:
            token_ids = arriving.values()
            if min(token_ids) < 0:
                each = zip(requests, arrays.next_positions.tolist(), token_ids, strict=True)
                broken = {id: at for id, at, token_id in each if token_id < 0}
                launched.results.broken |= broken
                token_ids = [max(0, token_id) for token_id in token_ids]
            self.tables.learn(arrays, owners, token_ids)
            return launched.sampled_of(token_ids)

        return results
