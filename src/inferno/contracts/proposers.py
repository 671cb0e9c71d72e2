"""Proposers of draft tokens for speculative decoding: a step of the model verifies them all.

Whatever the proposer, verification draws each token as a step without drafts would. A better
proposer makes the output faster, not different.

Suffixes: T tokens of a step, S sampled rows, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from attrs import field, frozen

from inferno.contracts import lazy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from inferno.contracts.architectures import MTP, Model
    from inferno.nn.batch import Batch


class Span(NamedTuple):
    """Consecutive tokens of a running sequence."""

    row: int
    start: int
    num_tokens: int


class DraftRequest(NamedTuple):
    """A sequence that takes drafts in the next step."""

    row: int
    token_ids: Any
    """All tokens of the sequence, a numpy array of int64. It must not be changed."""
    count: int  # type: ignore[assignment]  # tuple.count is not needed here
    """The most drafts that the step verifies, at least 1. The cache has slots for them."""


class Lookahead(Protocol):
    """What the runner offers to a proposer that computes with layers."""

    def batch(self, spans: Sequence[Span], shift: int = 0) -> Batch:
        """Return a batch of these tokens, with the slots of their sequences' blocks. With a
        `shift`, the token ids are those that many positions later."""
        ...

    def logits(self, model: Model, spans: Sequence[Span]) -> Tensor:
        """Compute these tokens with a model, and return the logits after each span's last one."""
        ...

    def write(self, row: int, position: int, token_id: int) -> None:
        """Store a draft as the token at this position, for later batches of the same proposal."""
        ...

    def draw_draft(self, logits_SV: Tensor, rows: Sequence[int], offset: int) -> list[int]:
        """Draw draft number `offset` of each row as its request would, with the uniform number of
        its position: similar logits mostly draw the same token."""
        ...


class Drafter(Protocol):
    """A proposer, built in the engine process. Subclasses override what they need."""

    def admit(self, row: int, start: int) -> None:
        """Note that a new sequence has this row, with its first `start` tokens in the cache."""
        return None

    def computed(self, spans: Sequence[Span], hidden_TD: Tensor, lookahead: Lookahead) -> None:
        """Note that the model has computed these tokens; `hidden_TD` are its final hidden states,
        drafts included. Called only if `sees_steps`."""
        return None

    @property
    def layers(self) -> nn.Module | None:
        """The modules that it computes with, or None. Their attention is bound to the cache."""
        return None

    @property
    def sees_steps(self) -> bool:
        """Whether `computed` is called after every step. If so, no step is captured."""
        return False

    def propose(
        self, requests: Sequence[DraftRequest], lookahead: Lookahead
    ) -> Sequence[Sequence[int]]:
        """Return the drafts of each request, at most `count`: the tokens expected to follow its
        own. Return none for a request if nothing is likely."""
        ...


@frozen(kw_only=True)
class DraftParts:
    """What a proposer is built from."""

    model: Model
    """The model that verifies."""
    draft: Model | None = None
    """The draft model, for a proposer that needs one, bound to its own layers of the cache."""
    mtp: MTP | None = None
    """The model's multi-token-prediction layers, for a proposer that needs them, bound likewise."""
    max_model_len: int
    """The longest context for which drafts can be proposed."""


@frozen(kw_only=True)
class Proposer:
    """A kind of proposer, chosen by `--speculative NAME`."""

    name: str
    build: Callable[[DraftParts], Drafter] = field(converter=lazy.function)
    """Called once in the engine process."""
    needs: Literal["nothing", "model", "mtp"] = "nothing"
    """What it computes with: a draft model, or the multi-token-prediction layers that the model's
    checkpoint stores."""
    num_drafts: int = 8
    """The most drafts per step, unless the user says otherwise."""
    cost: float = 0.0
    """Time to propose one draft, as a share of a step of the model."""
    api_version: int = 1
