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
    """Where the prefilling end listens. `tcp://HOST+HOST:PORT` has the hosts of several machines'
    ranks: a prefilling end listens at its own machine's, and a decoding end tries all."""
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
    """The number of the link's address to ask, from 1: where the first rank has asked. 0, as for
    the first rank: the end that asks chooses."""


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
        bits. Returns the number of the link's address that was asked, from 1; `Mover.poll` names
        the prompt's id once all that will come has come. Returns 0 if none was: then the prompt is
        computed here, at once. `release` ends it, in whatever state it is.

        All ranks but the first ask without tokens, salt and adapter, under the first one's name and
        at the same address. If not all has come to all ranks, they ask again for a prompt with a
        name: at an address that was not asked yet, within the same deadline. What has come stays,
        and `poll` no longer names the id for the earlier ask. 0 then says that the rest is computed
        here."""
        ...

    def take_first_tokens(self) -> Sequence[tuple[str, int]]:
        """Take the prompts' ids and first tokens that the other ends have drawn since. A token
        comes before `Mover.poll` names its prompt, as the last blocks come later."""
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
