"""Token-exact replay: an assistant's turn that comes back gets the tokens that were generated for
it.

A tokenizer often splits a string differently than the model wrote it, and the prefix cache, which
knows tokens, would then miss from that turn on. The string that the model reads stays the same: a
turn is replayed only where its tokens decode to the rendered string, special tokens included.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    from inferno.text import Tokenizer

MAX_BYTES = 16 * 2**20
"""Of all turns that are remembered: four million tokens."""
_MAX_TURNS = 4096
_TAIL = 64
"""Tokens of the prompt, at most, that belong to a turn: the header of the assistant's message."""


@frozen
class Turn:
    """Tokens of a part of a rendered conversation."""

    start: int
    """In characters."""
    end: int
    token_ids: array[int]


class Turns:
    """The turns that were generated, most recently used last. Threads may encode at once."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._turns: OrderedDict[bytes, Turn] = OrderedDict()
        self._ends: Counter[int] = Counter()
        """Number of turns by `end`."""
        self._nbytes, self._max_bytes = 0, max_bytes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._turns)

    def note(
        self,
        tokenizer: Tokenizer,
        text: str,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        salt: str = "",
    ) -> None:
        """Remember an output of the prompt that `text` was tokenized to. `salt` is the prefix
        cache's."""
        output_ids = _without_end(tokenizer, output_ids)
        output, tail = _text(tokenizer, output_ids), _tail(tokenizer, prompt_ids)
        header = _text(tokenizer, tail)
        if not output or header is None or not text.endswith(header):
            return
        start, whole = len(text) - len(header), text + output
        turn = Turn(start, len(whole), array("I", [*tail, *output_ids]))
        [key] = _keys(whole, [turn.end], salt)
        with self._lock:
            self._drop(key)
            self._turns[key] = turn
            self._ends[turn.end] += 1
            self._nbytes += _nbytes(turn)
            while self._nbytes > self._max_bytes or len(self._turns) > _MAX_TURNS:
                self._drop(next(iter(self._turns)))

    def encode(self, tokenizer: Tokenizer, text: str, salt: str = "") -> list[int]:
        """Tokenize a rendered conversation, with known turns as they were generated."""
        turns = self._find(text, salt)
        if not turns:
            return tokenizer.encode(text, add_special_tokens=False)
        ids, spans = tokenizer.encode_spans(text)
        starts, ends = [start for start, _ in spans], [end for _, end in spans]
        replayed: list[int] = []
        done = 0
        for turn in turns:
            first, last = bisect_left(starts, turn.start), bisect_left(starts, turn.end)
            begins = first == 0 if turn.start == 0 else ends[first - 1 : first] == [turn.start]
            if first < done or not begins or ends[last - 1] != turn.end:
                continue  # the tokenizer does not split here
            drawn = turn.token_ids.tolist()
            if _decoded(tokenizer, drawn) == _decoded(tokenizer, ids[first:last]):
                replayed += ids[done:first] + drawn
                done = last
        return replayed + ids[done:]

    def _find(self, text: str, salt: str) -> list[Turn]:
        """Return the turns that end a prefix of `text`, in order."""
        with self._lock:
            ends = sorted(end for end in self._ends if end <= len(text))
            turns = []
            for key in _keys(text, ends, salt):
                if (turn := self._turns.get(key)) is not None:
                    self._turns.move_to_end(key)
                    turns.append(turn)
        return turns

    def _drop(self, key: bytes) -> None:
        turn = self._turns.pop(key, None)
        if turn is None:
            return
        self._nbytes -= _nbytes(turn)
        self._ends[turn.end] -= 1
        if not self._ends[turn.end]:
            del self._ends[turn.end]


def _keys(text: str, ends: Sequence[int], salt: str) -> Iterator[bytes]:
    """Yield the key of each prefix of `text`, in one pass over it. `ends` ascend."""
    digest = hashlib.blake2b(salt.encode(), digest_size=16)
    digest.update(b"\0")
    at = 0
    for end in ends:
        digest.update(text[at:end].encode("utf-8", "surrogatepass"))
        at = end
        yield digest.digest()


def _nbytes(turn: Turn) -> int:
    return len(turn.token_ids) * turn.token_ids.itemsize + 200


def _without_end(tokenizer: Tokenizer, ids: Sequence[int]) -> Sequence[int]:
    """Return an output without its end token, which the template writes by itself."""
    return ids[:-1] if ids and ids[-1] in tokenizer.eos_token_ids else ids


def _tail(tokenizer: Tokenizer, ids: Sequence[int]) -> Sequence[int]:
    """Return the prompt's tokens after its last special one. A tokenizer always splits there; later
    it may split differently, once the turn's text follows."""
    for count in range(min(len(ids), _TAIL)):
        if tokenizer.is_special(ids[-1 - count]):
            return ids[len(ids) - count :]
    return ids[len(ids) :]


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str | None:
    """Return the string of these tokens in mid-string; None if it begins or ends inside of a
    character."""
    try:
        return b"".join(map(tokenizer.token_bytes, ids)).decode()
    except UnicodeDecodeError:
        return None


def _decoded(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    return b"".join(map(tokenizer.token_bytes, ids))
