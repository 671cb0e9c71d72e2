"""Links between instances, where prefill and decode run apart: one computes prompts, and the other
pulls the blocks of its cache.

A `BlockStore` with `links` is one end of such a link. Its index is a `LinkIndex` too: the decoding
end asks for a prompt, and the prefilling end has it computed as an ordinary request of one token.

Of two instances with several ranks, each rank of the decoding one has an end that is linked to the
rank of the same number, and pulls its share of the blocks from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from attrs import frozen

MOST_DRAWING = 1 << 20
"""Bytes of `LinkedPrompt.drawing`: it may name 300 000 tokens."""


@frozen(kw_only=True)
class Link:
    """One end of a link, and where the other is."""

    role: Literal["prefill", "decode"]
    """Whether this end computes prompts or asks for them."""
    url: str
    """Where the prefilling end listens. `tcp://HOST+HOST:PORT` has several hosts where ranks are on
    several machines: it listens at that which is its own, and the decoding end tries all."""
    others: tuple[str, ...] = ()
    """Where further prefilling ends listen, for a decoding end, which chooses one of all for each
    prompt."""
    token_file: Path | None = None
    """File with the secret that both ends know; None: there is none."""
    min_tokens: int = 128
    """What the engine goes by: a prompt is sent out if it has at least this many tokens, and either
    nothing of it is cached or at least `min_uncached` tokens are not."""
    min_uncached: int = 1024
    """See there."""
    timeout: float = 120.0
    """Seconds after which a prompt that was sent out is computed here."""
    buffer: int = 1 << 30
    """Bytes of blocks on their way, at most."""


@frozen(kw_only=True)
class LinkedPrompt:
    """A prompt that one end computes for the other: all that its blocks' keys are made of."""

    id: str
    """Its name in the end that has it: a request's, or one that the prefilling end made up."""
    token_ids: tuple[int, ...]
    """All its tokens."""
    salt: str = ""
    """Its `cache_salt`."""
    adapter: str = ""
    """Digest of its adapter; empty: it has none."""
    drawing: bytes = b""
    """How its first token is drawn, as the engines of both ends understand it, `MOST_DRAWING`
    bytes at most; empty: the decoding end draws it itself."""
    name: bytes = b""
    """At most 16 random bytes, under which all ranks of the decoding end ask for it; empty: there
    is one. Prefilling ends that were asked under one name give it the same `id`."""
    instance: int = 0
    """Which of the link's addresses is asked, from 1: all ranks but the first ask where that one
    does. 0: the end that asks chooses."""


@runtime_checkable
class LinkIndex(Protocol):
    """What the index of a store that links two instances answers beside `StoreIndex`. Used by the
    engine's thread only.

    In the decoding end `groups_of` and `near` tell what has come of prompts that were asked for. In
    the prefilling end `groups_of` tells of a block what need not be saved: all but what a prompt in
    progress was asked for and lacks.
    """

    # --- the decoding end -------------------------------------------------------------------------

    def ask(self, prompt: LinkedPrompt, keys: Sequence[bytes], wanted: Sequence[int]) -> int:
        """Ask for blocks of a prompt: of each, by its key, the parts of these groups, as a set of
        bits. Returns which of the link's addresses was asked, from 1; 0 if the prompt is to be
        computed here, at once. Then `Mover.poll` names its id once all that will come has come;
        `release` ends it, in whatever state it is.

        All ranks but the first ask without tokens, salt and adapter, under the first one's name and
        where that one does. A prompt with a name is asked for again if it ended for the ranks with
        less than all: at an address that was not asked yet, within the same time. What has come
        stays, and `poll` does not name the id for the former ask any more. 0 then says that the
        rest is computed here."""
        ...

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        """Take the first tokens of prompts, by their ids, that the other ends have drawn since:
        before `Mover.poll` names the prompt, as the last blocks come later."""
        ...

    # --- the prefilling end -----------------------------------------------------------------------

    @property
    def is_asked(self) -> bool:
        """Whether `take_asked` has something to return."""
        ...

    def take_asked(self) -> tuple[Sequence[LinkedPrompt], Sequence[str]]:
        """Take the prompts that the other ends have asked for since, and the ids of those that they
        no longer want."""
        ...

    def begin(self, prompt_id: str, keys: Sequence[bytes]) -> None:
        """Note the keys of a prompt's full blocks. It is about to be computed."""
        ...

    def end(self, prompt_id: str, error: str = "", token_id: int | None = None) -> None:
        """Note that a prompt has been computed, and its blocks are saved or noted; or why it could
        not be. `token_id` is its first token, if it was to be drawn here."""
        ...
