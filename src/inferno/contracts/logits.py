"""Logits processors: plugins that change a request's logits before a token is drawn.

Suffixes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from attrs import field, frozen

from inferno.contracts import lazy

if TYPE_CHECKING:
    from torch import Tensor


@frozen(kw_only=True)
class ProcessorContext:
    """What a processor knows of its request and of the model."""

    prompt_token_ids: Sequence[int]
    vocab_size: int
    eos_token_ids: Sequence[int]


class Processor(Protocol):
    """A logits processor of one request, built in the engine process."""

    def process(self, token_ids: Sequence[int], logits_V: Tensor) -> Tensor:
        """Return the logits from which the next token is drawn; may change `logits_V`, which is in
        float32. `token_ids` is the output so far. The result must depend on these alone: a token
        may be drawn again, for instance after a preemption. An exception ends the request with an
        error, and no other."""
        ...


def _no_check(args: Mapping[str, Any]) -> None:
    return None


@frozen(kw_only=True)
class LogitsProcessor:
    """A logits processor that requests name in `logits_processors`. It runs before penalties and
    bias."""

    name: str
    build: Callable[[Mapping[str, Any], ProcessorContext], Processor] = field(
        converter=lazy.function
    )
    """build(args, context) -> the processor of one request, with args that `check` passed."""
    check: Callable[[Mapping[str, Any]], None] = field(default=_no_check, converter=lazy.function)
    """check(args) raises ValueError if the arguments are wrong. Called in the server, before the
    request is admitted. Imports no torch."""
    help: str = ""
    """What it does and which arguments it takes, as a sentence."""
    api_version: int = 1
