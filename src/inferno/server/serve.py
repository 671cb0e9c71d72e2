"""Runs the app in uvicorn until a signal, and drains requests before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import uvicorn
from litestar import Litestar

from inferno.errors import AddressError
from inferno.server.app import create_app, keys_of, models_of
from inferno.server.slot import ModelSpec

if TYPE_CHECKING:
    from inferno.llm import AsyncLLM

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
    app_options: dict[str, Any] | None = None,
    **options: Any,
) -> None:
    """Serve until a signal. `llm` is an AsyncLLM, a model reference to make one from with
    `options`, or several models to load on demand.

    Port 0 picks a free one. `ready(url, app)` is called once requests are served. `app_options` go
    to `create_app`. SIGHUP reads the file of keys again. Raises AddressError before loading, and
    any InfernoError from loading; several models are loaded later.
    """
    listener = _bind(host, port)
    with contextlib.closing(listener):
        if llm is None or isinstance(llm, str):
            from inferno.llm import AsyncLLM

            llm = AsyncLLM(llm, **options)
        elif options:
            raise TypeError(f"an existing AsyncLLM takes no options: {', '.join(options)}")
        app = create_app(llm, own_llm=False, **(app_options or {}))
        config = uvicorn.Config(
            app,
            log_level=log_level,
            log_config=None,
            access_log=False,
            # longer than the drain, so that its error frames are still sent
            timeout_graceful_shutdown=int(shutdown_seconds) + 2,
        )
        server = _Server(config, lambda: models_of(app).drain(shutdown_seconds))
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            runner.run(_run(server, listener, app, llm, ready))
    for number in server.signals:  # everything is closed: let the signal take effect
        signal.raise_signal(number)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain = drain
        self.signals: list[int] = []

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._drain()
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
            waiter = asyncio.create_task(_announce(server, lambda: ready(_url(listener), app)))
            stack.callback(waiter.cancel)
        await server.serve(sockets=[listener])


async def _announce(server: _Server, call: Callable[[], None]) -> None:
    while not server.started:
        await asyncio.sleep(0.01)
    call()


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    """Bind the address before the model is loaded, to fail early if the port is in use. Raises
    AddressError."""
    if not 0 <= port <= 65535:
        raise AddressError(
            f"invalid port {port} for {host}", "Give a port from 0 to 65535; 0 picks a free one."
        )
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        raise AddressError(
            f"cannot listen on {host}:{port}: {error}",
            "Give a host name or an address of this machine.",
        ) from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise AddressError(*_explain(host, port, error)) from error
    return listener


def _explain(host: str, port: int, error: OSError) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use",
            "Stop the process that uses it, or choose another: --port 0 picks a free one.",
        )
    if error.errno == errno.EACCES:
        return (
            f"port {port} needs privileges that this process lacks",
            "Give a port above 1023: --port 8000",
        )
    return (
        f"cannot listen on {host}:{port}: {error}",
        "Give an address of this machine: --host 127.0.0.1",
    )
