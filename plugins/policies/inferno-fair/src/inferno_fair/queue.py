"""Requests run in flows: those of one tenant that wait for their answers, and those of its work in
the background (a priority above 0). The flow that asks for least comes first.

- *Rows.* Of requests with the same priority, one of the flow with the fewest rows is admitted next.
  If there is no room for it, the flow with the most rows gives up one.
- *Steps.* A flow takes part in a step as far as it slows the flows before it by no more than
  `SLOWER`, measured in seconds, so that tokens, prompts and the masks of grammars count alike; and,
  by deficit round robin, if it was served `LEAD` tokens less than the first one. Steps in which the
  first one has a prompt are counted apart, so that a long prompt does not make a stream slow.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from attrs import define, field

from inferno.contracts import Queued, QueueNeed

T = TypeVar("T", bound=Queued)

SLOWER = 0.15
"""The most by which the steps of a flow take longer because of all that ask for more."""
ALIKE = 2
"""A flow takes part in the first one's steps if it asks for at most this many times as much."""
PREFERENCE = 4.0
"""By how much more a token of a flow may count that asks for more: where a step of many rows takes
very long, a lone stream keeps its speed, and gets more tokens than all others together."""
LEAD = 64.0
"""Tokens by which the flow that asks for least may be ahead: then others take part in its steps."""
MEMORY = 512.0
"""Tokens by which a flow may be ahead of another at most: what was long ago is forgotten."""
MOST_DEBT = 1.0
"""Seconds of others' steps that a flow may owe: one long prompt is no reason for a long rest."""
ABSENCE = 10.0
"""Seconds of one flow's steps alone after which it owes nothing any more. Who asks for little is
often gone for a moment between two requests."""
NONE = 1e-9
"""Less than the seconds of any step. A flow that owes nothing owes this: the first step of one that
asks for less is that one's alone."""


class Flow(NamedTuple):
    """Requests that are one to the queue."""

    background: bool
    tenant: str


def flow_of(each: Queued) -> Flow:
    return Flow(each.request.priority > 0, each.request.tenant)


@define
class _Work:
    """What a step computes, as `QueueNeed.seconds` is asked."""

    tokens: int = 0
    pairs: float = 0.0
    alone: bool = True
    """Whether it has one token of each request."""
    rows: int = 0
    """Of how many requests."""

    def add(self, tokens: int, pairs: float, *, alone: bool) -> None:
        self.rows += 1
        self.tokens += tokens
        self.pairs += pairs
        self.alone &= alone


