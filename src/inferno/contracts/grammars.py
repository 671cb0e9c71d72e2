"""Grammars: what an output must match, and the plugins that compile it to masks of tokens.

A request carries a `GrammarSpec`, a plain value. The engine process compiles it with a provider and
gets a `Matcher`, which follows the output token by token.

Suffixes: M masks, W words of 32 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.request.structured_outputs import GrammarSpec


class Matcher(Protocol):
    """Follows one output. Calls for one matcher are never concurrent."""

    @property
    def is_done(self) -> bool:
        """Whether nothing can follow, except an end token."""
        ...

    @property
    def error(self) -> str:
        """Why the matcher gave up, such as a limit that was exceeded; empty if it did not. Then its
        request ends with this error."""
        ...

    def accept(self, token_id: int) -> bool:
        """Add a token to the output. Returns False if it is not allowed."""
        ...

    def count_valid(self, token_ids: Sequence[int]) -> int:
        """Return how many leading ones of these tokens may follow. Changes nothing. Draws
        ask for the model's best tokens one by one, or for the one drawn without a mask, and for a
        mask only if none of them may follow: where one may, the mask allows just those that may,
        but where text is forced, perhaps `forced`'s first alone."""
        ...

    def forced(self) -> Sequence[int]:
        """Return the tokens of the only text that can follow, if they are certain. Changes
        nothing."""
        ...


class MaskRequest(NamedTuple):
    """Asks for the masks of one matcher's next positions."""

    matcher: Matcher
    drafts: Sequence[int]
    """Draft tokens, which `count_valid` allows: there is a mask for the next token, and one after
    each draft."""
    index: int  # type: ignore[assignment]  # tuple.index is not needed here
    """Index in M of the first one's mask."""


class GrammarCompiler(Protocol):
    """Compiles grammars for one vocabulary."""

    def compile(self, spec: GrammarSpec) -> Matcher:
        """Return a matcher at the begin of the output. May be called in several threads. Raises
        GrammarError, also for a grammar that exceeds the provider's limits."""
        ...

    def fill(self, requests: Sequence[MaskRequest], masks_MW: Any) -> None:
        """Write masks into a numpy array of int32, all zero: bit i of word w allows token 32 w + i.
        An end token is allowed where the output may end. Runs beside the model's step, so it should
        release the interpreter's lock; or after it, for a draw whose first tokens may not
        follow. Leaves the matchers as they were. One mask without drafts is computed in the calling
        thread, whose processor time its request pays for."""
        ...


@frozen(kw_only=True, eq=False)
class Vocabulary:
    """What a compiler knows of a tokenizer."""

    tokens: Sequence[bytes]
    """The bytes of each token id, empty for ids without a token. Those of a special token are its
    name, as `<|im_end|>`."""
    special: frozenset[int]
    """Ids of special tokens, which are not text."""
    end: tuple[int, ...]
    """Ids of the model's end tokens."""
    encode: Callable[[str], Sequence[int]]
    """Tokenizes a string, without adding special tokens."""


def _kinds(names: Iterable[str]) -> frozenset[str]:
    return frozenset(names)


def _accepts(kind: str) -> str | None:
    return None


@frozen(kw_only=True)
class GrammarProvider:
    """A plugin's compiler of grammars."""

    name: str
    kinds: frozenset[str] = field(converter=_kinds)
    """The kinds of specs that it compiles (`GrammarKind`)."""
    build: Callable[[Vocabulary], GrammarCompiler] = field(converter=lazy.function)
    """Called when the first constrained request comes, once per process."""
    refuses: Callable[[str], str | None] = field(default=_accepts, converter=lazy.function)
    """refuses(kind) -> why it cannot compile this kind here, or None. Imports no torch."""
    priority: int = 0
    api_version: int = 1
