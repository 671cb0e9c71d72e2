"""The constraints of an engine's requests, and the masks of a step: computed in a thread, while the
model runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np
from attrs import define, field

from inferno.constraints.constraint import Constraint, Mask
from inferno.contracts import GrammarCompiler, MaskRequest

_POLL_SECONDS = 0.02

Drafts = Mapping[int, Sequence[int]]
"""Draft tokens by row."""


@define(eq=False)
class Constraints:
    """The constraints of the requests that have one, by request id."""

    vocab_size: int
    held: dict[str, Constraint] = field(factory=dict)
    _compiling: dict[str, Future[Constraint | None]] = field(factory=dict)
    _compiler: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1, "compile"))
    _masker: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1, "masks"))
    """The threads start with their first work. Masks do not wait for grammars."""

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
        return {request_id: future.exception() for request_id, future in done.items()}

    def settle(self) -> None:
        """Wait for the masks of a step that was given up."""
        self._masker.submit(lambda: None).result()

    def drop(self, request_id: str) -> None:
        """Forget a request."""
        self.held.pop(request_id, None)
        self._compiling.pop(request_id, None)

    def masks(self, ids: Mapping[int, str], *, beside: bool) -> MaskJob:
        """Begin the masks of a step, whose sampling rows belong to these requests. `beside`:
        compute them in a thread, as soon as the step's drafts are known."""
        rows = {row: self.held[id] for row, id in ids.items() if id in self.held}
        return MaskJob(rows, -(-self.vocab_size // 32), self._masker if beside else None)


@define(eq=False)
class MaskJob:
    """The masks of one step."""

    rows: Mapping[int, Constraint]
    words: int
    pool: ThreadPoolExecutor | None
    _drafts: Drafts = field(factory=dict)
    _begun: Future[dict[int, Mask]] | None = None

    def begin(self, drafts: Drafts) -> Drafts:
        """Return the step's drafts without those that a constraint forbids, and begin the masks if
        they are computed beside the step."""
        found = {}
        for row, ids in drafts.items():
            constraint = self.rows.get(row)
            found[row] = ids if constraint is None else ids[: constraint.count_valid(ids)]
        self._drafts = {row: ids for row, ids in found.items() if ids}
        if self.pool is not None and self.rows:
            self._begun = self.pool.submit(self._fill)
        return self._drafts

    def result(self) -> dict[int, Mask]:
        """Return the masks by row, once they are computed."""
        return self._fill() if self._begun is None else self._begun.result()

    def _fill(self) -> dict[int, Mask]:
        counts = {row: 1 + len(self._drafts.get(row, ())) for row in self.rows}
        masks_MW = np.zeros((sum(counts.values()), self.words), np.int32)
        requests: dict[int, tuple[GrammarCompiler, dict[int, MaskRequest]]] = {}
        masks: dict[int, Any] = {}
        first = 0
        for row, constraint in self.rows.items():
            masks[row] = mask_NW = masks_MW[first : first + counts[row]]
            asked = constraint.fill(self._drafts.get(row, ()), mask_NW)
            if asked is not None:
                compiler = constraint.compiler
                assert compiler is not None, "a constraint that asks for masks has a compiler"
                _, own = requests.setdefault(id(compiler), (compiler, {}))
                own[row] = asked._replace(index=first)
            first += counts[row]
        for compiler, own in requests.values():
            try:
                compiler.fill(list(own.values()), masks_MW)
            except Exception as error:  # a provider's fault ends its requests, not the engine
                for row in own:
                    self.rows[row].fail(f"no mask was computed: {type(error).__name__}: {error}")
        for row, constraint in self.rows.items():
            constraint.finish_fill(masks[row])
        return masks