@define(eq=False)
class FairQueue(Generic[T]):
    """See contracts.Queue."""

    need: QueueNeed
    _waiting: dict[Flow, list[tuple[int, int, T]]] = field(factory=dict)
    """Of each flow that waits, a heap of priority, arrival, request."""
    _present: set[Flow] = field(factory=set)
    """Flows that requests may be of which run or wait. With one alone, no step counts its rows."""
    _rows: Counter[Flow] = field(factory=Counter)
    """How many requests of each run."""
    _order: list[Flow] = field(factory=list)
    """The flows that there are, the one that asks for least first; empty if there is only one."""
    _resting: set[Flow] = field(factory=set)
    """Those that take no part in the step that is planned."""
    _alone: float = 0.0
    """Seconds of steps since there were several flows."""
    _weights: dict[Flow, float] = field(factory=dict)
    """What a token of each counts."""
    _served: dict[Flow, float] = field(factory=dict)
    """Tokens that it was given, the parts of prompts as one each: what prompts cost is credit's."""
    _credits: tuple[dict[Flow, float], dict[Flow, float]] = field(factory=lambda: ({}, {}))
    """Seconds by which a flow may still slow those before it, negative while it rests: in steps
    where the first flow only has streams, and in those where it has a prompt."""

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values())) if self._waiting else 0

    def push(self, each: T) -> None:
        heap = self._waiting.setdefault(flow := flow_of(each), [])
        self._present.add(flow)
        heapq.heappush(heap, (each.request.priority, each.arrival, each))

    def first(self) -> T | None:
        return self._first(self._resting)

    def pop(self) -> None:
        each = self._first(self._resting)
        assert each is not None, "`first` has returned one"
        flow = flow_of(each)
        heapq.heappop(self._waiting[flow])
        self._rows[flow] += 1
        if not self._waiting[flow]:
            del self._waiting[flow]

    def remove(self, each: T) -> None:
        flow = flow_of(each)
        left = [entry for entry in self._waiting.pop(flow, ()) if entry[2] is not each]
        if left:
            heapq.heapify(left)
            self._waiting[flow] = left

    def turn(self, running: Sequence[T], *, everyone: bool = False) -> Sequence[T]:
        flow_by_row = list[Flow]()
        if len(self._present) > 1:
            flow_by_row = list(map(flow_of, running))
            self._rows = Counter(flow_by_row)
            self._present = self._rows.keys() | self._waiting.keys()
        rows, flows = self._rows, self._present
        if len(flows) < 2:
            for flow in flows:
                rows[flow] = len(running)
            if self._order:
                self._order, self._resting = [], set()
            return running
        self._note(flows)
        wanted = {flow: rows[flow] + len(self._waiting.get(flow, ())) for flow in flows}
        self._weigh(wanted)

        def place(flow: Flow) -> tuple[bool, int, float, str]:
            return flow.background, wanted[flow], self._served[flow], flow.tenant

        self._order = order = sorted(flows, key=place)
        first, rest = order[0], () if everyone else order[1:]
        its = [each for each, flow in zip(running, flow_by_row, strict=True) if flow == first]
        streams = sum(each.num_computed >= len(each.request.token_ids) - 1 for each in its)
        prompts = len(its) - streams + (first in self._waiting)
        self._resting = {f for f in rest if self._rests(f, first, wanted, streams, prompts)}
        places = {flow: i for i, flow in enumerate(order) if flow not in self._resting}
        turns = zip(map(places.get, flow_by_row), range(len(running)), strict=True)
        return [running[i] for _, i in sorted((at, i) for at, i in turns if at is not None)]

    def _weigh(self, wanted: Mapping[Flow, int]) -> None:
        """Note what tokens count, with the rows that are wanted."""
        rows = {flow: min(count, self.need.max_num_seqs) for flow, count in wanted.items()}
        alike = ALIKE * min(rows.values())
        self._weights = {f: min(PREFERENCE, max(1.0, n / alike)) for f, n in rows.items()}

    def _rests(
        self, flow: Flow, first: Flow, wanted: Mapping[Flow, int], streams: int, prompts: int
    ) -> bool:
        """Whether a flow rests in a step in which the first one has `streams` and `prompts`."""
        if self._credits[prompts > 0][flow] >= 0:
            return False
        if flow.background != first.background:
            return True
        ahead = self._served[first] - self._served[flow] if streams else 0.0
        return ahead < LEAD and wanted[flow] > ALIKE * wanted[first]

    def displaced(self, running: Sequence[T]) -> T | None:
        if len(self._present) < 2 or not running or (first := self._first()) is None:
            return None
        rows = Counter(map(flow_of, running))
        most = max(rows, key=lambda flow: (rows[flow], flow))
        if rows[most] < rows[flow_of(first)] + 2:
            return None
        least = first.request.priority
        able = [s for s in running if flow_of(s) == most and s.request.priority >= least]
        return max(able, key=lambda s: (s.request.priority, s.arrival), default=None)

    def victim(self, running: Iterable[T]) -> T:
        sequences = list(running)
        rows = Counter(map(flow_of, sequences))
        return max(sequences, key=lambda s: (s.request.priority, rows[flow_of(s)], s.arrival))

    def computed(self, parts: Iterable[tuple[T | None, int]], seconds: float) -> None:
        if not self._order:
            self._alone += seconds
            if self._served and self._alone > ABSENCE:
                self._served, self._credits = {}, ({}, {})
            return
        self._alone = 0.0
        works: dict[Flow, _Work] = {}
        for each, count in parts:
            if each is not None:
                work = works.setdefault(flow_of(each), _Work())
                work.add(count, count * (each.num_computed + count / 2), alone=count == 1)
        for flow in works.keys() & self._served.keys():
            self._served[flow] += self._weights[flow] * works[flow].rows
        least = min(self._served.values())
        for flow, served in self._served.items():
            self._served[flow] = min(served, least + MEMORY)
        self._charge(works, seconds)

    def _first(self, resting: Iterable[Flow] = ()) -> T | None:
        """Return the request that is admitted next, of a flow that does not rest."""
        heads = [
            ((heap[0][0], self._rows[flow], self._served.get(flow, 0.0), heap[0][1]), heap[0][2])
            for flow, heap in self._waiting.items()
            if flow not in resting
        ]
        return min(heads, key=lambda head: head[0])[1] if heads else None

    def _note(self, flows: Iterable[Flow]) -> None:
        """Forget flows that are gone, and let new ones begin as the one that was served least."""
        least = min(self._served.values(), default=0.0)
        self._served = {flow: self._served.get(flow, least) for flow in flows}
        streams, prompts = ({f: c.get(f, -NONE) for f in self._served} for c in self._credits)
        if any(flow not in self._order for flow in flows):
            prompts = {flow: min(-NONE, credit) for flow, credit in prompts.items()}
        self._credits = streams, prompts

    def _charge(self, works: dict[Flow, _Work], seconds: float) -> None:
        """Charge each flow the seconds by which it made the step longer for those before it, and
        give it its part of the seconds that these take anyway."""
        last = max((i for i, flow in enumerate(self._order) if flow in works), default=-1)
        total = sum(work.tokens for work in works.values())
        part, before, so_far = SLOWER / max(1, len(self._order) - 1), 0.0, _Work()
        credits = self._credits[not works.get(self._order[0], so_far).alone]
        for place, flow in enumerate(self._order):
            after = before
            if (work := works.get(flow)) is not None:
                so_far.add(work.tokens, work.pairs, alone=work.alone)
                expected = self.need.seconds(so_far.tokens, so_far.pairs, so_far.alone)
                if expected is None:  # nothing is known of such steps: each token costs the same
                    expected = seconds * so_far.tokens / total
                after = max(before, seconds if place == last else min(seconds, expected))
            if place and flow in credits:
                credit = credits[flow] + part * before - (after - before)
                credits[flow] = max(-MOST_DEBT, min(0.0, credit))
            before = after
