"""Runs batches: of each owner one after another, those of several owners in turns, request by
request. A batch is stored after each answer, so that a server that starts again, or another that
shares the store, goes on where the one before it stopped."""

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

from inferno.errors import InfernoError, StoreError
from inferno.server.access.keys import INSIDE_KEY, Keys
from inferno.server.access.limits import Key
from inferno.server.batches.offline import Answer, Done, Line, answer, read_lines
from inferno.server.responses.store import Store
from inferno.server.storage.files import LeaseLostError
from inferno.server.storage.objects import ENDED, Body, enter, file_of, problem

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
LOOK = 2.0
"""Seconds after which a server that shares its store looks again for batches that nobody runs."""
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
    is_lost: bool = False
    """Whether another server may run it: nothing of it is stored any more."""

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
        quota = self._keys.quota_of(owner).batches
        most = MAX_UNFINISHED if quota is None else quota
        await self._store.run(lambda db: db.files.create_batch(owner, body, most))
        self._added.set()

    async def cancel(self, owner: str, id: str) -> Body | None:
        """Stop a batch; return it, or None if there is none. Raises RequestError if it has
        ended."""
        async with self._picking:
            run = self._runs.get(owner)
            if run is not None and run.body["id"] == id:
                self._stop(run)
                return dict(run.body)
            body = await self._store.run(lambda db: db.files.cancel(owner, id))
            self._unstored.pop(id, None)
            return body

    async def stop(self, id: str) -> None:
        """Stop a batch that another server was asked to cancel, if it is run here."""
        async with self._picking:
            for run in self._runs.values():
                if run.body["id"] == id:
                    self._stop(run)

    def lose(self) -> None:
        """Stop all batches: other servers may run them."""
        for run in self._runs.values():
            run.is_lost = True
            if run.task is not None:
                run.task.cancel()
        self._unstored.clear()

    def _stop(self, run: _Run) -> None:
        if not run.is_cancelled and run.task is not None:
            run.is_cancelled = True
            enter(run.body, "cancelling")
            run.task.cancel()

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
                    await asyncio.wait_for(self._added.wait(), self._pause)
        finally:
            tasks = [run.task for run in self._runs.values() if run.task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._runs.clear()

    @property
    def _pause(self) -> float | None:
        """Seconds until it looks again without having been told to."""
        retry = RETRY if self._unstored else None
        return min(LOOK, retry or LOOK) if self._store.is_shared else retry

    async def _collect(self) -> None:
        """Let go of the batches whose tasks have ended."""
        ended = [run for run in self._runs.values() if run.task is None or run.task.done()]
        for run in ended:
            if run.is_cancelled and not run.is_lost and run.body["status"] not in ENDED:
                await self._end(run, "cancelled")
            del self._runs[run.owner]
        for run, status in [*self._unstored.values()]:
            await self._end(run, status)

    async def _next(self) -> list[_Run]:
        """Return the oldest batch of each owner that has none running, here or on another
        server."""
        busy, unstored = [*self._runs], [*self._unstored]
        try:
            batches = await self._store.run(lambda db: db.files.claim(busy, unstored))
        except StoreError as error:
            if not self._store.is_shared:  # else it is asked again soon, and the log has it
                log.error("batches are not run: %s", error)
            return []
        return [_Run(each.owner, each.body) for each in batches]

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
                if not run.is_late:  # the server shuts down: to be resumed, by it or by another
                    with contextlib.suppress(StoreError):  # else once the server has ended
                        await self._store.run(lambda db: db.files.give_up(body["id"]))
                    return
                status = "expired"
        except LeaseLostError:
            run.is_lost = True
        except BatchError as error:
            status, body["errors"] = "failed", {"object": "list", "data": list(error.problems)}
        except InfernoError as error:  # the store is full, or cannot be used
            if self._store.is_shared and isinstance(error, StoreError):
                return  # it goes on, here or elsewhere, once the store's server is back
            fault = problem(error.code or "server_error", str(error))
            status, body["errors"] = "failed", {"object": "list", "data": [fault]}
        except Exception:
            log.exception("%s failed", body["id"])
            fault = problem("server_error", "Internal server error.")
            status, body["errors"] = "failed", {"object": "list", "data": [fault]}
        if not run.is_lost:
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
        except LeaseLostError:
            self._unstored.pop(run.body["id"], None)
        except StoreError as error:
            if run.body["id"] not in self._unstored:
                log.error("%s is %s, which cannot be stored: %s", run.body["id"], status, error)
            self._unstored[run.body["id"]] = run, status

    async def _store_end(self, run: _Run, status: str) -> None:
        body, owner = run.body, run.owner
        written = [id for id in (body["output_file_id"], body["error_file_id"]) if id is not None]
        ended = dict(body)
        enter(ended, status)
        await self._store.run(lambda db: db.files.end(owner, ended, written))
        body.update(ended)

    async def _update(self, run: _Run) -> None:
        await self._store.run(lambda db: db.files.begin(dict(run.body)))


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
