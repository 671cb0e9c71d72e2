"""Runs batches: of each owner one after another, those of several owners in turns, request by
request. A batch is stored after each answer, so that a server that starts again goes on where the
one before it stopped."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from attrs import define, evolve, field
from litestar.types import ASGIApp

from inferno.errors import InfernoError, QueueFullError, RequestError, StoreError
from inferno.server.access.keys import INSIDE_KEY, Keys
from inferno.server.access.limits import Key
from inferno.server.batches.objects import ENDED, Body, enter, file_of, problem
from inferno.server.batches.offline import Answer, Done, Line, answer, read_lines
from inferno.server.responses.store import Store

log = logging.getLogger("inferno.server")

CONCURRENCY = 32
"""Requests of all batches in progress at once."""
PRIORITY = 10
"""Of a batch's requests, unless they name one: those of clients that wait run first."""
MAX_REQUESTS = 50_000
"""Requests of a batch."""
MAX_UNFINISHED = 64
"""Batches of one owner that have not ended."""
_MAX_PROBLEMS = 100
RETRY = 5.0
"""Seconds before the end of a batch is stored again, where the disk was full."""
_LONGEST_PAUSE = 30.0
"""Seconds before a request that was refused for now is sent again."""


class BatchError(Exception):
    """Why a batch fails."""

    def __init__(self, *problems: Body) -> None:
        super().__init__(problems[0]["message"])
        self.problems = problems


@define(eq=False)
class _Run:
    """A batch that is run."""

    owner: str
    body: Body
    key: Key | None = None
    task: asyncio.Task[None] | None = None
    saving: asyncio.Lock = field(factory=asyncio.Lock)
    turn: asyncio.Lock = field(factory=asyncio.Lock)
    """Held by the one request that waits for a slot: so batches take turns."""
    is_cancelled: bool = False

    @property
    def is_late(self) -> bool:
        return time.time() > float(self.body["expires_at"])


