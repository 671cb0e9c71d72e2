"""Runs steps on one device: Step -> Batch -> logits -> token ids. No tensor leaves this module.

A step is launched, then its tokens are drawn, and its results are taken later. On a CUDA device
`draw` leaves the token ids there, for the next step, and starts their copy to the host; it waits
for them if a request needs the host (`Sampler.waits`, grammars, drafts).

Suffixes: T tokens of the step, S sampled rows, L rows of logits (of S, and of drafts), P prompt
positions, N tokens of a slice, D hidden, V vocabulary.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from attrs import define, field
from torch import Tensor, nn

from inferno.constraints import Drafts, Masks
from inferno.contracts import Capture, Drafter, DraftRequest, LogitsProcessor, Model, Span
from inferno.core.kvcache import KVCache
from inferno.core.runner.inputs import InputSpec
from inferno.core.runner.prompts import Prompts
from inferno.core.runner.replay import Replays
from inferno.core.runner.tables import StepArrays, Tables
from inferno.core.types import NewSequence, Sampled, Slice, Step, Verified
from inferno.device import Arriving, device_errors
from inferno.errors import InfernoError
from inferno.nn import Rope
from inferno.nn.batch import Batch
from inferno.ops.reference import TORCH, Ops
from inferno.plan import CaptureUse, Plan
from inferno.request.requests import Logprobs
from inferno.sampling import Sampler, are_broken, not_finite

_NONE: Mapping[Any, Any] = {}


def prepare(model: nn.Module, batch: Batch) -> None:
    """Compute what depends on the context's length in Python: the tables of rotary embeddings."""
    for module in model.modules():
        if isinstance(module, Rope):
            module(batch)


log = logging.getLogger("inferno.runner")


@define(eq=False)
class LaunchedStep:
    """A step in flight."""

    runner: ModelRunner
    step: Step
    arrays: StepArrays | None = None
    logits_LV: Tensor | None = None
    """One row for each token in `arrays.last`; None if the step samples nothing."""
    prompt_logprobs: Mapping[int, tuple[Logprobs | None, ...]] = field(factory=dict)
    embeddings: Mapping[int, tuple[float, ...]] = field(factory=dict)
    broken: dict[str, int] = field(factory=dict)
    """By request, the position of a token for which the model's output is not finite."""
    sampled: Sampled | Callable[[], Sampled] | None = None
    """The results, or what waits for them."""

    def draw(self, masks: Masks) -> None:
        """Draw its tokens under masks."""
        self.sampled = self.runner.draw(self, masks)
        self.logits_LV = None

    def sampled_of(
        self,
        token_ids: list[int],
        verified: Mapping[int, Verified] = _NONE,
        logprobs: Mapping[int, Logprobs] = _NONE,
        failed: Mapping[str, InfernoError] = _NONE,
    ) -> Sampled:
        """Return its results with these tokens."""
        if self.broken:
            plan = self.runner.plan
            failed = {
                **failed,
                **{id: not_finite(plan, f"request {id}", at) for id, at in self.broken.items()},
            }
        moved = tuple(dict.fromkeys(move.key for move in self.step.moves))
        return Sampled(
            token_ids,
            verified=verified,
            logprobs=logprobs,
            failed=failed,
            prompt_logprobs=self.prompt_logprobs,
            embeddings=self.embeddings,
            moved=moved,
        )

    def result(self) -> Sampled:
        """Wait for the results."""
        assert self.sampled is not None, "a step is drawn before its result is taken"
        if not isinstance(self.sampled, Sampled):
            self.sampled = self.sampled()
        return self.sampled


