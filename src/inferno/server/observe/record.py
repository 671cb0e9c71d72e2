"""The record of one HTTP request: feeds the access log, the key's limits, traces, and the lease of
its model."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from attrs import define, field
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from inferno.server.access.limits import Key

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_TRACE = (b"traceparent", b"tracestate")
_STATE = "inferno_record"
"""Its name in the scope's state."""


@define(eq=False)
class Record:
    """One HTTP request. Whatever handles the request adds to it."""

    id: str
    """The client's, from the header `X-Request-Id` or the body's `request_id`, if it is safe for a
    header and a log line; else a new one."""
    method: str
    path: str
    client: str = ""
    """Its client's address; empty on a Unix socket."""
    started: float = field(factory=time.monotonic)
    key: Key | None = None
    """The API key, once it is checked; None without keys."""
    model: str | None = None
    """The name of the model that answers."""
    status: int | None = None
    streamed: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_token: float | None = None
    """Seconds from the request to its first token."""
    finish_reasons: list[str] = field(factory=list)
    keeps_prompts: bool = False
    """Whether prompts are to be logged."""
    prompts: list[str] = field(factory=list)
    """The prompts as strings, if they are to be logged."""
    trace_headers: Mapping[str, str] = field(factory=dict)
    """The client's trace, if it has one."""
    error: str | None = None
    """The code of an error answer; its text may quote the request."""
    attributes: dict[str, Any] = field(factory=dict)
    """What only traces have."""
    pinging: Callable[[float], AbstractAsyncContextManager[None]] = lambda _: nullcontext()
    """Context that starts a streamed response and keeps it alive by a comment at regular
    intervals."""
    at_end: list[Callable[[], object]] = field(factory=list)
    """Called in reverse order when the response has ended, for any reason."""
    headers: Callable[[], dict[str, str]] = dict
    """Headers of the response."""

    @property
    def seconds(self) -> float:
        """Seconds since the request began."""
        return time.monotonic() - self.started

    @property
    def owner(self) -> str:
        """The owner of what the request stores: its key's digest, so that a renamed key keeps what
        it has; empty without keys."""
        return self.key.digest.hex() if self.key is not None else ""

    def cache_salt(self, salt: str) -> str:
        """Return the salt of what is computed for the request, if its own is `salt`."""
        return salt if self.key is None else self.key.cache_salt(salt)

    @property
    def key_name(self) -> str:
        """The key's name for logs and metrics; empty without keys."""
        return self.key.name if self.key is not None else ""

    def prompt(self, tokens: int) -> None:
        """Count prompt tokens before they are computed. Raises LimitError if the key has too few
        left."""
        if self.key is not None:
            self.key.account.take_prompt(tokens)
        self.prompt_tokens += tokens

    def generated(self, tokens: int) -> None:
        """Count generated tokens."""
        if self.first_token is None:
            self.first_token = self.seconds
        if self.key is not None:
            self.key.account.take_generated(tokens)
        self.completion_tokens += tokens

    def cached(self, tokens: int) -> None:
        """Count prompt tokens that were found in the cache."""
        if self.key is not None:
            self.key.account.usage.cached_tokens += tokens
        self.cached_tokens += tokens

    def priority(self, wanted: int) -> int:
        """Return the request's priority, no better than its key may have. Lower runs first."""
        best = self.key.priority if self.key is not None else None
        return wanted if best is None else max(wanted, best)

    def end(self) -> None:
        """Release what the request holds."""
        while self.at_end:
            self.at_end.pop()()


_current: ContextVar[Record | None] = ContextVar("inferno_record", default=None)


def current() -> Record | None:
    """The record of the HTTP request that this task handles; None outside of one."""
    return _current.get()


def record_of(scope: Scope) -> Record | None:
    """The record of a connection; None if its app keeps none."""
    record: Record | None = scope.get("state", {}).get(_STATE)
    return record


@asynccontextmanager
async def in_record(
    request: Record | None, ended: Callable[[Record], object]
) -> AsyncIterator[None]:
    """Give work that outlives its request a record: it has the request's key, and counts as running
    for it. To be entered in the work's own task."""
    if request is None:
        yield
        return
    record = Record(request.id, request.method, request.path, key=request.key, status=200)
    record.keeps_prompts, record.trace_headers = request.keeps_prompts, request.trace_headers
    record.client = request.client
    if record.key is not None:
        record.key.account.running += 1
        record.at_end.append(record.key.account.leave)
    _current.set(record)
    try:
        yield
    finally:
        try:
            record.end()
        finally:
            ended(record)


class Recorded:
    """ASGI app that gives each request of `app` a record, and reports it to `ended` when the
    response has been sent, or the client is gone."""

    def __init__(
        self, app: ASGIApp, ended: Callable[[Record], object], *, prompts: bool = False
    ) -> None:
        """`prompts` keeps the prompts' strings in the records."""
        self._app, self._ended, self._prompts = app, ended, prompts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        sent = next((v for k, v in scope["headers"] if k == b"x-request-id"), b"")
        header = safe_id(sent.decode("latin-1"))
        record = Record(header or uuid.uuid4().hex, scope["method"], scope["path"])
        record.client = (scope.get("client") or ("",))[0] or ""
        record.keeps_prompts = self._prompts
        record.trace_headers = {
            name.decode(): value.decode("latin-1")
            for name, value in scope["headers"]
            if name in _TRACE
        }
        state[_STATE] = record

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                record.id = header or safe_id(state.get("request_id")) or record.id
                headers = {"x-request-id": record.id, **record.headers()}
                message["headers"] = [
                    *message.get("headers", ()),
                    *((name.encode(), value.encode()) for name, value in headers.items()),
                ]
            await send(message)

        token = _current.set(record)
        try:
            await self._app(scope, receive, stamped)
        finally:
            _current.reset(token)
            try:
                record.end()
            finally:
                self._ended(record)


def request_id_of(request: Request[Any, Any, Any]) -> str:
    """Return the value that the header x-request-id of the request's answer will have."""
    record, state = record_of(request.scope), request.scope.get("state", {})
    id = uuid.uuid4().hex if record is None else record.id
    if request.headers.get("x-request-id") == id:
        return id
    return safe_id(state.get("request_id")) or id


def safe_id(request_id: str | None) -> str | None:
    """Return an id that is safe for a header and a log line; None if it is not."""
    return request_id if request_id and _REQUEST_ID.fullmatch(request_id) else None