class Batches:
    """The batches of one server. (Not an attrs class: Litestar would inspect it.)"""

    def __init__(
        self,
        store: Store,
        keys: Keys,
        draining: Callable[[], bool],
        *,
        concurrency: int = CONCURRENCY,
    ) -> None:
        """`draining` says whether the server shuts down: then nothing more is sent."""
        self._store, self._keys, self._draining = store, keys, draining
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._runs: dict[str, _Run] = {}
        """By owner."""
        self._unstored: dict[str, tuple[_Run, str]] = {}
        """Batches whose end could not be stored, with the statuses they are to have."""
        self._picking = asyncio.Lock()
        self._added = asyncio.Event()

    async def add(self, owner: str, body: Body) -> None:
        """Store a new batch, to be run after the owner's before it. Raises QueueFullError,
        RequestError."""
        unfinished = await self._store.run(lambda db: db.files.unfinished())
        quota = self._keys.quota_of(owner).batches
        most = MAX_UNFINISHED if quota is None else quota
        if sum(each.owner == owner for each in unfinished) >= most:
            raise QueueFullError(
                f"{most} batches have not ended", "Wait for one of them, or cancel it."
            )
        await self._store.run(lambda db: db.files.create("batch", owner, body, ended=False))
        self._added.set()

    async def cancel(self, owner: str, id: str) -> Body | None:
        """Stop a batch; return it, or None if there is none. Raises RequestError if it has
        ended."""
        async with self._picking:
            run = self._runs.get(owner)
            if run is not None and run.body["id"] == id:
                if not run.is_cancelled and run.task is not None:
                    run.is_cancelled = True
                    enter(run.body, "cancelling")
                    run.task.cancel()
                return dict(run.body)
            body = await self._store.run(lambda db: db.files.find("batch", owner, id))
            if body is None:
                return None
            self._unstored.pop(id, None)
            if body["status"] in ENDED:
                raise RequestError(
                    f"the batch {id} is {body['status']}",
                    "Only one that has not ended can be cancelled.",
                    param="id",
                )
            enter(body, "cancelled")
            await self._store.run(lambda db: db.files.update(body))
            return body

    async def run(self, app: ASGIApp) -> None:
        """Run batches until the server shuts down. `app` answers their requests."""
        try:
            while not self._draining():
                self._added.clear()
                async with self._picking:
                    await self._collect()
                    for run in await self._next():
                        self._runs[run.owner] = run
                        run.task = asyncio.create_task(self._run(run, app))
                        run.task.add_done_callback(lambda _: self._added.set())
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._added.wait(), RETRY if self._unstored else None)
        finally:
            tasks = [run.task for run in self._runs.values() if run.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._runs.clear()

    async def _collect(self) -> None:
        """Let go of the batches whose tasks have ended."""
        ended = [run for run in self._runs.values() if run.task is None or run.task.done()]
        for run in ended:
            if run.is_cancelled and run.body["status"] not in ENDED:
                await self._end(run, "cancelled")
            del self._runs[run.owner]
        for run, status in [*self._unstored.values()]:
            await self._end(run, status)

    async def _next(self) -> list[_Run]:
        """Return the oldest batch of each owner that has none running."""
        try:
            unfinished = await self._store.run(lambda db: db.files.unfinished())
        except StoreError as error:
            log.error("batches are not run: %s", error)
            return []
        found: dict[str, _Run] = {}
        for each in unfinished:
            if each.owner not in self._runs and each.body["id"] not in self._unstored:
                found.setdefault(each.owner, _Run(each.owner, each.body))
        return [*found.values()]

    async def _run(self, run: _Run, app: ASGIApp) -> None:
        body = run.body
        log.info("%s: %s", body["id"], "resumed" if body["in_progress_at"] else "started")
        status = "completed"
        try:
            lines = await self._lines(run)
            if body["status"] == "validating":
                enter(body, "in_progress")
                await self._update(run)
            await self._answer_all(run, lines, app)
            counts = body["request_counts"]
            if counts["completed"] + counts["failed"] < counts["total"]:
                if not run.is_late:
                    return  # the server shuts down: to be resumed
                status = "expired"
        except BatchError as error:
            status, body["errors"] = "failed", {"object": "list", "data": list(error.problems)}
        except InfernoError as error:  # the store is full, or cannot be used
            fault = problem(error.code or "server_error", str(error))
            status, body["errors"] = "failed", {"object": "list", "data": [fault]}
        except Exception:
            log.exception("%s failed", body["id"])
            fault = problem("server_error", "Internal server error.")
            status, body["errors"] = "failed", {"object": "list", "data": [fault]}
        await self._end(run, status)

    async def _lines(self, run: _Run) -> Sequence[Line | None]:
        """Return the requests; None for those that have answers. Raises BatchError."""
        body = run.body
        run.key = self._keys.of_owner(run.owner)
        if run.key is None and self._keys.needed:
            raise BatchError(problem("invalid_api_key", "The API key of this batch is gone."))
        parts = await self._parts(body["input_file_id"])
        if not parts:
            raise BatchError(problem("file_not_found", "The input file was deleted."))
        written = {
            name: await self._parts(body[name] or "")
            for name in ("output_file_id", "error_file_id")
        }
        done = Done(
            {msgspec.json.decode(part)["custom_id"] for p in written.values() for part in p}
        )
        lines = await asyncio.to_thread(_read, b"".join(parts), done, body["endpoint"])
        completed, failed = map(len, written.values())
        counts = {"total": len(lines), "completed": completed, "failed": failed}
        body["request_counts"] = counts
        return lines

    async def _parts(self, id: str) -> list[bytes]:
        return await self._store.run(lambda db: db.files.parts(id))

    async def _answer_all(self, run: _Run, lines: Sequence[Line | None], app: ASGIApp) -> None:
        waiting = iter(lines)

        async def work() -> None:
            for line in waiting:
                if line is None:
                    continue
                reply = await self._send(run, line, app)
                if reply is None:
                    return
                await self._save(run, reply)

        tasks = [asyncio.create_task(work()) for _ in range(self._concurrency)]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, run: _Run, line: Line, app: ASGIApp) -> Answer | None:
        """Return a request's answer, or None if it was not sent. What is refused for now is sent
        again."""
        state: dict[str, Any] = {INSIDE_KEY: run.key} if run.key is not None else {}
        body = {"priority": PRIORITY, **msgspec.json.decode(line.body)}
        line = evolve(line, body=msgspec.json.encode(body))
        while not run.is_late and not self._draining():
            async with run.turn:
                await self._slots.acquire()
            try:
                reply = await answer(app, line, state)
            finally:
                self._slots.release()
            if reply.retry_seconds is None:
                return reply
            await asyncio.sleep(min(reply.retry_seconds, _LONGEST_PAUSE))
        return None

    async def _save(self, run: _Run, reply: Answer) -> None:
        body, kind = run.body, "error" if reply.failed else "output"
        name = f"{kind}_file_id"
        async with run.saving:
            if body[name] is None:
                file = file_of(f"{body['id']}_{kind}.jsonl", 0, "batch_output")
                await self._store.run(lambda db: db.files.create("file", run.owner, file))
                body[name] = file["id"]
            body["request_counts"]["failed" if reply.failed else "completed"] += 1
            part, stored = reply.content + b"\n", dict(body)
            await self._store.run(lambda db: db.files.append(body[name], part, stored))

    async def _end(self, run: _Run, status: str) -> None:
        try:
            await self._store_end(run, status)
            self._unstored.pop(run.body["id"], None)
            log.info("%s: %s, %s", run.body["id"], status, run.body["request_counts"])
        except StoreError as error:
            if run.body["id"] not in self._unstored:
                log.error("%s is %s, which cannot be stored: %s", run.body["id"], status, error)
            self._unstored[run.body["id"]] = run, status

    async def _store_end(self, run: _Run, status: str) -> None:
        body, owner = run.body, run.owner
        written = [id for id in (body["output_file_id"], body["error_file_id"]) if id is not None]
        await self._store.run(lambda db: db.files.measure(owner, written))
        enter(body, status)
        await self._store.run(lambda db: db.files.update(dict(body)))

    async def _update(self, run: _Run) -> None:
        await self._store.run(lambda db: db.files.update(dict(run.body), ended=False))


def _read(content: bytes, done: Done, endpoint: str) -> list[Line | None]:
    """Read a batch's file. Raises BatchError if a line is not a request for the endpoint."""
    lines: list[Line | None] = []
    problems: list[Body] = []
    for line in read_lines(io.BytesIO(content), done):
        wrong = "" if line is None else line.problem
        if line is not None and not wrong and line.url != endpoint:
            wrong = f"its url is not the batch's endpoint, {endpoint}"
        if line is not None and wrong:
            problems.append(problem("invalid_request", f"line {line.number}: {wrong}", line.number))
        lines.append(line)
        if len(lines) > MAX_REQUESTS:
            problems = [problem("too_many_requests", f"There are more than {MAX_REQUESTS}.")]
        if len(problems) >= _MAX_PROBLEMS or len(lines) > MAX_REQUESTS:
            break
    if not lines:
        problems.append(problem("empty_file", "The input file has no request."))
    if problems:
        raise BatchError(*problems)
    return lines