class ModelRunner:
    """The model, its cache and its sampler, on one device."""

    def __init__(
        self,
        model: nn.Module,
        plan: Plan,
        ops: Ops = TORCH,
        capture: Capture | None = None,
        drafter: Drafter | None = None,
        draft_capture: Capture | None = None,
        begin: Callable[[Batch], None] | None = None,
        processors: Mapping[str, LogitsProcessor] | None = None,
        overlaps: bool | None = None,
    ) -> None:
        """`overlaps` says whether draws leave their tokens on the device: None for CUDA devices,
        unless drafts are proposed, which need the last token."""
        self._model, self._drafter, self._begin = model, drafter, begin
        self.plan, self._plan_device, self._vocab_size = plan, plan.device, plan.vocab_size
        self._device = torch.device(plan.device.torch_name)
        speculation = plan.speculation
        draft = speculation.draft if speculation is not None else None
        self._draft_vocab_size = (draft or plan).vocab_size
        with device_errors(plan.device, "allocate its cache"):
            self.cache = KVCache.of_plan(plan)
        self.cache.bind(model)
        if drafter is not None and drafter.layers is not None:
            self.cache.bind(drafter.layers)
        if overlaps is None:
            overlaps = plan.overlap
        self.overlaps: bool = overlaps
        """Whether a step may be launched before the results of the one before it are known."""
        self._input_spec = InputSpec.of_plan(plan, apart=overlaps)
        windows = self._input_spec.windows
        self._tables = Tables(plan.max_num_seqs, plan.max_model_len, plan.block_size, windows)
        self._sampler = Sampler(
            plan.max_num_seqs,
            plan.vocab_size,
            device=self._device,
            ops=ops,
            processors=processors,
        )
        self._prompts = Prompts()
        self.replays = self._replays(model, capture, plan.capture)
        """Captured steps, if the plan has any."""
        self.draft_replays: Replays | None = None
        """Captured steps of the draft model."""
        if drafter is not None and drafter.layers is not None and draft is not None:
            self.draft_replays = self._replays(drafter.layers, draft_capture, draft.capture)

    def _replays(
        self, model: nn.Module, capture: Capture | None, use: CaptureUse | None
    ) -> Replays | None:
        if capture is None or use is None:
            return None

        def compute(batch: Batch) -> Tensor:
            return self.logits_of(model(batch), model)

        prepared = partial(prepare, model)
        return Replays(compute, capture, use, self._input_spec, prepared, self._begin)

    @torch.inference_mode()
    def capture_ahead(self, most: int = sys.maxsize) -> int:
        """Capture the steps that the plan wants before the first one, or `most` of each model.
        Returns how many are left."""
        models = [each for each in (self.replays, self.draft_replays) if each is not None]
        with device_errors(self._plan_device, "capture its decode steps"):
            for replays in models:
                replays.capture_ahead(most)
        return sum(replays.num_waiting for replays in models)

    def forget_captures(self) -> None:
        """Drop the captured steps, and with them the last references to this runner's memory."""
        self.replays = self.draft_replays = None

    @torch.inference_mode()
    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        """Compute the step's hidden states, and the logits that its draw needs. `cut` removes
        drafts that need not be verified."""
        self._tables.update(step)
        for new in step.new_sequences:
            self._admit(new)
        self.cache.copy_blocks(step.moves)
        if step.copies_before:
            self.cache.copy_states(step.copies_before)
        launched = LaunchedStep(self, step)
        if step.slices:
            self._compute_step(launched, cut)
        elif cut is not None:
            cut({})
        if step.copies_after:
            self.cache.copy_states(step.copies_after)
        return launched

    def _admit(self, new: NewSequence) -> None:
        row, request = new.row, new.request
        self._prompts.admit(new)
        if self._drafter is not None:
            with self._trusting():
                self._drafter.admit(row, new.num_computed)
        if request.pooling is None:
            self._sampler.admit(row, request, new.token_ids)

    def _compute_step(self, launched: LaunchedStep, cut: Callable[[Drafts], Drafts] | None) -> None:
        step = launched.step
        drafts: Drafts = self._drafts(step)
        drafts = cut(drafts) if cut is not None else drafts
        launched.arrays = arrays = self._tables.lay_out(step, drafts)
        if (logits_LV := self._replayed(arrays)) is None:
            inputs = self._input_spec.inputs_of(arrays)
            hidden_TD = self._model(self._begun(inputs.batch(arrays)))
            if self._drafter is not None and self._drafter.sees_steps:
                with self._trusting():
                    self._drafter.computed(arrays.spans, hidden_TD, self)
            if (prompts := self._prompts).scored:
                scored = prompts.logprobs(step, arrays, hidden_TD, self.logits_of)
                launched.prompt_logprobs = scored
            if prompts.pooled:
                launched.embeddings = prompts.embeddings(step, arrays, hidden_TD, self._model)
            launched.broken = prompts.take_broken()
            if arrays.sampling_rows:
                logits_LV = self.logits_of(hidden_TD[inputs.last_L])
        launched.logits_LV = logits_LV

    def _begun(self, batch: Batch) -> Batch:
        """Show the batch to the attention backends (`begin`), and return it."""
        if self._begin is not None:
            self._begin(batch)
        return batch

    def _drafts(self, step: Step) -> dict[int, Sequence[int]]:
        """Return the drafts of the slices that take some, by row."""
        given: dict[int, Sequence[int]] = dict(step.drafts)
        wanted = [s for s in step.slices if s.num_drafts and s.row not in given]
        if not wanted or self._drafter is None:
            return given
        known = self._tables.known
        requests = [
            DraftRequest(s.row, known(s.row, s.start + s.num_tokens), s.num_drafts) for s in wanted
        ]
        found: dict[int, list[int]] = {}
        with self._trusting():
            proposed = self._drafter.propose(requests, self)
            found = {
                s.row: self._valid(ids[: s.num_drafts])
                for s, ids in zip(wanted, proposed, strict=True)
            }
        return given | {row: ids for row, ids in found.items() if ids}

    @contextmanager
    def _trusting(self) -> Iterator[None]:
        """Context of a call of the drafter. Drafts are optional: its fault must not end the
        engine."""
        try:
            yield
        except Exception:
            log.exception("the proposer of drafts failed; steps go on without drafts")
            self._drafter = None

    def _valid(self, token_ids: Sequence[int]) -> list[int]:
        """Return the drafts before the first that is no token of the model."""
        return list(takewhile(lambda id: 0 <= id < self._vocab_size, map(int, token_ids)))

    # --- contracts.Lookahead ----------------------------------------------------------------------

    def batch(self, spans: Sequence[Span], shift: int = 0) -> Batch:
        step = Step(tuple([Slice(*span, True) for span in spans]))
        arrays = self._tables.lay_out(step, shift=shift)
        return self._begun(self._input_spec.inputs_of(arrays).batch(arrays))

    def logits(self, model: Model, spans: Sequence[Span]) -> Tensor:
        short = all(span.num_tokens <= 2 for span in spans)
        if self.draft_replays is not None and short:  # each token as a sequence, to be replayed
            slices = [Slice(row, start + i, 1, True) for row, start, n in spans for i in range(n)]
            arrays = self._draft_arrays(slices)
            if (logits_TV := self.draft_replays.run(arrays)) is not None:
                last = np.cumsum([span.num_tokens for span in spans]) - 1
                return logits_TV if len(last) == len(slices) else logits_TV[last]
        arrays = self._draft_arrays([Slice(*span, True) for span in spans])
        inputs = self._input_spec.inputs_of(arrays)
        return model.logits(model(self._begun(inputs.batch(arrays)))[inputs.last_L])

    def _draft_arrays(self, slices: Sequence[Slice]) -> StepArrays:
        """Pack slices for the draft model. Tokens that only the model has become token 0."""
        arrays = self._tables.lay_out(Step(tuple(slices)))
        arrays.token_ids[arrays.token_ids >= self._draft_vocab_size] = 0
        return arrays

    def write(self, row: int, position: int, token_id: int) -> None:
        self._tables.token_ids[row, position] = token_id

    def draw_draft(self, logits_SV: Tensor, rows: Sequence[int], offset: int) -> list[int]:
        return self._sampler.peek(logits_SV, rows, offset)

    @torch.inference_mode()
    def draw(self, launched: LaunchedStep, masks: Masks) -> Sampled | Callable[[], Sampled]:
        """Draw the tokens of a launched step. Returns its results, or what waits for them."""
        arrays, logits_LV = launched.arrays, launched.logits_LV
        if arrays is None or logits_LV is None:
            return launched.sampled_of([])
        rows, verified = arrays.sampling_rows, dict[int, Verified]()
        if self.overlaps and arrays.drafts is None and not self._sampler.waits(rows):
            return self._started(launched, masks)
        if arrays.drafts is None:
            drawn = self._sampler.sample(logits_LV, rows, masks)
            self._tables.append(arrays, drawn.token_ids)
            token_ids, logprobs = drawn.token_ids, drawn.logprobs
        else:
            found, logprobs = self._sampler.verify(logits_LV, rows, arrays.drafts, masks)
            self._tables.append_verified(arrays, found)
            token_ids = [token_id for ids in found for token_id in ids]
            verified = {
                row: Verified(len(drafts), len(ids) - 1)
                for row, drafts, ids in zip(rows, arrays.drafts, found, strict=True)
                if len(drafts)
            }
        launched.broken |= self._broken(arrays, verified)
        return launched.sampled_of(token_ids, verified, logprobs, self._sampler.failures(rows))

    def _broken(self, arrays: StepArrays, verified: Mapping[int, Verified]) -> dict[str, int]:
        """Return the requests whose logits were not finite, each with the position of the token."""
        if not (broken := self._sampler.broken):
            return {}
        each = zip(arrays.sampling_rows, arrays.next_positions.tolist(), strict=True)
        return {
            self._sampler.request_id(row): at + verified.get(row, (0, 0))[1]
            for row, at in each
            if row in broken
        }

    def _started(self, launched: LaunchedStep, masks: Masks) -> Callable[[], Sampled]:
        """Draw on the device, keep the tokens there for the next step, and start to copy them."""
        arrays, logits_SV = launched.arrays, launched.logits_LV
        assert arrays is not None and logits_SV is not None, "it has rows to draw"
        broken_S = are_broken(logits_SV)
        ids_S, rows_S = self._sampler.start(logits_SV, arrays.sampling_rows, masks)
        assert self._input_spec.last_tokens_R is not None, "made for steps that overlap"
        self._input_spec.last_tokens_R[rows_S] = ids_S
        arriving = Arriving.of(ids_S.masked_fill(broken_S, -1))
        requests = [self._sampler.request_id(row) for row in arrays.sampling_rows]
        owners = self._tables.append_unknown(arrays)

        def results() -> Sampled:
            token_ids = arriving.values()
            if min(token_ids) < 0:
                each = zip(requests, arrays.next_positions.tolist(), token_ids, strict=True)
                launched.broken |= {id: at for id, at, token_id in each if token_id < 0}
                token_ids = [max(0, token_id) for token_id in token_ids]
            self._tables.learn(arrays, owners, token_ids)
            return launched.sampled_of(token_ids)

        return results

    def _replayed(self, arrays: StepArrays) -> Tensor | None:
        """Return the logits if the step can be replayed and none of its rows waits for prompt
        logprobs or an embedding. Rows of aborted requests may be left in either."""
        if self.replays is None or (self._drafter is not None and self._drafter.sees_steps):
            return None
        if self._prompts.wait(arrays.rows):
            return None
        return self.replays.run(arrays)

    def logits_of(self, hidden_SD: Tensor, model: nn.Module | None = None) -> Tensor:
        """Return the logits of the model, or of another one."""
        head = self._model if model is None else model
        logits_SV: Tensor = head.logits(hidden_SD)  # type: ignore[operator]  # contracts.Model
        return logits_SV
