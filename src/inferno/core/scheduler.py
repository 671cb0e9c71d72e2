"""Decides what runs next. Pure bookkeeping: no tensors, no clocks, no threads.

There is no prefill and no decode: every sequence has pending tokens, and a step computes some of
them (vLLM v1's view). Chunked prompts, prefix hits and preemption are all "fewer tokens computed
than known". The cost of a step grows with what is new in it, never with how long the contexts are.
"""

from __future__ import annotations

import heapq

from inferno.core.kvcache import BlockPool, extend_keys
from inferno.core.types import (
    BlockGrant,
    EngineOutput,
    EngineStats,
    FinishReason,
    NewSequence,
    Request,
    Sampled,
    Sequence,
    Slice,
    Step,
    WindowGrant,
)


class Scheduler:
    """`add` and `abort` requests; `plan` a step; `commit` what it computed.

    `max_model_len` bounds prompt and output together, `max_num_seqs` the sequences that run at
    once, and `max_num_batched_tokens` the tokens of a step.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_model_len: int,
        max_num_seqs: int = 64,
        max_num_batched_tokens: int = 2048,
    ) -> None:
        longest = pool.blocks_for(min(max_model_len, max_num_batched_tokens))
        assert all(w.num_blocks > pool.blocks_for(w.window) + longest for w in pool.windows), (
            "too few for one sequence"
        )
        self._pool = pool
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._waiting: list[tuple[int, int, Sequence]] = []  # heap by priority, then arrival
        self._running: dict[int, Sequence] = {}  # by row, first admitted first
        self._by_id: dict[str, Sequence] = {}
        self._rows = list(range(max_num_seqs - 1, -1, -1))
        self._arrivals = 0
        self._swaps: list[BlockGrant] = []
        """Table entries that changed in a commit: told to the runner with the next step."""
        self._window_grants: list[WindowGrant] = []
        """Those of the windows' tables, of commits and of the plan being made."""
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
        heapq.heappush(self._waiting, (request.priority, sequence.arrival, sequence))

    def knows(self, request_id: str) -> bool:
        return request_id in self._by_id

    def abort(self, request_id: str) -> bool:
        """Forget a request, between a commit and the next plan. False when it is not (or no longer)
        here."""
        sequence = self._by_id.pop(request_id, None)
        if sequence is None:
            return False
        if sequence.row >= 0:
            self._vacate(sequence)
        else:
            self._waiting = [entry for entry in self._waiting if entry[2] is not sequence]
            heapq.heapify(self._waiting)
        self._gauge()
        return True

    # --- plan -------------------------------------------------------------------------------------

    def plan(self) -> Step:
        """The next step: running sequences first, then as many waiting ones as fit. Empty when
        nothing is pending."""
        budget = self._max_num_batched_tokens
        slices: list[Slice] = []
        grants, self._swaps = self._swaps, []
        block_size = self._pool.block_size
        preempted = False
        for sequence in list(self._running.values()):
            if sequence.row < 0:  # made room for one before it
                continue
            start = sequence.num_computed
            pending = len(sequence.token_ids) - start
            count = pending if pending <= budget else budget
            if count == 0:
                break
            if start + count > len(sequence.block_ids) * block_size:
                preempted |= (outcome := self._extend(sequence, start + count, grants)) is not None
                if outcome is sequence:
                    continue
            slices.append(Slice(sequence.row, start, count, count == pending))
            budget -= count
        if preempted:  # those chosen before a later one took their blocks are out again
            slices = [s for s in slices if s.row in self._running]
            grants = [g for g in grants if g.row in self._running]
        new_sequences: list[NewSequence] = []
        if not preempted:
            self._admit(budget, slices, new_sequences, grants)
        self._gauge()
        window_grants, self._window_grants = self._window_grants, []
        return Step(tuple(slices), tuple(new_sequences), tuple(grants), tuple(window_grants))

    def _extend(
        self, sequence: Sequence, num_tokens: int, grants: list[BlockGrant]
    ) -> Sequence | None:
        """Blocks for `num_tokens` tokens. Preempts the least urgent sequences while there are too
        few; returns the last one preempted, which may be `sequence` itself."""
        missing = self._pool.blocks_for(num_tokens) - len(sequence.block_ids)
        victim: Sequence | None = None
        while self._pool.num_available < missing:
            victim = max(self._running.values(), key=lambda s: (s.request.priority, s.arrival))
            self._preempt(victim)
            if victim is sequence:
                return victim
        self._grant(sequence, self._pool.allocate(missing), grants)
        return victim

    def _preempt(self, sequence: Sequence) -> None:
        """Give its blocks back and let it wait again; what it computed is found in the prefix cache
        or recomputed."""
        self._vacate(sequence)
        sequence.num_computed = sequence.num_kept = 0
        sequence.block_ids = []
        heapq.heappush(self._waiting, (sequence.request.priority, sequence.arrival, sequence))
        self.stats.preemptions += 1

    def _admit(
        self,
        budget: int,
        slices: list[Slice],
        new_sequences: list[NewSequence],
        grants: list[BlockGrant],
    ) -> None:
        """Waiting sequences take rows, in order, while rows, tokens and blocks last. None overtakes
        the first."""
        while self._waiting and self._rows and budget:
            if self._pool.num_available <= len(self._running):
                return  # whatever it finds in the cache, one block is always missing
            sequence = self._waiting[0][2]
            hits = self._match(sequence)
            if self._is_computed_beside(sequence, len(hits)):
                return  # a step or two later it is found instead of computed again
            start = len(hits) * self._pool.block_size
            pending = len(sequence.token_ids) - start
            count = min(pending, budget)
            missing = self._pool.blocks_for(start + count) - len(hits)
            # Idle hits cannot be evicted for the rest. One block is left for each running sequence
            # to grow into.
            if self._pool.num_available_beside(hits) < missing + len(self._running):
                return
            heapq.heappop(self._waiting)
            sequence.window_starts = self._pool.hold(hits)
            sequence.row = self._rows.pop()
            self._running[sequence.row] = sequence
            self._grant(sequence, hits, grants)
            self._grant(sequence, self._pool.allocate(missing), grants)
            sequence.num_computed, sequence.num_kept = start, len(hits)
            self._count_admission(sequence, start)
            new_sequences.append(
                NewSequence(sequence.row, sequence.request, tuple(sequence.token_ids))
            )
            slices.append(Slice(sequence.row, start, count, count == pending))
            budget -= count

    def _match(self, sequence: Sequence) -> list[int]:
        """Known blocks of its prefix. At least one token stays to be computed: its logits are
        wanted."""
        if self._pool.prefix is None or sequence.request.params.prompt_logprobs is not None:
            return []
        self._extend_keys(sequence)
        usable = (len(sequence.token_ids) - 1) // self._pool.block_size
        return self._pool.usable(self._pool.prefix.match(sequence.keys[:usable]))

    def _is_computed_beside(self, sequence: Sequence, place: int) -> bool:
        """Whether a running sequence is about to compute the block that this one needs next: the
        same prompt, or `n` > 1."""
        if place >= min(len(sequence.keys), (len(sequence.token_ids) - 1) // self._pool.block_size):
            return False
        key = sequence.keys[place]
        return any(
            s.num_kept <= place < len(s.keys) and s.keys[place] == key
            for s in self._running.values()
            if s.num_pending > 1
        )

    def _count_admission(self, sequence: Sequence, start: int) -> None:
        stats = self.stats
        stats.prefix_queries += len(sequence.token_ids)
        stats.prefix_hits += start
        if sequence.num_cached < 0:
            sequence.num_cached = start
            stats.prompt_tokens += len(sequence.token_ids)
            stats.cached_tokens += start

    def _grant(self, sequence: Sequence, blocks: list[int], grants: list[BlockGrant]) -> None:
        row, place = sequence.row, len(sequence.block_ids)
        for i, block in enumerate(blocks):
            grants.append(BlockGrant(row, place + i, block))
        sequence.block_ids += blocks
        for pool, start in zip(self._pool.windows, sequence.window_starts, strict=True):
            for i in range(max(start, place), place + len(blocks)):
                self._window_grants.append(
                    WindowGrant(pool.window, row, i, pool.owned[sequence.block_ids[i]])
                )

    # --- commit -----------------------------------------------------------------------------------

    def commit(self, step: Step, sampled: Sampled) -> list[EngineOutput]:
        """Record what a step computed. `sampled` has one token for each sampling slice, in
        order."""
        answers = iter(sampled.token_ids)
        tokens: list[EngineOutput] = []
        running, block_size = self._running, self._pool.block_size
        logprobs, prompt_logprobs = sampled.logprobs, sampled.prompt_logprobs
        for row, start, count, samples in step.slices:
            sequence = running[row]
            stop = start + count
            sequence.num_computed = stop
            if stop // block_size > sequence.num_kept:
                self._keep(sequence, stop // block_size)
                self._pool.slide(sequence.block_ids, sequence.window_starts, stop)
            if not samples:
                continue
            token_id = next(answers)
            sequence.token_ids.append(token_id)
            request, params = sequence.request, sequence.request.params
            generated = len(sequence.token_ids) - len(request.token_ids)
            finish, stop_id = None, None
            if token_id in request.eos_token_ids and generated >= params.min_tokens:
                finish = FinishReason.STOP
            elif token_id in params.stop_token_ids and generated >= params.min_tokens:
                finish, stop_id = FinishReason.STOP, token_id
            elif generated == params.max_tokens or len(sequence.token_ids) >= self._max_model_len:
                finish = FinishReason.LENGTH
            tokens.append(
                EngineOutput(
                    request.id,
                    token_id,
                    finish,
                    stop_id,
                    logprobs.get(len(tokens)) if logprobs else None,
                    prompt_logprobs.get(row) if prompt_logprobs and generated == 1 else None,
                    sequence.num_cached if generated == 1 else 0,
                )
            )
            if finish is not None:
                del self._by_id[request.id]
                self._vacate(sequence)
        stats = self.stats
        stats.steps += 1
        stats.generated_tokens += len(tokens)
        self._gauge()
        return tokens

    def _keep(self, sequence: Sequence, num_full: int) -> None:
        """Tell the prefix cache of blocks that became full. A block it knows by another id is
        shared instead."""
        prefix = self._pool.prefix
        if prefix is None:
            sequence.num_kept = num_full
            return
        self._extend_keys(sequence)
        for place in range(sequence.num_kept, num_full):
            own = sequence.block_ids[place]
            known = prefix.keep(sequence.keys[place], own)
            if known != own:
                window_blocks = self._pool.exchange(own, known)
                sequence.block_ids[place] = known
                self._swaps.append(BlockGrant(sequence.row, place, known))
                for pool, block in zip(self._pool.windows, window_blocks, strict=True):
                    self._window_grants.append(WindowGrant(pool.window, sequence.row, place, block))
        sequence.num_kept = num_full

    def _extend_keys(self, sequence: Sequence) -> None:
        extend_keys(
            sequence.keys, sequence.token_ids, self._pool.block_size, sequence.request.cache_salt
        )

    def _vacate(self, sequence: Sequence) -> None:
        """Its row and blocks go back."""
        self._pool.release(sequence.block_ids, sequence.window_starts)
        del self._running[sequence.row]
        self._rows.append(sequence.row)
        self._swaps = (
            [g for g in self._swaps if g.row != sequence.row] if self._swaps else self._swaps
        )
        if self._window_grants:
            self._window_grants = [g for g in self._window_grants if g.row != sequence.row]
        sequence.row = -1

    def _gauge(self) -> None:
        stats = self.stats
        stats.num_running, stats.num_waiting = len(self._running), len(self._waiting)
        stats.kv_usage = self._pool.usage

    def check(self) -> None:
        """The invariants, for tests and for when nothing runs."""
        self._pool.check()
        rows = [s.row for s in self._running.values()]
        assert sorted(rows + self._rows) == list(range(len(rows) + len(self._rows))), (
            "a row is lost or held twice"
        )
        assert len(self._by_id) == len(self._running) + len(self._waiting), "a sequence is lost"
        held = {b for s in self._running.values() for b in s.block_ids}
        assert len(held) == self._pool.num_held, "a block has no sequence"
        for i, pool in enumerate(self._pool.windows):
            places = [(s, s.window_starts[i]) for s in self._running.values()]
            assert all(start <= pool.first(s.num_computed) for s, start in places), (
                "a sequence may look at what it let go of"
            )
            looked_at = {b for s, start in places for b in s.block_ids[start:]}
            assert looked_at <= pool.owned.keys(), "a block that is looked at has no window block"
            assert len(looked_at) == pool.num_held, "a window block has no sequence"
