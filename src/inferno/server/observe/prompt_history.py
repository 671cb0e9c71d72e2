"""The last prompts, to explain how much of one the prefix cache held, and why not more."""

from __future__ import annotations

import re
import time
from array import array
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, field

from inferno.server.chat.rendered import Mark, Rendered

if TYPE_CHECKING:
    from inferno.text import Tokenizer

LIMIT = 64
"""Prompts that are remembered for each model, unless told otherwise."""
MAX_BYTES = 64 * 2**20
_AROUND = 12
"""Tokens shown before and after the first that differs."""


@define(eq=False)
class Seen:
    """One request, as the engine was given it."""

    id: str
    """Of the answer, without its prefix."""
    request_id: str
    """The header x-request-id."""
    owner: str
    """Only requests of the same owner may see it."""
    salt: str
    prompt_len: int
    token_ids: array[int]
    """The prompt, and once it has ended the first output."""
    rendered: Rendered | None = None
    num_cached: int | None = None
    """None until its first token."""
    num_host: int = 0
    """Those of them that a store loaded from host memory."""
    num_disk: int = 0
    """Those that it loaded from disk."""
    num_remote: int = 0
    """Those that came from another instance."""
    at: float = field(factory=time.time)

    @property
    def nbytes(self) -> int:
        text = len(self.rendered.text) if self.rendered is not None else 0
        return len(self.token_ids) * self.token_ids.itemsize + text + 500


class History:
    """The last requests of one model, oldest first."""

    def __init__(self, limit: int = LIMIT, max_bytes: int = MAX_BYTES) -> None:
        self.limit, self._max_bytes = limit, max_bytes
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._nbytes = 0

    def add(self, seen: Seen) -> None:
        if self.limit:
            self._seen[seen.id] = seen
            self._nbytes += seen.nbytes
            self._bound()

    def ended(self, seen: Seen, output_ids: Sequence[int]) -> None:
        """Add a request's output, which the next prompt of its conversation begins with."""
        if seen.id in self._seen:
            before = seen.nbytes
            seen.token_ids.extend(output_ids)
            self._nbytes += seen.nbytes - before
            self._bound()

    def find(self, name: str, owner: str) -> Seen | None:
        """Return the owner's request with that answer id, with or without its prefix, or with that
        x-request-id."""
        theirs = [seen for seen in reversed(self._seen.values()) if seen.owner == owner]
        id = re.split(r"[-_]", name)[-1]
        return next((s for s in theirs if id == s.id or name == s.request_id), None)

    def before(self, seen: Seen) -> list[Seen]:
        """Return the owner's earlier requests."""
        theirs = [other for other in self._seen.values() if other.owner == seen.owner]
        return theirs[: theirs.index(seen)] if seen in theirs else []

    def _bound(self) -> None:
        while len(self._seen) > self.limit or (
            self._nbytes > self._max_bytes and len(self._seen) > 1
        ):
            _, old = self._seen.popitem(last=False)
            self._nbytes -= old.nbytes


def explain(
    seen: Seen, earlier: Sequence[Seen], tokenizer: Tokenizer | None, block_size: int
) -> dict[str, Any]:
    """Compare a prompt with the earlier one that shares the longest prefix. May take long, for it
    decodes the prompt: to be called in a thread. The output of a request may grow meanwhile."""
    shared = [(_common(seen, other), other.at, other) for other in earlier]
    common, _, closest = max(shared, key=lambda entry: entry[:2], default=(0, 0.0, None))
    if common == 0:
        closest = None
    body: dict[str, Any] = {
        "request": seen.id,
        "prompt_tokens": seen.prompt_len,
        "cached_tokens": seen.num_cached,
        **_tiers(seen),
        "block_size": block_size,
        "compared": len(earlier),
        "reason": _reason(seen, closest, common, block_size, len(earlier)) + _came_from(seen),
        "closest": None,
        "first_difference": None,
    }
    if closest is not None:
        body["closest"] = {
            "request": closest.id,
            "seconds_before": round(seen.at - closest.at, 3),
            "prompt_tokens": closest.prompt_len,
            "common_tokens": common,
        }
        if common < min(seen.prompt_len, len(closest.token_ids)):
            body["first_difference"] = {
                "position": common,
                "here": _place(seen, common, tokenizer),
                "before": _place(closest, common, tokenizer),
            }
    return body


def _tiers(seen: Seen) -> dict[str, dict[str, int]]:
    """Return where cached tokens came from, if a store had some, as `usage` does."""
    stored = seen.num_host + seen.num_disk + seen.num_remote
    if not stored:
        return {}
    memory = (seen.num_cached or 0) - stored
    tiers = {"memory": memory, "host": seen.num_host, "disk": seen.num_disk}
    if seen.num_remote:
        tiers["remote"] = seen.num_remote
    return {"cached_tokens_details": tiers}


def _came_from(seen: Seen) -> str:
    named = [
        (seen.num_host, "host memory"),
        (seen.num_disk, "disk"),
        (seen.num_remote, "another instance"),
    ]
    *others, last = [f"{count} from {tier}" for count, tier in named if count] or [""]
    came = f"{', '.join(others)} and {last}" if others else last
    return f" Of the cached tokens, {came} were loaded." if came else ""


def _common(seen: Seen, other: Seen) -> int:
    """Return how many tokens of the prompt the other request begins with."""
    # Slices and not views: an array cannot grow while a view of it exists.
    ours, theirs = seen.token_ids, other.token_ids
    low, high = 0, min(seen.prompt_len, len(theirs))
    while low < high:  # comparing ranges of memory is faster than tokens one by one
        middle = (low + high + 1) // 2
        if ours[low:middle] == theirs[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _reason(seen: Seen, closest: Seen | None, common: int, block_size: int, compared: int) -> str:
    if seen.num_cached is None:
        return "The request has no token yet, or was aborted before its first one."
    full = min(common, seen.prompt_len - 1) // block_size * block_size
    if closest is None or not full:
        others = f" {seen.num_cached} tokens were cached by others." if seen.num_cached else ""
        return (
            f"None of the {compared} earlier requests that are remembered begins with the same "
            f"{block_size} tokens.{others}"
        )
    if closest.salt != seen.salt:
        return "The closest earlier request has another cache_salt."
    if seen.num_cached < full:
        return (
            f"{full - seen.num_cached} more tokens are those of the earlier request, but were not "
            "in any tier of the cache: their blocks were evicted, or not computed yet."
        )
    if common >= min(seen.prompt_len, len(closest.token_ids)):
        return "All that the earlier request has in common was cached, in whole blocks."
    return "All before the first different token was cached, in whole blocks."


def _place(seen: Seen, position: int, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Describe a position of a request: its token, the string around it, and the message."""
    ids = seen.token_ids
    place: dict[str, Any] = {"token_id": ids[position]}
    if position >= seen.prompt_len:
        place["message"] = "the output"
    if tokenizer is None:
        return place
    begin = max(0, position - _AROUND)
    place["token"] = tokenizer.token_text(ids[position])
    place["context"] = {
        "before": _string(tokenizer, ids[begin:position]),
        "after": _string(tokenizer, ids[position : position + _AROUND]),
    }
    if seen.rendered is not None and position < seen.prompt_len:
        at = len(_string(tokenizer, ids[:position]))
        mark = seen.rendered.message_at(at)
        place["message"] = _named(mark)
    return place


def _named(mark: Mark | None) -> str:
    return "after the last message" if mark is None else f"messages[{mark.index}] ({mark.role})"


def _string(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace")
