"""Incremental detokenization: never half a character, and no text past a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from inferno.text.stops import StopStrings
from inferno.text.tokenizer import Tokenizer


class TextStream:
    """Detokenizes one output incrementally. Any chunking of the ids gives the same text.

    With `continues` the ids follow a prompt, so a SentencePiece tokenizer's first space is kept.
    Without, the whole text equals `Tokenizer.decode` of the ids, except in ill-formed byte-fallback
    runs: a stream has already sent their valid characters, so they are kept.

    The stop string that ends first wins, or the longest of those that end together. The first
    `min_tokens` ids are not searched.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        continues: bool = False,
    ) -> None:
        self._tokenizer = tokenizer
        self._stops = StopStrings.of(tuple(stop)) if stop else None
        self._state = 0
        """Of the search for stop strings."""
        self._unwatched = min_tokens
        self._include_stop, self._skip_special, self._continues = (
            include_stop,
            skip_special_tokens,
            continues,
        )
        # Holds the bytes of an incomplete character; ill-formed ones become U+FFFD.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the text, if any."""

    @property
    def watches(self) -> bool:
        """Whether a stop string may end the text."""
        return self._stops is not None

    def feed(self, token_ids: Iterable[int]) -> str:
        """Return the text that is now certain. Empty once a stop string has ended it."""
        if self._stops is None and self._continues:
            data = self._tokenizer.middle_bytes(token_ids, skip_special=self._skip_special)
            return self._utf8.decode(data)
        sure = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            text = self._utf8.decode(self._bytes(token_id))
            self._unwatched -= 1
            sure.append(self._watch(text) if self._unwatched < 0 else text)
        return "".join(sure)

    def finish(self) -> str:
        """Return the text that was held back, and U+FFFD for a character left incomplete."""
        if self.stopped is not None:
            return ""
        tail = self._utf8.decode(b"", final=True)
        sure = self._watch(tail) if self._unwatched < 0 else tail
        rest, self._held = self._held, ""
        return sure + rest

    def _bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return b""
        if self._continues:
            return self._tokenizer.token_bytes(token_id)
        data = self._tokenizer.first_bytes(token_id)
        self._continues = self._tokenizer.knows(token_id)
        return data

    def _watch(self, text: str) -> str:
        """Return the text that can no longer be part of a stop string."""
        stops, state = self._stops, self._state
        if stops is None:
            return text
        for end, char in enumerate(text, start=1):
            state = stops.follow(state, char)
            if (stop := stops.found[state]) is not None:
                self.stopped = stop
                cut = 0 if self._include_stop else len(stop)
                whole = self._held + text[:end]
                self._held = ""
                return whole[: len(whole) - cut]
        self._state = state
        whole = self._held + text
        keep = stops.length[state]
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]
