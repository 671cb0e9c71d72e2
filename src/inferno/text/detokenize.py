"""Token ids to text while they come: never half a character, and no text past a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from inferno.text.tokenizer import Tokenizer


class _StopString:
    """Finds one string in text that comes character by character (Knuth, Morris and Pratt)."""

    def __init__(self, wanted: str) -> None:
        self.wanted = wanted
        self.matched = 0
        """Length of the longest end of the text that begins `wanted`."""
        self._shorter = [0] * len(wanted)
        """Per position: the next shorter beginning of `wanted` that also ends there."""
        length = 0
        for i in range(1, len(wanted)):
            length = self._advance(length, wanted[i])
            self._shorter[i] = length

    def _advance(self, length: int, char: str) -> int:
        while length and self.wanted[length] != char:
            length = self._shorter[length - 1]
        return length + (self.wanted[length] == char)

    def push(self, char: str) -> bool:
        self.matched = self._advance(self.matched, char)
        return self.matched == len(self.wanted)


class TextStream:
    """One output's text, incrementally. Any grouping of the ids gives the same text.

    With `continues` the ids go on from a prompt: then a SentencePiece tokenizer's first space
    stays. Without, the whole text is `Tokenizer.decode` of the ids; only of ill-formed
    byte-fallback runs it keeps the good characters, which a stream has sent before it can know.

    The stop string that ends first wins, the longest of those that end together. `min_tokens` ids
    pass before any is looked for.
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
        self._stops = [_StopString(s) for s in stop]
        self._unwatched = min_tokens
        self._include_stop, self._skip_special, self._continues = (
            include_stop,
            skip_special_tokens,
            continues,
        )
        # Holds the bytes of an unfinished character; ill-formed ones become U+FFFD.
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the text."""

    def feed(self, token_ids: Iterable[int]) -> str:
        """The text that is certain now. Empty once a stop string has ended it."""
        sure = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            text = self._utf8.decode(self._bytes(token_id))
            self._unwatched -= 1
            sure.append(self._watch(text) if self._stops and self._unwatched < 0 else text)
        return "".join(sure)

    def finish(self) -> str:
        """The rest: what was held back, and U+FFFD for a character that never came whole."""
        if self.stopped is not None:
            return ""
        tail = self._utf8.decode(b"", final=True)
        sure = self._watch(tail) if self._stops and self._unwatched < 0 else tail
        held, self._held = self._held, ""
        return sure + held

    def _bytes(self, token_id: int) -> bytes:
        if self._skip_special and self._tokenizer.is_special(token_id):
            return b""
        if self._continues:
            return self._tokenizer.token_bytes(token_id)
        found = self._tokenizer.first_bytes(token_id)
        self._continues = self._tokenizer.knows(token_id)
        return found

    def _watch(self, text: str) -> str:
        """Pass on what can no longer be part of a stop string."""
        for end, char in enumerate(text, start=1):
            found = [s for s in self._stops if s.push(char)]
            if found:
                self.stopped = max((s.wanted for s in found), key=len)
                cut = 0 if self._include_stop else len(self.stopped)
                whole = self._held + text[:end]
                self._held = ""
                return whole[: len(whole) - cut]
        whole = self._held + text
        keep = max(s.matched for s in self._stops)
        self._held = whole[len(whole) - keep :]
        return whole[: len(whole) - keep]
