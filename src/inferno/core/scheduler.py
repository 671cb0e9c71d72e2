"""Decides what runs next. Pure bookkeeping: no tensors, no clocks, no threads.

There is no prefill and no decode: every sequence has pending tokens, and a step computes some of
them (vLLM v1's view). Chunked prompts, prefix hits and preemption are all "fewer tokens computed
than known". The cost of a step grows with its new tokens, never with the length of the contexts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from inferno.core.kvcache import CacheGroups
from inferno.core.types import (
    BlockUpdate,
    EngineOutput,
    EngineStats,
    FinishReason,
    NewSequence,
    Request,
    Sampled,
    Sequence,
    Slice,
    StateCopy,
    Step,
)


class Scheduler:
    """`add` and `abort` requests; `plan` a step; `commit` what it computed.

    `max_model_len` bounds prompt and output together, `max_num_seqs` the sequences that run at
    once, and `max_num_batched_tokens` the tokens of a step.
    """

    def __init__(
        self,
        groups: CacheGroups,
        *,
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        longest = groups.blocks_for(min(max_model_len, max_num_batched_tokens))
        assert all(w.num_blocks > groups.blocks_for(w.window) + longest for w in groups.windows), (
            "too few blocks for one sequence"
        )
        self._groups = groups
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._waiting: list[tuple[int, int, Sequence]] = []  # heap by priority, then arrival
        self._running: dict[int, Sequence] = {}  # by row, first admitted first
        self._by_id: dict[str, Sequence] = {}
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._arrivals = 0
        self._updates: list[BlockUpdate] = []
        """Changes of running sequences' block tables that the runner has not received yet."""
        self.stats = EngineStats()

    @property
    def busy(self) -> bool:
        return bool(self._by_id)

    def add(self, request: Request) -> None:
        assert request.id not in self._by_id, "the engine refuses ids that are in use"
        self._by_id[request.id] = sequence = Sequence(
            request, list(request.token_ids), self._arrivals
        )
        self._arrivals += 1
        self._enqueue(sequence)

    def knows(self, request_id: str) -> bool:
        return request_id in self._by_id

    def abort(self, request_id: str) -> bool:
        """Drop a request, between a commit and the next plan. Returns False if it is unknown or
        finished."""
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
        """Plan the next step: running sequences first, then as many waiting ones as fit. Empty if
        nothing is pending."""
        slices, budget = self._continue()
        admitted: list[Sequence] = []
        while budget and (sequence := self._admit(budget)) is not None:
            slices.append(self._first_slice(sequence, budget))
            admitted.append(sequence)
            budget -= slices[-1].num_tokens
        self._gauge()
        updates, self._updates = self._updates, []
        groups = self._groups
        return Step(
            tuple(slices),
            tuple([NewSequence(s.held_row, s.request, tuple(s.token_ids)) for s in admitted]),
            tuple(updates),
            tuple([copy for sequence in admitted for copy in groups.begin(sequence)]),
            self._snapshots(slices) if groups.has_states else (),
        )

    def _continue(self) -> tuple[list[Slice], int]:
        """Return the running sequences' slices, and the tokens left for waiting ones: none after a
        preemption."""
        budget = self._max_num_batched_tokens
        slices: list[Slice] = []
        preempted = False
        block_size, has_states = self._groups.block_size, self._groups.has_states
        for sequence in list(self._running.values()):
            if sequence.row is None:  # preempted for one before it
                continue
            start = sequence.num_computed
            pending = len(sequence.token_ids) - start
            count = pending if pending <= budget else budget
            if count == 0:
                break
            if has_states:
                count = self._groups.slice_tokens(sequence, start, count)
            if start + count > len(sequence.block_ids) * block_size:
                preempted |= (victim := self._extend(sequence, start + count)) is not None
                if victim is sequence:
                    continue
            slices.append(Slice(sequence.row, start, count, count == pending))
            budget -= count
        if preempted:  # drop the slices of sequences that a later one preempted
            return [s for s in slices if s.row in self._running], 0
        return slices, budget

    def _extend(self, sequence: Sequence, num_tokens: int) -> Sequence | None:
        """Acquire blocks for `num_tokens` tokens. Preempts the least urgent sequences while there
        are too few; returns the last one preempted, which may be `sequence` itself."""
        missing = self._groups.blocks_for(num_tokens) - len(sequence.block_ids)
        victim: Sequence | None = None
        while self._groups.num_available < missing:
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
        sequence.num_computed = 0
        self._enqueue(sequence)
        self.stats.preemptions += 1

    def _admit(self, budget: int) -> Sequence | None:
        """Give the first waiting sequence a row and its cached blocks. Returns None while its first
        slice does not fit: no other sequence overtakes it."""
        groups, num_running = self._groups, len(self._running)
        if not self._waiting or not self._rows or groups.num_available <= num_running:
            return None  # even the longest prefix hit leaves one block to acquire
        sequence = self._waiting[0][2]
        match = groups.match(sequence)
        num_found = len(match.block_ids)
        if self._is_being_computed(sequence, num_found):
            return None  # a step or two later it is a prefix hit
        start = num_found * groups.block_size
        count = min(len(sequence.token_ids) - start, budget)
        missing = groups.blocks_for(start + count) - num_found
        # Idle hits cannot be evicted to make room. One block is left for each running sequence to
        # grow into.
        if groups.num_available_after(match.block_ids) < missing + num_running:
            return None
        heapq.heappop(self._waiting)
        sequence.row = self._rows.pop()
        self._running[sequence.row] = sequence
        sequence.num_computed, sequence.num_inserted = start, num_found
        self._updates += groups.resume(sequence, match)
        self._count_admission(sequence)
        return sequence

    def _first_slice(self, sequence: Sequence, budget: int) -> Slice:
        """Return the first slice of a newly admitted sequence, and acquire its blocks."""
        groups, start, pending = self._groups, sequence.num_computed, sequence.num_pending
        count = groups.slice_tokens(sequence, start, min(pending, budget))
        missing = groups.blocks_for(start + count) - len(sequence.block_ids)
        self._updates += groups.acquire(sequence, missing)
        return Slice(sequence.held_row, start, count, count == pending)

    def _is_being_computed(self, sequence: Sequence, index: int) -> bool:
        """Whether a running sequence is about to compute the block that this one needs next: the
        same prompt, or `n` > 1."""
        last = (len(sequence.token_ids) - 1) // self._groups.block_size
        if index >= min(len(sequence.keys), last):
            return False
        key = sequence.keys[index]
        return any(
            s.num_inserted <= index < len(s.keys) and s.keys[index] == key
            for s in self._running.values()
            if s.num_pending > 1
        )

    def _count_admission(self, sequence: Sequence) -> None:
        stats, num_found = self.stats, sequence.num_computed
        stats.prefix_queries += len(sequence.token_ids)
        stats.prefix_hits += num_found
        if sequence.num_cached is None:
            sequence.num_cached = num_found
            stats.prompt_tokens += len(sequence.token_ids)
            stats.cached_tokens += num_found

    def _snapshots(self, slices: Iterable[Slice]) -> tuple[StateCopy, ...]:
        """Return the snapshots to take of this step's states. If two were given the same slot, the
        last one keeps it."""
        copies: dict[int, StateCopy] = {}
        for row, start, count, _ in slices:
            if (copy := self._groups.save(self._running[row], start + count)) is not None:
                copies[copy.target] = copy
        return tuple(copies.values())

    # --- commit -----------------------------------------------------------------------------------

    def commit(self, step: Step, sampled: Sampled) -> list[EngineOutput]:
        """Record what a step computed. `sampled` has one token for each sampling slice, in
        order."""
        answers = iter(sampled.token_ids)
        outputs: list[EngineOutput] = []
        running, groups, max_model_len = self._running, self._groups, self._max_model_len
        block_size = groups.block_size
        logprobs, prompt_logprobs = sampled.logprobs, sampled.prompt_logprobs
        for row, start, count, samples in step.slices:
            sequence = running[row]
            sequence.num_computed = stop = start + count
            if stop // block_size > sequence.num_inserted:
                self._updates += groups.insert(sequence)
                groups.free_before(sequence)
            if not samples:
                continue
            token_id = next(answers)
            request, token_ids = sequence.request, sequence.token_ids
            token_ids.append(token_id)
            generated = len(token_ids) - len(request.token_ids)
            finish = finish_of(request, token_id, generated, len(token_ids) >= max_model_len)
            outputs.append(
                EngineOutput(
                    request.id,
                    token_id,
                    finish,
                    None if finish is None else _stop_id(request, token_id, finish),
                    logprobs.get(len(outputs)) if logprobs else None,
                    prompt_logprobs.get(row) if prompt_logprobs and generated == 1 else None,
                    sequence.num_cached or 0 if generated == 1 else 0,
                )
            )
            if finish is not None:
                del self._by_id[request.id]
                self._vacate(sequence)
        stats = self.stats
        stats.steps += 1
        stats.generated_tokens += len(outputs)
        self._gauge()
        return outputs

    def _enqueue(self, sequence: Sequence) -> None:
        heapq.heappush(self._waiting, (sequence.request.priority, sequence.arrival, sequence))

    def _vacate(self, sequence: Sequence) -> None:
        """Free a sequence's row and blocks."""
        row = sequence.held_row
        self._groups.release(sequence)
        del self._running[row]
        self._rows.append(row)
        if self._updates:
            self._updates = [update for update in self._updates if update.row != row]
        sequence.row = None

    def _gauge(self) -> None:
        stats = self.stats
        stats.num_running, stats.num_waiting = len(self._running), len(self._waiting)
        stats.kv_usage = self._groups.usage

    def check(self) -> None:
        """Check the invariants, for tests."""
        self._groups.check()
        self._groups.check_held(self._running.values())
        rows = [s.row for s in self._running.values() if s.row is not None]
        assert sorted(rows + self._rows) == list(range(len(self._running) + len(self._rows))), (
            "a row is lost or held twice"
        )
        assert len(self._by_id) == len(self._running) + len(self._waiting), "a sequence is lost"


def finish_of(
    request: Request, token_id: int, generated: int, is_full: bool
) -> FinishReason | None:
    """Return why a request ends with its latest token, the `generated`-th; None if it goes on."""
    params = request.params
    if generated >= params.min_tokens and (
        token_id in request.eos_token_ids or token_id in params.stop_token_ids
    ):
        return FinishReason.STOP
    if is_full or generated == params.max_tokens:
        return FinishReason.LENGTH
    return None


def _stop_id(request: Request, token_id: int, finish: FinishReason) -> int | None:
    """The entry of `stop_token_ids` that ended a request: none for the model's own end token."""
    own = finish is not FinishReason.STOP or token_id in request.eos_token_ids
    return None if own else token_id
