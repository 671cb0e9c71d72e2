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

import heapq
from collections import deque
from collections.abc import Sequence as SequenceOf
from itertools import count as counter
from time import monotonic

from inferno.core.kvcache import CacheGroups, fork_of, is_being_computed
from inferno.core.schedule.drafts import MOST_SUGGESTED, DraftCost, at_most
from inferno.core.schedule.finish import embedding_of, limit_of, output_of, outputs_of
from inferno.core.types import BlockUpdate, Copy, Move, NewSequence, Sampled, Sequence, Slice, Step
from inferno.errors import InfernoError, NonFiniteError
from inferno.request.requests import EngineOutput, EngineStats, Request


class Scheduler:
    """`add` and `abort` requests; `plan` a step; `commit` what it computed.

    `max_model_len` bounds prompt and output together, `max_num_seqs` the sequences that run at
    once, and `max_num_batched_tokens` the tokens of a step. With `drafts`, steps verify draft
    tokens; models with recurrent states cannot, because a state cannot be rolled back.
    """

    def __init__(
        self,
        groups: CacheGroups,
        *,
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
        drafts: DraftCost | None = None,
    ) -> None:
        assert drafts is None or groups.rolls_back, "the plan refuses drafts for these models"
        longest = min(max_model_len, max_num_batched_tokens)
        assert groups.fits(longest), "too few blocks for one sequence"
        self._groups = groups
        self._max_model_len, self._max_num_seqs = max_model_len, max_num_seqs
        self._max_num_batched_tokens = max_num_batched_tokens
        self._waiting: list[tuple[int, int, Sequence]] = []  # heap by priority, then arrival
        self._running: dict[int, Sequence] = {}  # by row, first admitted first
        self._by_id: dict[str, Sequence] = {}
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._arrivals = 0
        self._proposes = drafts is not None
        self._cost = drafts or DraftCost(most=MOST_SUGGESTED)
        self._suggestions: dict[int, tuple[int, ...]] = {}  # by row, for the step being planned
        self._in_flight: deque[list[Sequence | None]] = deque()
        """The sequence of each slice of each planned step; None once it has lost its row."""
        self._moves: list[Move] = []  # for the next step, as are these
        self._copies: list[Copy] = []
        self._arriving: dict[int, Sequence] = {}  # by the key of the move that they wait for
        self._move_keys = counter()
        self._updates: list[BlockUpdate] = []
        """Changes of running sequences' block tables that the runner has not received yet."""
        self.stats = EngineStats()

    @property
    def busy(self) -> bool:
        """Whether requests are unfinished or steps in flight."""
        return bool(self._by_id or self._in_flight)

    def add(self, request: Request) -> None:
        """Queue a request."""
        assert request.id not in self._by_id, "the engine refuses ids that are in use"
        limit = limit_of(request, self._max_model_len)
        sequence = Sequence(request, list(request.token_ids), self._arrivals, limit)
        self._by_id[request.id] = sequence
        self._arrivals += 1
        self._enqueue(sequence)

    def knows(self, request_id: str) -> bool:
        return request_id in self._by_id

    def suggest(self, request_id: str, token_ids: SequenceOf[int]) -> None:
        """Replace a request's suggested drafts. Models with recurrent states take none."""
        if self._groups.rolls_back:
            self._by_id[request_id].suggested = tuple(token_ids[:MOST_SUGGESTED])

    def request_of(self, row: int) -> Request:
        """Return the request of a running sequence."""
        return self._running[row].request

    def abort(self, request_id: str) -> bool:
        """Drop a request. Returns False if it is unknown or finished."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.row is not None:
            self._vacate(sequence)
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            heapq.heapify(self._waiting)
        self._gauge()
        return True

    # --- plan -------------------------------------------------------------------------------------

    def plan(self) -> Step:
        """Plan the next step: running sequences first, then as many waiting ones as fit. The step
        is empty if nothing is pending, or if all that is pending waits for steps in flight."""
        slices, budget = self._continue()
        admitted: list[Sequence] = []
        while budget and (sequence := self._admit(budget)) is not None:
            admitted.append(sequence)
            if sequence.arriving is None:
                slices.append(self._first_slice(sequence, budget))
                budget -= slices[-1].num_tokens
        self._gauge()
        if not slices and not self._moves:
            return Step(())  # block updates wait for a step that is launched
        updates, self._updates = self._updates, []
        moves, self._moves = self._moves, []
        copies, self._copies = self._copies, []
        drafts, self._suggestions = self._suggestions, {}
        groups, running = self._groups, self._running
        step = Step(
            tuple(slices),
            tuple([NewSequence.of(s) for s in admitted]),
            tuple(updates),
            tuple(moves),
            tuple(copies),
            groups.save((running[s.row], s.start + s.num_tokens) for s in slices),
            {s.row: drafts[s.row] for s in slices if s.row in drafts} if drafts else drafts,
        )
        self._in_flight.append([running[s.row] for s in slices])
        return step

    def _continue(self) -> tuple[list[Slice], int]:
        """Return the running sequences' slices, and the tokens left for waiting ones: none after a
        preemption."""
        budget = self._max_num_batched_tokens
        slices: list[Slice] = []
        preempted = False
        block_size, saves = self._groups.block_size, self._groups.saves
        sequences = list(self._running.values())
        for later, sequence in zip(range(len(sequences) - 1, -1, -1), sequences, strict=True):
            if sequence.row is None:  # preempted for one before it
                continue
            if budget == 0:
                break
            start, unknown = sequence.num_planned, sequence.num_unknown
            pending = len(sequence.token_ids) + unknown - start
            if not pending or sequence.is_verifying or sequence.arriving is not None:
                continue  # a step in flight decides how it goes on
            if unknown and (sequence.num_left <= 0 or self._pays_to_wait(sequence)):
                continue
            count = pending if pending <= budget else budget
            if saves:
                count = self._groups.slice_tokens(sequence, start, count)
            if start + count > len(sequence.block_ids) * block_size:
                preempted |= (victim := self._extend(sequence, start + count)) is not None
                if victim is sequence:
                    continue
            samples = count == pending and sequence.request.pooling is None
            drafts = 0
            if samples and not unknown and (self._proposes or sequence.suggested):
                drafts = self._draft(sequence, start + count, budget - count - later)
            slices.append(Slice(sequence.row, start, count, samples, drafts))
            sequence.num_planned = start + count
            sequence.num_unknown = unknown + samples
            budget -= count + drafts
        if preempted:  # drop the slices of sequences that a later one preempted
            return [s for s in slices if s.row in self._running], 0
        return slices, budget

    def _pays_to_wait(self, sequence: Sequence) -> bool:
        """Return whether to wait until the last token is known, because drafts then pay."""
        if not self._proposes or sequence.num_left <= 1:
            return False
        return sequence.acceptance.best(self._cost, len(self._running)) > 0

    def _draft(self, sequence: Sequence, stop: int, budget: int) -> int:
        """Return how many drafts a slice that ends at `stop` verifies, and acquire their blocks.
        Takes fewer drafts rather than preempt a sequence."""
        num_running, suggested = len(self._running), sequence.suggested
        room = sequence.num_left
        count = min(sequence.acceptance.count(self._cost, num_running), room - 1, budget)
        count = min(count, len(suggested)) if suggested else at_most(count, self._cost.most)
        if not self._proposes:  # the plan has memory for the logits of max_num_seqs tokens
            taken = sum(map(len, self._suggestions.values()))
            count = min(count, self._max_num_seqs - num_running - taken)
        if count <= 0:
            return 0
        groups = self._groups
        missing = groups.blocks_for(stop + count) - len(sequence.block_ids)
        if missing > 0:
            if groups.available() < missing + num_running:
                count = len(sequence.block_ids) * groups.block_size - stop
            else:
                self._updates += groups.acquire(sequence, missing)
        sequence.is_verifying = count > 0
        if count > 0 and suggested:
            self._suggestions[sequence.held_row] = suggested[:count]
        return count

    def _extend(self, sequence: Sequence, num_tokens: int) -> Sequence | None:
        """Acquire blocks for `num_tokens` tokens. Preempts the least urgent sequences while there
        are too few; returns the last one preempted, which may be `sequence` itself."""
        missing = self._groups.blocks_for(num_tokens) - len(sequence.block_ids)
        victim: Sequence | None = None
        while self._groups.available() < missing:
            victim = max(self._running.values(), key=lambda s: (s.request.priority, s.arrival))
            self._preempt(victim)
            if victim is sequence:
                return victim
        self._updates += self._groups.acquire(sequence, missing)
        return victim

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's row and blocks and queue it again. Later its tokens are found in the
        prefix cache or recomputed."""
        self._vacate(sequence)
        sequence.num_computed = sequence.num_planned = sequence.num_unknown = 0
        self._enqueue(sequence)
        self.stats.preemptions += 1

    def _admit(self, budget: int) -> Sequence | None:
        """Give the first waiting sequence a row and its cached blocks. Returns None while its first
        slice does not fit: no other sequence overtakes it."""
        groups, num_running = self._groups, len(self._running)
        if not self._waiting or not self._rows or groups.available() <= num_running:
            return None  # even the longest prefix hit leaves one block to acquire
        sequence = self._waiting[0][2]
        match = groups.match(sequence)
        num_found = len(match.block_ids)
        running, size = self._running.values(), groups.block_size
        if is_being_computed(sequence, num_found, running, size):
            return None  # a step or two later it is a prefix hit
        start = num_found * size
        count = min(len(sequence.token_ids) - start, budget)
        missing = groups.blocks_for(start + count) - num_found
        # Idle hits cannot be evicted to make room. One block is left for each running sequence to
        # grow into.
        if groups.available(match.block_ids) < missing + num_running:
            return None
        heapq.heappop(self._waiting)
        sequence.row = self._rows.pop()
        self._running[sequence.row] = sequence
        sequence.num_computed, sequence.num_inserted = start, num_found
        updates, copies = groups.resume(sequence, match)
        self._updates += updates
        self._copies += copies
        source = fork_of(sequence, match.last, running, size, groups.has_places)
        if source is not None:
            updates, moved = groups.acquire_copy(sequence, source)
            self._updates += updates
            if moved:
                sequence.arriving = key = next(self._move_keys)
                self._arriving[key] = sequence
                self._moves += [Move(key, *places) for places in moved]
            sequence.num_computed = len(sequence.token_ids) - 1
        sequence.num_planned = sequence.num_computed
        self._count_admission(sequence)
        return sequence

    def _first_slice(self, sequence: Sequence, budget: int) -> Slice:
        """Return the first slice of a newly admitted sequence, and acquire its blocks."""
        groups, start, pending = self._groups, sequence.num_computed, sequence.num_pending
        count = groups.slice_tokens(sequence, start, min(pending, budget))
        missing = groups.blocks_for(start + count) - len(sequence.block_ids)
        self._updates += groups.acquire(sequence, missing)
        samples = count == pending and sequence.request.pooling is None
        sequence.num_planned, sequence.num_unknown = start + count, int(samples)
        return Slice(sequence.held_row, start, count, samples)

    def _count_admission(self, sequence: Sequence) -> None:
        num_found, again = sequence.num_computed, sequence.num_cached is not None
        self.stats.count_prompt(len(sequence.token_ids), num_found, again=again)
        if not again:
            sequence.num_cached, sequence.waited = num_found, monotonic() - sequence.arrived

    # --- commit -----------------------------------------------------------------------------------

    def commit(self, step: Step, sampled: Sampled) -> list[EngineOutput]:
        """Record the results of the step that was planned first of those in flight."""
        if step.is_empty:
            return []
        outputs: list[EngineOutput] = []
        groups, block_size, first, num_tokens = self._groups, self._groups.block_size, 0, 0
        verified, token_ids, logprobs = sampled.verified, sampled.token_ids, sampled.logprobs
        failed = sampled.failed
        num_drafts = num_accepted = num_pooled = 0
        for key in sampled.moved:
            if (arrived := self._arriving.pop(key, None)) is not None:
                arrived.arriving = None
        members = self._in_flight.popleft()
        for (row, start, count, samples, _), sequence in zip(step.slices, members, strict=True):
            if verified:
                num_drafts, num_accepted = verified.get(row, (0, 0))
            index, first = first, first + (1 + num_accepted if samples else 0)
            num_tokens += count + num_accepted
            if sequence is None:
                continue
            if failed and (error := failed.get(sequence.request.id)) is not None:
                outputs.append(self._fail(sequence, error))
                continue
            sequence.num_computed = stop = start + count + num_accepted
            if samples:
                sequence.num_unknown -= 1
                if num_accepted:
                    sequence.token_ids += token_ids[index:first]
                else:
                    sequence.token_ids.append(token_ids[index])
                sequence.suggested = ()
                if sequence.is_verifying or self._proposes:
                    sequence.record_drafts(num_drafts, num_accepted)
                    self.stats.count_drafts(num_drafts, num_accepted)
            if stop // block_size > sequence.num_inserted:
                self._updates += groups.advance(sequence)
            if samples:
                token_id = token_ids[index]
                is_plain = stop in sequence.inner and token_id not in sequence.end_ids
                if is_plain and not (num_drafts or logprobs):  # nearly always: no detours
                    outputs.append(EngineOutput(sequence.request.id, token_id))
                    continue
                new = (
                    outputs_of(sequence, sampled, index, num_drafts, num_accepted)
                    if num_drafts
                    else [output_of(sequence, stop, sampled, index)]
                )
                outputs += new
                if new[-1].finish is not None:
                    self._end(sequence)
            elif sequence.request.pooling is not None and row in sampled.embeddings:
                outputs.append(embedding_of(sequence, sampled.embeddings[row]))
                num_pooled += 1
                self._end(sequence)
        self.stats.count_step(num_tokens)
        self.stats.generated_tokens += len(outputs) - num_pooled
        self._gauge()
        return outputs

    def _fail(self, sequence: Sequence, error: InfernoError) -> EngineOutput:
        """End a sequence with an error. Where its numbers are none, nor may be those that it has
        left in the cache."""
        self._end(sequence)
        if isinstance(error, NonFiniteError):
            self._groups.reset()
            self.stats.non_finite += 1
        return EngineOutput.failed(sequence.request.id, error)

    def _end(self, sequence: Sequence) -> None:
        del self._by_id[sequence.request.id]
        self._vacate(sequence)

    def drop_in_flight(self) -> None:
        """Forget the steps in flight, whose results will not come, and let their sequences start
        again from what is cached."""
        for sequence in list(self._running.values()):
            self._preempt(sequence)
        self._in_flight.clear()
        self._moves, self._copies, self._updates = [], [], []
        self._gauge()

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.request.priority, sequence.arrival, sequence))

    def _vacate(self, sequence: Sequence) -> None:
        """Free a sequence's row and blocks. Results of steps in flight for it are discarded."""
        row = sequence.held_row
        for members in self._in_flight:
            if sequence in members:
                members[members.index(sequence)] = None
        sequence.is_verifying = False
        if sequence.arriving is not None:
            del self._arriving[sequence.arriving]
            sequence.arriving = None
        self._groups.release(sequence)
        del self._running[row]
        self._rows.append(row)
        self._updates = [update for update in self._updates if update.row != row]
        sequence.row = None

    def _gauge(self) -> None:
        stats = self.stats
        stats.num_running, stats.num_waiting = len(self._running), len(self._waiting)
        stats.kv_usage = self._groups.usage

    def check(self) -> None:
        """Check the invariants, for tests."""
        self._groups.check(self._running.values())
        rows = [s.row for s in self._running.values() if s.row is not None]
        assert sorted(rows + self._rows) == list(range(len(self._running) + len(self._rows))), (
            "a row is lost or held twice"
        )
        assert len(self._by_id) == len(self._running) + len(self._waiting), "a sequence is lost"
