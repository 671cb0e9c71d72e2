"""Runs a file of requests through an app in this process, in the format of OpenAI's Batch API."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from attrs import define, field, frozen
from litestar.types import ASGIApp

from inferno.errors import OptionError, WriteError

URLS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/score",
)
"""Endpoints that a line may name."""
NO_STATE: Mapping[str, Any] = {}


@frozen
class Line:
    """One request of a batch."""

    number: int
    """Of its line in the file, from 1."""
    custom_id: str | None
    url: str = ""
    body: bytes = b""
    problem: str = ""
    """Why it cannot be sent, if so."""


@define
class Done:
    """What an output file has."""

    ids: set[str] = field(factory=set)
    nameless: int = 0
    """Lines about requests without an id: these follow the input's order."""


@define
class Summary:
    """The outcome of a batch."""

    answered: int = 0
    failed: int = 0
    skipped: int = 0
    """Lines whose answers the output already had."""
    prompt_tokens: int = 0
    completion_tokens: int = 0

    @property
    def done(self) -> int:
        return self.answered + self.failed + self.skipped

    def count(self, answer: Answer) -> None:
        if answer.failed:
            self.failed += 1
        else:
            self.answered += 1
        self.prompt_tokens += answer.prompt_tokens
        self.completion_tokens += answer.completion_tokens


def read_lines(file: Iterable[bytes], done: Done) -> Iterator[Line | None]:
    """Yield the requests of a batch file; None for those that are done."""
    seen: set[str] = set()
    nameless = 0
    for number, raw in enumerate(file, start=1):
        if not raw.strip():
            continue
        line = _line(number, raw)
        if line.custom_id is None:
            nameless += 1
            yield line if nameless > done.nameless else None
        elif line.custom_id in done.ids:
            yield None
        elif line.custom_id in seen:
            problem = "its custom_id is that of an earlier line"
            yield Line(number, line.custom_id, problem=problem)
        else:
            seen.add(line.custom_id)
            yield line


def _line(number: int, raw: bytes) -> Line:
    try:
        request = msgspec.json.decode(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return Line(number, None, problem=f"it is not valid JSON: {error}")
    if not isinstance(request, dict):
        return Line(number, None, problem="it is not a JSON object")
    custom_id, url, body = (request.get(name) for name in ("custom_id", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        return Line(number, None, problem="it has no custom_id, a string")
    problem = ""
    if request.get("method", "POST") != "POST":
        problem = "its method is not POST"
    elif url not in URLS:
        problem = f"its url is not one of {', '.join(URLS)}"
    elif not isinstance(body, dict):
        problem = "its body is not an object"
    elif body.get("stream"):
        problem = "its body asks for a stream: leave stream out"
    elif body.get("background"):
        problem = "its body asks for background, which a batch is: leave it out"
    if problem:
        return Line(number, custom_id, problem=problem)
    return Line(number, custom_id, str(url), msgspec.json.encode(body))


def resume(output: Path) -> Done:
    """Return what an output file has answers for, and cut off an incomplete last line. Creates the
    file if there is none. Raises WriteError if it cannot be written, OptionError if it is another
    kind of file."""
    done = Done()
    try:
        output.open("ab").close()
    except OSError as error:
        raise _unwritable(str(output), error) from error
    complete = 0
    with output.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            if not raw.endswith(b"\n"):
                break
            complete += len(raw)
            try:
                custom_id = json.loads(raw)["custom_id"]
            except (ValueError, TypeError, KeyError) as error:
                raise OptionError(
                    f"line {number} of {output} is not the answer to a request",
                    "Name another file for the output.",
                ) from error
            if custom_id is None:
                done.nameless += 1
            else:
                done.ids.add(custom_id)
    with output.open("r+b") as file:
        file.truncate(complete)
    return done


def _unwritable(path: str, error: OSError) -> WriteError:
    return WriteError(
        f"{path} cannot be written: {error.strerror or error}",
        "Make room on its disk, or name another file. The same command continues.",
    )


async def run(
    app: ASGIApp,
    lines: Iterable[Line | None],
    output: BinaryIO,
    summary: Summary,
    *,
    concurrency: int,
    progress: Callable[[Summary], object] = lambda summary: None,
) -> None:
    """Send the requests, at most `concurrency` at once, and write each answer when it is complete.
    Counts them in `summary`, and calls `progress` after each. Raises WriteError if the output
    cannot be written; it is then closed."""
    waiting = iter(lines)

    async def work() -> None:
        for line in waiting:
            if line is None:
                summary.skipped += 1
            else:
                reply = await answer(app, line)
                try:
                    output.write(reply.content + b"\n")
                    output.flush()
                except OSError as error:
                    with contextlib.suppress(OSError):
                        output.close()  # tries to write once more
                    raise _unwritable(output.name, error) from error
                summary.count(reply)
            progress(summary)

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(work())


@frozen
class Answer:
    """What became of one request."""

    content: bytes
    """A line of the output, without its end."""
    failed: bool
    prompt_tokens: int = 0
    completion_tokens: int = 0
    retry_seconds: float | None = None
    """When the request may succeed if it is sent again; None if there is no sign that it will."""


async def answer(app: ASGIApp, line: Line, state: Mapping[str, Any] = NO_STATE) -> Answer:
    """Send a request to an app in this process. `state` is the connection's."""
    id = f"batch_req_{uuid.uuid4().hex}"
    response: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    tokens, retry = (0, 0), None
    if line.problem:
        message = f"line {line.number}: {line.problem}"
        error = {"code": "invalid_request", "message": message}
    else:
        status, body, headers = await post(app, line.url, line.body, state)
        request_id = headers.get("x-request-id", "")
        response = {"status_code": status, "request_id": request_id, "body": body}
        if status != 200:
            problem = body.get("error") or {}
            error = {"code": problem.get("code") or str(status), "message": problem.get("message")}
            if headers.get("x-should-retry") == "true":
                retry = float(headers.get("retry-after", 1))
        elif isinstance(usage := body.get("usage"), dict):
            tokens = (
                _tokens(usage, "prompt_tokens", "input_tokens"),
                _tokens(usage, "completion_tokens", "output_tokens"),
            )
    content = {"id": id, "custom_id": line.custom_id, "response": response, "error": error}
    return Answer(msgspec.json.encode(content), error is not None, *tokens, retry)


def _tokens(usage: dict[str, Any], *names: str) -> int:
    return next((int(usage[name]) for name in names if name in usage), 0)


async def post(
    app: ASGIApp, path: str, body: bytes, state: Mapping[str, Any] = NO_STATE
) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Send a request to an app in this process. Returns the status, the body and the headers."""
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    scope: Any = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": dict(state),
    }
    sent = False
    status, answer_headers, parts = 500, dict[str, str](), list[bytes]()

    async def receive() -> Any:
        nonlocal sent
        if sent:
            await asyncio.Event().wait()  # the client stays until it has its answer
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
            for name, value in message.get("headers", ()):
                answer_headers[name.decode("latin-1").lower()] = value.decode("latin-1")
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, msgspec.json.decode(b"".join(parts)), answer_headers


@contextlib.asynccontextmanager
async def started(app: Any) -> AsyncIterator[None]:
    """Run a Litestar app's lifespan. Task groups wrap an error of the body: it is raised alone."""
    try:
        async with app.lifespan():
            yield
    except ExceptionGroup as failed:
        error: Exception = failed
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from None
