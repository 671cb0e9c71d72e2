"""Decides what runs next. Pure bookkeeping: no tensors, no clocks, no threads.

There is no prefill and no decode: every sequence has pending tokens, and a step computes some of
them (as in vLLM v1). Chunked prompts, prefix hits and preemption are all "fewer tokens computed
than known". The cost of a step grows with its new tokens, never with the length of the contexts.

Steps may overlap: `plan` the next one while earlier ones are in flight, then `commit` their results
in order. Until then the scheduler does not know a sequence's last tokens, but the runner does. This
is right because steps take effect in order: a block that is freed while a step in flight still
reads it is written only by a later step. A token drawn for a sequence that has ended or was
preempted is discarded; a preempted sequence draws the same token again.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as SequenceOf

from inferno.builtin.first_come import FirstCome
from inferno.contracts import QueueBuild, QueueNeed
from inferno.core.kvcache import CacheGroups
from inferno.core.schedule.admission import Admission
from inferno.core.schedule.finish import embedding_of, outputs_of
from inferno.core.schedule.preemption import Preemption
from inferno.core.schedule.rows import Rows
from inferno.core.schedule.speculation import Speculation
from inferno.core.types import NewSequence, Sampled, Sequence, Slice, Step
from inferno.errors import InfernoError, NonFiniteError
from inferno.plan.draft_cost import MOST_SUGGESTED, DraftCost
from inferno.plan.step_budget import StepBudget
from inferno.request.requests import EngineOutput, EngineStats, Request
from inferno.stores import NO_STORE, NoStore
from inferno.weights.adapter_slots import AdapterSlots


class Scheduler:
    """`add` and `abort` requests; `plan` a step; `commit` what it computed.

    `max_model_len` bounds prompt and output together, `max_num_seqs` the sequences that run at
    once, the next two a step (`StepBudget`). With `drafts`, steps verify draft tokens.
    """

    def __init__(
        self,
        groups: CacheGroups,
        *,
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        max_step_time: float = 0.0,
        drafts: DraftCost | None = None,
        store: NoStore = NO_STORE,
        queue: QueueBuild = FirstCome,
        adapter_slots: int = 0,
    ) -> None:
        assert drafts is None or groups.most_drafts, "the plan has states for drafts"
        assert groups.fits(min(max_model_len, max_num_batched_tokens)), "too few for one sequence"
        self._groups, self._max_model_len = groups, max_model_len
        self._by_id: dict[str, Sequence] = {}
        self._stats, self._arrivals = EngineStats(), 0
        free = list(range(max_num_seqs))[::-1]
        self._rows = Rows(groups, free, store, AdapterSlots(adapter_slots))
        self._running, self._in_flight = self._rows.running, self._rows.in_flight
        self.budget = StepBudget(max_num_batched_tokens, max_step_time, self._rows.streams)
        ordered = queue(QueueNeed(max_num_seqs=max_num_seqs, seconds=self.budget.seconds))
        self._admission = Admission(self._rows, self._stats, self.budget, ordered)
        self._preemption = Preemption(self._rows, self._admission)
        proposes, cost = drafts is not None, drafts or DraftCost(most=MOST_SUGGESTED)
        self._speculation = Speculation(self._rows, cost, proposes, max_num_seqs)

    @property
    def stats(self) -> EngineStats:
        """What it has counted, with its gauges as they are now."""
        return self._admission.gauge()

    @property
    def busy(self) -> bool:
        """Whether requests are unfinished or steps in flight."""
        return bool(self._by_id or self._in_flight or self._rows.store.has_news)

    def add(self, request: Request) -> None:
        """Queue a request."""
        assert request.id not in self._by_id, "the engine refuses ids that are in use"
        limit, prompt = request.limit(self._max_model_len), list(request.token_ids)
        sequence = Sequence(request, prompt, self._arrivals, limit)
        self._by_id[request.id] = sequence
        self._arrivals += 1
        self._admission.queue.push(sequence)

    @property
    def ids(self) -> Collection[str]:
        """Those of the unfinished requests."""
        return self._by_id.keys()

    def adapters(self) -> set[str]:
        """Return the digests of the adapters that unfinished requests need."""
        return {sequence.request.content[0] for sequence in self._by_id.values()}

    def suggest(self, request_id: str, token_ids: SequenceOf[int]) -> None:
        """Replace a request's suggested drafts, unless some group keeps none."""
        if self._groups.most_drafts:
            self._by_id[request_id].suggested = tuple(token_ids[:MOST_SUGGESTED])

    def sequence_of(self, row: int) -> Sequence:
        """Return the running sequence in a row."""
        return self._running[row]

    def abort(self, request_id: str) -> bool:
        """Drop a request. Returns False if it is unknown or finished."""
        if (sequence := self._by_id.pop(request_id, None)) is None:
            return False
        if sequence.row is None:
            self._admission.remove(sequence)
        else:
            self._rows.vacate(sequence)
        return True

    # --- plan -------------------------------------------------------------------------------------

    def plan(self, resting: Collection[str] = ()) -> Step:
        """Plan the next step: running sequences, without those of the `resting` requests, then as
        many waiting ones as fit. Empty if all that is pending rests, or waits for steps."""
        admitted = list[Sequence]()
        for turn in self._preemption.turns(resting):
            slices, budget = self._continue(turn)
            admitted += self._admission.admit(slices, budget)
            if slices:
                break
        if not (slices or self._rows.moves or self._rows.store.has_news):
            return Step(())  # block updates wait for a step that is launched
        updates, moves, copies = self._rows.take_news()
        running = self._running
        step = Step(
            tuple(slices),
            tuple([NewSequence.of(s) for s in admitted]) if admitted else (),
            tuple(updates),
            tuple(moves),
            tuple(copies),
            self._groups.save((running[s.row], s.start + s.num_tokens) for s in slices),
            self._speculation.take_suggestions(slices),
            *self._rows.store.take_news(),
        )
        self._in_flight.append([running[s.row] for s in slices])
        return step

    def _continue(self, sequences: SequenceOf[Sequence]) -> tuple[list[Slice], int]:
        """Return running sequences' slices, and the tokens left: none after a preemption."""
        budget, give = self.budget.begin(), self.budget.give
        slices: list[Slice] = []
        preempted, speculation, proposes = False, self._speculation, self._speculation.proposes
        block_size, saves = self._groups.block_size, self._groups.saves
        for later, sequence in zip(range(len(sequences) - 1, -1, -1), sequences, strict=True):
            if sequence.row is None:  # preempted for one before it
                continue
            if budget == 0:
                break
            start, unknown = sequence.num_planned, sequence.num_unknown
            pending = len(sequence.token_ids) + unknown - start
            if not pending or sequence.is_verifying or sequence.arriving is not None:
                continue  # a step in flight, or a move, decides how it goes on
            if unknown and (sequence.num_left <= 0 or speculation.pays_to_wait(sequence)):
                continue
            if pending == 1:
                count = 1
            elif not (count := give(min(pending, budget), start, sequence.request.images)):
                continue  # streams wait, and prompts before it take the time that they leave
            count = self._groups.slice_tokens(sequence, start, count) if saves else count
            if start + count > len(sequence.block_ids) * block_size:
                victim = self._preemption.extend(sequence, start + count)
                preempted |= victim is not None
                if victim is sequence:
                    continue
            samples, drafts = count == pending and sequence.draws, 0
            if (proposes or sequence.suggested) and samples and not unknown:
                drafts = speculation.slots(sequence, start + count, budget - count - later)
            slices.append(Slice(sequence.row, start, count, samples, drafts))
            sequence.num_planned, sequence.num_unknown = start + count, unknown + samples
            budget -= count + drafts
        if preempted:  # drop the slices of sequences that a later one preempted
            return [s for s in slices if s.row in self._running], 0
        return slices, budget

    # --- commit -----------------------------------------------------------------------------------

    def commit(self, step: Step, sampled: Sampled, seconds: float = 0.0) -> list[EngineOutput]:
        """Record results and time of the step that was planned first of those in flight."""
        if step.is_empty:
            return []
        outputs, groups, block_size = list[EngineOutput](), self._groups, self._groups.block_size
        first = num_tokens = num_drafts = num_accepted = drafted = 0
        verified, token_ids, logprobs = sampled.verified, sampled.token_ids, sampled.logprobs
        failed, rows, proposes = sampled.failed, self._rows, self._speculation.proposes
        rows.arrived(sampled.moved)
        members = self._in_flight.popleft()
        self._admission.computed(step, members, seconds)
        for piece, sequence in zip(step.slices, members, strict=True):
            if verified:
                drafted += num_drafts
                num_drafts, num_accepted = verified.get(piece.row, (0, 0))
            count, index, samples = piece.num_tokens + num_accepted, first, piece.samples
            first += 1 + num_accepted if samples else 0
            num_tokens += count
            if sequence is None:
                continue
            if failed and (error := failed.get(sequence.request.id)) is not None:
                outputs.append(self._fail(sequence, error))
                continue
            sequence.num_computed = stop = piece.start + count
            if samples:
                sequence.num_unknown -= 1
                if num_accepted:
                    sequence.token_ids += token_ids[index:first]
                    rows.accepted[piece.row] = groups.accepted(piece.row, drafted + num_accepted)
                else:
                    sequence.token_ids.append(token_ids[index])
                sequence.suggested = ()
                if proposes or sequence.is_verifying:
                    sequence.record_drafts(num_drafts, num_accepted)
                    self._stats.count_drafts(num_drafts, num_accepted)
            if stop // block_size > sequence.num_inserted:
                rows.updates += groups.advance(sequence)
                rows.store.save(sequence, sequence.num_inserted - 1)  # the last may be superseded
            if not samples:
                outputs += self._pooled(sequence, piece.row, sampled)
            elif (
                stop in sequence.inner
                and (token_id := token_ids[index]) not in sequence.end_ids
                and not (num_drafts or logprobs)
            ):  # nearly always: no detours
                outputs.append(EngineOutput(sequence.request.id, token_id))
            else:
                outputs += self._drawn(sequence, sampled, index, num_drafts, num_accepted)
        self._stats.count_step(num_tokens)
        num_pooled = sum(o.embedding is not None for o in outputs) if sampled.embeddings else 0
        self._stats.generated_tokens += len(outputs) - num_pooled
        return outputs

    def _drawn(
        self, sequence: Sequence, sampled: Sampled, index: int, num_drafts: int, num_accepted: int
    ) -> list[EngineOutput]:
        """Return the outputs of a sequence's new tokens, and end it if one of them does."""
        outputs = outputs_of(sequence, sampled, index, num_drafts, num_accepted)
        if outputs[-1].finish is not None:
            self._end(sequence)
        return outputs

    def _pooled(self, sequence: Sequence, row: int, sampled: Sampled) -> list[EngineOutput]:
        """Return the output of a sequence whose prompt's embedding is complete, and end it."""
        if sequence.draws or row not in sampled.embeddings:
            return []
        output = embedding_of(sequence, sampled.embeddings[row])
        self._end(sequence)
        return [output]

    def _fail(self, sequence: Sequence, error: InfernoError) -> EngineOutput:
        """End a sequence with an error. Where its numbers are none, nor may be those that it has
        left in the cache."""
        if broken := isinstance(error, NonFiniteError):
            self._rows.store.forget(sequence)
        self._end(sequence)
        if broken:
            self._groups.reset()
            self._stats.non_finite += 1
        return EngineOutput.failed(sequence.request.id, error)

    def _end(self, sequence: Sequence) -> None:
        del self._by_id[sequence.request.id]
        self._rows.vacate(sequence)

    def drop_in_flight(self, store: NoStore | None = None) -> None:
        """Forget the steps in flight, whose results will not come, and let their sequences start
        again from what is cached: from nothing if a `store` is given, which replaces the other."""
        self._preemption.preempt_all()
        if store is not None:
            self._admission.change_store(store)

    def check(self) -> None:
        """Check the invariants, for tests."""
        self._rows.check()
        assert len(self._by_id) == len(self._running) + self._admission.num_waiting, "one is lost"
