"""What runs a follower's steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from inferno.constraints import Drafts
from inferno.contracts import DraftRequest, Lookahead, Span
from inferno.core.runner import LaunchedStep, ModelRunner, StepArrays
from inferno.core.types import Step
from inferno.process.ranks import messages
from inferno.process.ranks.late_blocks import LateBlocks
from inferno.process.ranks.passing import Neighbours
from inferno.process.ranks.proposing import Proposing, learn_verified


class NoDrafts:
    """The proposer of a rank that is told its drafts (`contracts.Drafter`)."""

    layers = None
    sees_steps = False

    def admit(self, row: int, num_computed: int) -> None: ...

    def computed(self, spans: Sequence[Span], hidden_TD: Any, ahead: Lookahead) -> None: ...

    def propose(
        self, requests: Sequence[DraftRequest], ahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        return [()] * len(requests)


class FollowingRunner(ModelRunner):
    """Runs steps without drawing: it is told what rank 0 drew."""

    def __init__(self, neighbours: Neighbours | None, *given: Any, **more: Any) -> None:
        """`neighbours` are the stages beside its own, if there are any."""
        more["parts"] = () if neighbours is None else (neighbours,)
        super().__init__(*given, **more)
        self.neighbours = neighbours
        self._awaited = deque[tuple[StepArrays, Any] | None]()
        """The steps whose tokens are not known, with the owners of their rows; None: one without
        tokens."""

    def read_adapters(self, step: Step) -> None:
        """Read the adapters of sequences that begin, as rank 0 has, and forget those in no slot."""
        if self.adapting is None or self.plan.adapters is None:
            return
        adapters = self.adapting.adapters
        given = [new.request.adapter for new in step.new_sequences]
        wanted = [ref for ref in given if ref is not None]
        for ref in wanted:
            adapters.read(ref)
        if wanted:
            kept = [*wanted, *(use.adapter for use in self.plan.adapters.loaded)]
            adapters.keep([ref.digest for ref in kept])

    def launch(self, step: Step, cut: Callable[[Drafts], Drafts] | None = None) -> LaunchedStep:
        around = self.neighbours
        if around is not None and around.edges.passed_ND is not None:
            step = messages.without_results(step)
        launched = super().launch(step, cut)
        if (arrays := launched.arrays) is not None:
            if around is not None:
                around.pass_on(arrays)
            owners = self._tables.owners[arrays.sampling_rows]
            self._awaited.append((arrays, owners))
        else:
            self._awaited.append(None)
        return launched

    def learn(self, drawn: messages.Drawn) -> None:
        """Take the tokens that the first step drew of those whose tokens are not known: where
        several are in flight, rows may have been given to other sequences since."""
        if (awaited := self._awaited.popleft()) is None or not drawn:
            return
        arrays, owners = awaited
        if arrays.drafts is None:
            self._tables.learn(arrays, owners, [token_id for [token_id] in drawn])
        else:
            learn_verified(self._tables, arrays, owners, drawn)


class LateRunner(FollowingRunner):
    """Runs the steps of a last stage whose ranks propose drafts together: for a new step before
    they compute an earlier one."""

    def __init__(self, neighbours: Neighbours | None, *given: Any, **more: Any) -> None:
        super().__init__(neighbours, *given, **more)
        proposing = Proposing.of(self)
        assert proposing is not None, "it is late as it proposes"
        self._proposing = proposing
        self._pending = deque[tuple[Step, Drafts]]()
        self._computed = deque[LaunchedStep]()
        """Those whose tokens are not known."""
        self.late: Sequence[LateBlocks] = ()
        """This rank's stores of blocks, if there are any."""

    def begin(self, step: Step, told: Callable[[Drafts], Drafts] | None) -> None:
        """Propose a step's drafts with the other ranks, and take those that are `told`."""
        drafts = self._proposing.launched(step)
        self._pending.append((step, drafts if told is None else told(drafts)))
        for each in self.late:
            each.launched()

    def proposed(self, step: Step) -> Drafts:
        """Return none: `begin` has asked the proposer."""
        return {}

    def compute(self) -> None:
        """Compute the first step that has begun."""
        step, drafts = self._pending.popleft()
        self.read_adapters(step)
        self._computed.append(self.launch(step, lambda proposed: drafts))
        for each in self.late:
            each.computed()

    def learn(self, drawn: messages.Drawn) -> None:
        super().learn(drawn)
        self._proposing.computed(self._computed.popleft(), drawn)
