"""The constraints of an engine's requests: compiled in a thread, and turned into a step's masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Protocol

from attrs import define, field

from inferno.constraints.constraint import Constraint
from inferno.constraints.grammar_time import Turns
from inferno.constraints.masks import MaskJob, asks_first
from inferno.host import starved
from inferno.request.sampling_params import SamplingParams

_POLL_SECONDS = 0.02


class Asked(Protocol):
    """What a request says of its masks."""

    @property
    def id(self) -> str: ...
    @property
    def params(self) -> SamplingParams: ...


@define(eq=False)
class Constraints:
    """The constraints of the requests that have one, by request id."""

    vocab_size: int
    looks: bool = False
    """Whether draws that can (`asks_first`) ask for a token before their masks are computed. Where
    steps are in flight a draw waits for nothing: it asks the mask."""
    held: dict[str, Constraint] = field(factory=dict)
    _turns: Turns = field(factory=Turns)
    _compiling: dict[str, Future[Constraint | None]] = field(factory=dict)
    _compiler: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1, "compile"))
    _masker: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1, "masks"))
    """The threads start with their first work. Masks do not wait for grammars."""

    def start_threads(self) -> None:
        """Start the threads now: a thread that dies for want of memory while it starts is waited
        for without end, and in a step that would hold up every request."""
        for pool in (self._compiler, self._masker):
            pool.submit(lambda: None).result()

    def start(self, request_id: str, compile: Callable[[], Constraint | None]) -> None:
        """Compile a request's constraint in a thread."""
        self._compiling[request_id] = self._compiler.submit(compile)

    def ready(self, *, idle: bool) -> dict[str, BaseException | None]:
        """Return the requests whose constraints have been compiled since the last call, each with
        the error if that failed. An `idle` engine waits briefly for the first."""
        wait(self._compiling.values(), _POLL_SECONDS if idle else 0, "FIRST_COMPLETED")
        done = {id: each for id, each in self._compiling.items() if each.done()}
        for request_id, future in done.items():
            del self._compiling[request_id]
            if future.exception() is None and (constraint := future.result()) is not None:
                self.held[request_id] = constraint
        return {request_id: _told(future.exception()) for request_id, future in done.items()}

    def settle(self) -> None:
        """Wait for the masks of a step that was given up."""
        self._masker.submit(lambda: None).result()

    def drop(self, request_id: str) -> None:
        """Forget a request."""
        self.held.pop(request_id, None)
        self._compiling.pop(request_id, None)

    def resting(self, now: float, num_requests: int) -> set[str]:
        """Return the requests that do not take part in the step that is planned at the time `now`,
        because their grammars are slow. `num_requests`: how many might run in it."""
        times = [(id, each.time) for id, each in self.held.items()]
        slow = {id: time for id, time in times if time is not None and time.is_slow}
        return self._turns.resting(slow, now, alone=len(slow) >= num_requests) if slow else set()

    def masks(self, requests: Mapping[int, Asked], *, beside: bool) -> MaskJob:
        """Begin the masks of a step, whose sampling rows belong to these requests. `beside`:
        compute them in a thread, as soon as the step's drafts are known."""
        rows = {row: self.held[r.id] for row, r in requests.items() if r.id in self.held}
        asking = {row for row in rows if asks_first(requests[row].params)}
        words = -(-self.vocab_size // 32)
        return MaskJob(rows, words, asking, self._masker if beside else None, self.looks)


def _told(error: BaseException | None) -> BaseException | None:
    """Return what to tell of it: compilers start threads of their own."""
    return error and (starved(error) or error)
