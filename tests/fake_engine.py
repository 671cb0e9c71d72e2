"""An engine of a few lines for the tests of what lies above it: it says what a script tells it
to."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import cast

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from inferno.contracts import GrammarSpec
from inferno.errors import EngineDeadError
from inferno.images.mediums import Medium
from inferno.images.pixels import Picture
from inferno.llm.preprocessor import Preprocessor
from inferno.plan import Plan
from inferno.process.client import TokenStream
from inferno.process.health import EngineView, Health
from inferno.process.protocol import Control
from inferno.request.requests import EngineOutput, EngineStats, FinishReason, Logprobs, Request
from inferno.request.sessions import SessionView
from inferno.stores import NoSessions
from inferno.text import ChatTemplate, Tokenizer

END = 256
Script = Callable[[Request], Iterable[int]]
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{% if "
    "add_generation_prompt %}>{% endif %}"
)


def _byte_vocabulary() -> dict[str, int]:
    """Each byte's character in byte-level BPE: its own where it has a visible one."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = itertools.count(256)
    return {chr(b if b in visible else next(others)): b for b in range(256)}


def byte_backend() -> tokenizers.Tokenizer:
    """A token is a byte, by its value; 256 is the end."""
    backend = tokenizers.Tokenizer(models.BPE(vocab=_byte_vocabulary(), merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|end|>"])
    return backend


TOKENIZER = Tokenizer(byte_backend(), eos_token_ids=(END,))


def front(**changes: object) -> Preprocessor:
    fields: dict[str, object] = {
        "tokenizer": TOKENIZER,
        "template": ChatTemplate({"default": TEMPLATE}),
        "max_model_len": 100,
        "vocab_size": 260,
        "eos_token_ids": (END,),
    }
    return Preprocessor(**(fields | changes))  # type: ignore[arg-type]


def says(text: str) -> Script:
    """Every request is answered with `text`."""
    return lambda request: [*TOKENIZER.encode(text), END]


def echoes(request: Request) -> Iterable[int]:
    """Every request is answered with its own prompt."""
    return [*request.token_ids, END]


def forever(request: Request) -> Iterable[int]:
    return itertools.cycle(TOKENIZER.encode("ab"))


class FakeEngine:
    """One token per running request and step; an embedding is of the token ids themselves. `fails`
    is what the next step raises."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._running: dict[str, tuple[Request, Iterable[int], int]] = {}
        self.submitted: list[Request] = []
        self.aborted: list[str] = []
        self.steps = 0
        self.fails: BaseException | None = None
        self.closed = False
        self.sessions = NoSessions()

    def submit(self, request: Request) -> None:
        self.submitted.append(request)
        self._running[request.id] = (request, iter(self._script(request)), 0)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)
        self._running.pop(request_id, None)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def step(self) -> list[EngineOutput]:
        if self.fails is not None:
            raise self.fails
        self.steps += 1
        return [self._next(*self._running[name]) for name in list(self._running)]

    def close(self) -> None:
        self.closed = True

    def _next(self, request: Request, script: Iterable[int], count: int) -> EngineOutput:
        if request.pooling is not None:
            del self._running[request.id]
            vector = tuple(float(sum(request.token_ids[i::8])) for i in range(8))
            return EngineOutput(request.id, None, FinishReason.STOP, embedding=vector)
        params, token_id = request.params, next(iter(script), None)
        if token_id is None:  # it ignores the end token
            del self._running[request.id]
            return EngineOutput(request.id, None, FinishReason.LENGTH)
        finish = stop_id = None
        if token_id in params.stop_token_ids:
            finish, stop_id = FinishReason.STOP, token_id
        elif token_id in request.eos_token_ids:
            finish = FinishReason.STOP
        elif count + 1 == params.max_tokens:
            finish = FinishReason.LENGTH
        if finish is None:
            self._running[request.id] = (request, script, count + 1)
        else:
            del self._running[request.id]
        return EngineOutput(
            request.id,
            token_id,
            finish,
            stop_id,
            logprobs=None if params.logprobs is None else _scored(token_id, params.logprobs),
            prompt_logprobs=(
                None
                if params.prompt_logprobs is None or count
                else (None, *(_scored(i, params.prompt_logprobs) for i in request.token_ids[1:]))
            ),
            num_cached=3 if count == 0 else 0,
        )


def _scored(token_id: int, top: int) -> Logprobs:
    return Logprobs(token_id, -0.5, 2, tuple((i, -0.25 * (i + 1)) for i in range(top)))


class FakeClient:
    """The engine behind streams, as if in another process. `dies()` ends it under its callers."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.alive = self.closed = self.stalled = False
        self.checked: list[GrammarSpec] = []
        self.stats, self.health, self.failed_starts = EngineStats(), Health(), 0
        self.engines: tuple[EngineView, ...] = ()
        self.plan = cast(Plan, SimpleNamespace(model_id="fake", max_model_len=100, sandbox=None))
        self.scratch: str | None = None
        self.asleep, self.paused, self.weight_version = False, False, "0"
        self._streams: dict[str, TokenStream] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.alive = True

    async def revive(self) -> None:
        self.alive = True

    async def close(self) -> None:
        self.alive, self.closed = False, True
        if self._task is not None:
            self._task.cancel()

    async def sessions(
        self, owner: str, name: str | None = None, *, limit: int = 1, ends: bool = False
    ) -> list[SessionView]:
        return []

    async def see(self, data: bytes, param: str, medium: Medium) -> Picture:
        raise AssertionError("the models of these tests read text")

    def dies(self) -> None:
        self.engine._running.clear()
        for stream in self._streams.values():
            stream.fail(EngineDeadError("the engine process ended", "Send the request again."))
        self._streams.clear()

    def abort(self, request_id: str) -> None:
        self.engine.abort(request_id)
        if request_id in self._streams:
            self._give(EngineOutput(request_id, None, FinishReason.ABORT))

    async def check(self, spec: GrammarSpec) -> None:
        self.checked.append(spec)

    async def control(self, control: Control) -> None:
        """Sleep and wake up at once."""
        self.asleep = control.action == "sleep" or (self.asleep and not control.cache)

    def submit(self, request: Request, news: asyncio.Event) -> TokenStream:
        stream = self._streams[request.id] = TokenStream(request.id, news)
        self.engine.submit(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._loop())
        return stream

    async def _loop(self) -> None:
        while self.engine.busy:
            for token in self.engine.step():
                if token.request_id in self._streams:
                    self._give(token)
            await asyncio.sleep(0)

    def _give(self, token: EngineOutput) -> None:
        self._streams[token.request_id].feed(token)
        if token.finish is not None:
            del self._streams[token.request_id]
