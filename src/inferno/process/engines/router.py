"""Chooses which of several engines answers a request: the one with the least work, counting what
it has to do already and what it would have to compute of the prompt; and a part of what it was
given lately, so that idle engines come by as many conversations as the others.

Work is counted in tokens of prompts. What an engine has cached is not asked for: it is the prompts
that it was given and its answers to them, as many of those used last as its cache holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from math import exp

from attrs import define, field

from inferno.request.requests import Request
from inferno.stores.keys import extend_keys

CHUNK = 64
"""Minimum number of tokens per key: with fewer, computing the keys costs more than is saved."""
_USUAL_ANSWER = 256
"""Tokens of an answer, until some have ended."""
_LEAST_LEFT = 16
"""Tokens that an answer is expected to have yet, however long it is already."""
_DECAY = 0.95
"""What earlier answers count for in the mean length when another ends."""
_LATELY, _GIVEN = 20_000, 0.3
"""Tokens of work of each engine after which what it was given before has faded to a third, and what
one of those counts for beside a token of work that is still to be done. Without it, the busiest of
four engines that wait half of the time had up to 1.18 times the mean of 480 requests, with it 1.08;
0.88 of the prompts' tokens are found instead of 0.90."""


@define(eq=False)
class Placed:
    """A request that an engine has."""

    request: Request
    engine: int
    keys: list[bytes]
    """Of its full chunks."""
    prompt: int
    """Tokens of its prompt that are to be computed; 0 once it has an answer's token."""
    left: int
    """Tokens that its answer is expected to have yet."""
    answer: list[int] = field(factory=list)


@define
class _Load:
    """What an engine has to do, and what it has cached."""

    prompts: int = 0
    answers: int = 0
    given: float = 0.0
    """What it was given lately."""
    keys: OrderedDict[bytes, None] = field(factory=OrderedDict)
    """Used last at the end."""


class Router:
    """Keeps account of the requests of several engines."""

    def __init__(self, count: int, *, block_size: int, num_blocks: int) -> None:
        """`num_blocks` is what an engine's cache holds; 0: nothing that another request finds."""
        blocks = -(-CHUNK // block_size)
        self._size, self._most = block_size * blocks, num_blocks // blocks
        self._loads = [_Load() for _ in range(count)]
        self._mean_answer = float(_USUAL_ANSWER)

    def place(self, request: Request, able: Sequence[int], answer_cost: float = 1.0) -> Placed:
        """Give a request to one of the `able` engines. `answer_cost` is what a token of an answer
        takes beside those of others, in tokens of a prompt."""
        keys = self._keys(request, request.token_ids)
        hits = [self._found(self._loads[i], keys) * self._size for i in able]
        total = len(request.token_ids)
        loads = [self._loads[i] for i in able]
        costs = [
            load.prompts + answer_cost * load.answers + total - hit + _GIVEN * load.given
            for load, hit in zip(loads, hits, strict=True)
        ]
        best = min(range(len(able)), key=costs.__getitem__)
        placed = Placed(request, able[best], keys, total - hits[best], self._expected(request))
        load = loads[best]
        load.prompts += placed.prompt
        load.answers += placed.left
        self._fade(load, placed.prompt + answer_cost * placed.left)
        self._remember(load, keys)
        return placed

    def took(self, placed: Placed, token_id: int | None) -> None:
        """Take account of a token of an answer."""
        load = self._loads[placed.engine]
        load.prompts -= placed.prompt
        placed.prompt = 0
        if token_id is not None:
            placed.answer.append(token_id)
            if placed.left > _LEAST_LEFT:
                placed.left -= 1
                load.answers -= 1

    def ended(self, placed: Placed, *, complete: bool = True) -> None:
        """Take a request off its engine's account. `complete`: it has ended by itself."""
        load = self._loads[placed.engine]
        load.prompts -= placed.prompt
        load.answers -= placed.left
        placed.prompt = placed.left = 0
        if not complete or placed.request.pooling is not None:
            return
        self._mean_answer += (1 - _DECAY) * (len(placed.answer) - self._mean_answer)
        computed = [*placed.request.token_ids, *placed.answer[:-1]]
        self._remember(load, self._keys(placed.request, computed, placed.keys))

    def forget(self, engine: int) -> None:
        """Forget what an engine has cached: it was lost."""
        self._loads[engine].keys.clear()

    def _expected(self, request: Request) -> int:
        """Return how long an answer will be."""
        if request.pooling is not None:
            return 0
        most = request.params.max_tokens
        mean = round(self._mean_answer)
        return mean if most is None else min(mean, most)

    def _keys(
        self, request: Request, token_ids: Sequence[int], keys: Sequence[bytes] = ()
    ) -> list[bytes]:
        extended = list(keys)
        if self._most:
            adapter, salt = request.content
            extend_keys(extended, token_ids, self._size, salt, adapter, request.images)
        return extended

    def _fade(self, chosen: _Load, work: float) -> None:
        """Note what an engine was given. It counts for less, the more all were given since."""
        rest = exp(-work / len(self._loads) / _LATELY)
        for load in self._loads:
            load.given *= rest
        chosen.given += work

    def _found(self, load: _Load, keys: Sequence[bytes]) -> int:
        """Return how many leading chunks an engine has."""
        for count, key in enumerate(keys):
            if key not in load.keys:
                return count
        return len(keys)

    def _remember(self, load: _Load, keys: Sequence[bytes]) -> None:
        for key in reversed(keys):  # the ends of prompts are forgotten before their beginnings
            load.keys[key] = None
            load.keys.move_to_end(key)
        while len(load.keys) > self._most:
            load.keys.popitem(last=False)
