"""Runs the app in uvicorn until a signal, and drains requests before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from attrs import evolve
from litestar import Litestar

from inferno.errors import EngineDeadError
from inferno.server.app import create_app, keys_of, models_of
from inferno.server.hosting.hosted_model import ModelSpec
from inferno.server.http.gate import ANY, hosts_of
from inferno.server.http.listen import UDS_MODE, check_certificate, listening, url_of
from inferno.server.http.transport import Door, Limits
from inferno.server.observe.metrics import Metrics
from inferno.server.options import ServerOptions

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

log = logging.getLogger("inferno.server")

KEEP_ALIVE_SECONDS = 75
"""Seconds before an idle connection is closed: proxies close theirs after 60 s, and must be
first."""
TICK_SECONDS = 0.1
"""Between two calls of `_Server.on_tick`, as uvicorn has it."""
SHUTDOWN_SECONDS = 30.0
"""Seconds that running requests may take to finish after the first signal."""


def run_server(
    llm: AsyncLLM | str | Sequence[ModelSpec] | None = None,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    shutdown_seconds: float = SHUTDOWN_SECONDS,
    log_level: str = "warning",
    ready: Callable[[str, Litestar], None] | None = None,
    app_options: ServerOptions | None = None,
    uds: str | os.PathLike[str] | None = None,
    uds_mode: int = UDS_MODE,
    ssl_certfile: str | None = None,
    ssl_keyfile: str | None = None,
    limits: Limits | None = None,
    max_failed_starts: int | None = None,
    **options: Any,
) -> None:
    """Serve until a signal. `llm` is an AsyncLLM, a model reference to make one from with
    `options`, or several models to load on demand.

    Port 0 picks a free one; `uds` is the path of a Unix socket to listen on instead, with the
    permissions `uds_mode`. `ready(url, app)` is called once requests are served. `app_options` are
    those of `create_app`; `limits` are those of a connection. SIGHUP reads the file of keys again.
    Raises AddressError and OptionError before loading, and any InfernoError from loading; several
    models are loaded later. With `max_failed_starts`, it raises EngineDeadError after so many
    starts one after another of an engine that must run: of the only model, or a pinned one.
    """
    check_certificate(ssl_certfile, ssl_keyfile)
    with listening(host, port, None if uds is None else Path(uds), uds_mode) as listener:
        if llm is None or isinstance(llm, str):
            from inferno.llm import AsyncLLM

            llm = AsyncLLM(llm, **{"expect_grammars": True, **options})
        elif options:
            raise TypeError(f"an existing AsyncLLM takes no options: {', '.join(options)}")
        chosen = app_options or ServerOptions()
        hosts = chosen.allowed_hosts or ((ANY,) if uds is not None else hosts_of(host))
        app = create_app(llm, evolve(chosen, own_llm=False, allowed_hosts=hosts))
        door = Door(limits or Limits(), app.state.apis)
        config = uvicorn.Config(
            app,
            http=door.protocol,  # type: ignore[arg-type]  # any callable that makes a protocol
            ws="none",
            ssl_certfile=ssl_certfile,
            ssl_keyfile=ssl_keyfile,
            log_level=log_level,
            log_config=None,
            access_log=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            # longer than the drain, so that its error frames are still sent
            timeout_graceful_shutdown=int(shutdown_seconds) + 2,
        )
        server = _Server(config, door, app, shutdown_seconds, max_failed_starts)
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_run(server, listener, app, llm, ready))
    if server.failure is not None:
        raise server.failure
    for number in server.signals:  # everything is closed: let the signal take effect
        signal.raise_signal(number)


class _Server(uvicorn.Server):
    def __init__(
        self,
        config: uvicorn.Config,
        door: Door,
        app: Litestar,
        drain_seconds: float,
        max_failed_starts: int | None,
    ) -> None:
        super().__init__(config)
        self._door, self._models, self._drain_seconds = door, models_of(app), drain_seconds
        self._metrics: Metrics = app.state.metrics
        self._ticked: float | None = None
        """When the loop came round last."""
        self._max_failed_starts = max_failed_starts
        self.signals: list[int] = []
        self.failure: EngineDeadError | None = None
        """Why it ended by itself."""

    async def on_tick(self, counter: int) -> bool:
        """Called every `TICK_SECONDS`. Returns True to end."""
        now = time.monotonic()
        if self._ticked is not None:
            self._metrics.lagged(now - self._ticked - TICK_SECONDS)
        self._ticked = now
        if self._max_failed_starts is not None and self.failure is None:
            self.failure = self._gave_up(self._max_failed_starts)
        return await super().on_tick(counter) or self.failure is not None

    def _gave_up(self, limit: int) -> EngineDeadError | None:
        """Return the error that ends the server: an engine that must run does not start."""
        for hosted in self._models.hosted:
            must_run = hosted.spec.pin or len(self._models.hosted) == 1
            if must_run and hosted.failed_starts >= limit:
                log.critical("%s: %d starts failed: the server ends", hosted.name, limit)
                return EngineDeadError(
                    f"the engine of {hosted.name!r} did not start {limit} times one after another",
                    "See the log for the reason. What watches over the server may start it anew.",
                )
        return None

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish, and answer new ones with 503 meanwhile. Then close."""
        self._door.draining = True
        log.info(
            "shutting down: %d running requests may take up to %g s; a second signal ends them",
            self._models.num_running,
            self._drain_seconds,
        )
        self._models.drain(self._drain_seconds)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        while self._models.busy and not self.force_exit:
            await asyncio.sleep(0.05)
        ended = sum(hosted.limiter.num_expired for hosted in self._models.hosted)
        if ended := ended + self._models.num_running:
            log.warning("%d requests were ended before their answers were complete", ended)
        else:
            log.info("all requests have ended")
        self._door.closing = True
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's, but `run_server` raises the signal again, after closing the model."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, self.handle_exit)
            for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.signals.append(sig)
        super().handle_exit(sig, frame)


async def _run(
    server: _Server,
    listener: socket.socket,
    app: Litestar,
    llm: AsyncLLM | Sequence[ModelSpec],
    ready: Callable[[str, Litestar], None] | None,
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        if not isinstance(llm, Sequence):
            await stack.enter_async_context(llm)
        if hasattr(signal, "SIGHUP") and threading.current_thread() is threading.main_thread():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGHUP, keys_of(app).reload)
            stack.callback(loop.remove_signal_handler, signal.SIGHUP)
        if ready is not None:
            url = url_of(listener, tls=server.config.is_ssl)
            waiter = asyncio.create_task(_announce(server, lambda: ready(url, app)))
            stack.callback(waiter.cancel)
        await server.serve(sockets=[listener])


async def _announce(server: _Server, call: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    call()
