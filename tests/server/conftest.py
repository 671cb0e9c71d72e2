from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn
from litestar._signature import SignatureModel
from litestar.handlers import HTTPRouteHandler
from litestar.testing import TestClient
from litestar.utils.signature import ParsedSignature
from tests.server.server_fakes import FakeLLM

from inferno.server import ServerOptions, create_app
from inferno.server.http.transport import Door, Limits

if TYPE_CHECKING:
    from tests.server.page_chat import Chat


class Live:
    """A real server on a real socket: what a test client would buffer, this streams."""

    def __init__(self, llm: FakeLLM, *, limits: Limits | None = None, **options: Any) -> None:
        self.llm = llm
        self.app = create_app(llm, ServerOptions(**options))  # type: ignore[arg-type]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                http=Door(limits or Limits(), self.app.state.apis).protocol,  # type: ignore[arg-type]
                log_config=None,
                access_log=False,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}
        )
        self._thread.start()
        wait_until(lambda: self._server.started)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(20)
        self._listener.close()

    def post(self, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=20)

    def events(self, path: str, **body: Any) -> list[Any]:
        """A stream's events, decoded; comments and "[DONE]" as they are."""
        with httpx.stream(
            "POST", self.url + path, json={"stream": True, **body}, timeout=20
        ) as response:
            assert response.status_code == 200, response.read()
            return [
                read_event(block) for block in "".join(response.iter_text()).split("\n\n") if block
            ]


def read_event(block: str) -> Any:
    data = block.removeprefix("data: ")
    return json.loads(data) if data.startswith("{") else data


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.fixture
def distributions() -> Sequence[str]:
    """Those whose endpoints a server has. Half of all handlers are those of plugins, which test
    their own."""
    return ("inferno",)


@pytest.fixture
def live(distributions: Sequence[str]) -> Iterator[Callable[..., Live]]:
    with contextlib.ExitStack() as stack:

        def start(llm: FakeLLM | None = None, **options: Any) -> Live:
            server = Live(llm or FakeLLM(), **{"only": distributions, **options})
            stack.callback(server.stop)
            return server

        yield start


class Later:
    """What is made of a handler's arguments, once a request is sent there. An app has a hundred
    handlers, and most tests use one."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = cache(make)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)


def _same(function: Any) -> tuple[Any, ...]:
    """What two functions have alike that do the same."""
    if isinstance(function, partial):
        return function.func, function.args, tuple(sorted(function.keywords.items()))
    return (function,)


@pytest.fixture(scope="session", autouse=True)
def handlers_are_read_once() -> Iterator[None]:
    """Every test makes an app, and each app reads the types of the same functions again. Likewise
    every client the certificates of the machine. Servers end at once."""
    read = ParsedSignature.from_fn.__func__  # type: ignore[attr-defined]
    known: dict[Any, ParsedSignature] = {}
    make = SignatureModel.create.__func__  # type: ignore[attr-defined]
    models: dict[Any, tuple[ParsedSignature, type[SignatureModel]]] = {}

    def from_fn(cls: type[ParsedSignature], fn: Any, namespace: dict[str, Any]) -> ParsedSignature:
        key: tuple[Any, ...] = (fn.__code__, *fn.__annotations__.items(), *sorted(namespace))
        if fn.__defaults__ or fn.__kwdefaults__:
            if "<locals>" in fn.__qualname__:  # perhaps of one app, as the function may be
                return read(cls, fn, namespace)  # type: ignore[no-any-return]
            key = (fn, *sorted(namespace))
        return known.get(key) or known.setdefault(key, read(cls, fn, namespace))

    def create(cls: type[SignatureModel], /, **given: Any) -> type[SignatureModel]:
        if given["fn"] is None:
            return make(cls, **given)  # type: ignore[no-any-return]
        signature, decoders = given["parsed_signature"], given["type_decoders"] or ()
        names = tuple(sorted(given["dependency_name_set"]))
        # Where pydantic is installed, each app has its own decoders, which do the same.
        reads = tuple((which, *_same(decode)) for which, decode in decoders)
        key = id(signature), names, given["data_dto"], reads
        if key not in models:
            models[key] = signature, make(cls, **given)  # kept: no other gets its id
        return models[key][1]

    create_kwargs_model = HTTPRouteHandler.create_kwargs_model

    def later(self: HTTPRouteHandler, *args: Any, **kwargs: Any) -> Later:
        return Later(lambda: create_kwargs_model(self, *args, **kwargs))

    def sleep(seconds: float) -> Any:
        return asyncio.sleep(seconds / 20)  # it looks every 0.1 s whether it is to end

    with pytest.MonkeyPatch.context() as patch:
        hurried = SimpleNamespace(**{**vars(asyncio), "sleep": sleep})
        patch.setattr("uvicorn.server.asyncio", hurried)
        patch.setattr(HTTPRouteHandler, "create_kwargs_model", later)
        patch.setattr(ParsedSignature, "from_fn", classmethod(from_fn))
        patch.setattr(SignatureModel, "create", classmethod(create))
        patch.setattr(ssl, "create_default_context", cache(ssl.create_default_context))
        yield


@pytest.fixture
def client(distributions: Sequence[str]) -> Iterator[Callable[..., TestClient[Any]]]:
    """An in-process client for answers that come whole."""
    with contextlib.ExitStack() as stack:

        def start(llm: FakeLLM | None = None, **options: Any) -> TestClient[Any]:
            options = {"only": distributions, **options}
            app = create_app(llm or FakeLLM(), ServerOptions(**options))  # type: ignore[arg-type]
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield start


@contextlib.contextmanager
def client_of(*distributions: str) -> Iterator[TestClient[Any]]:
    """A client of a fake model's app with the endpoints of those, or of all."""
    app = create_app(FakeLLM(), ServerOptions(only=distributions))  # type: ignore[arg-type]
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def refusing() -> Iterator[TestClient[Any]]:
    """One for many requests that change nothing, as they are refused."""
    with client_of("inferno") as client:
        yield client


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    from tests.server.page_chat import CHROMIUM, playwright

    with playwright.sync_playwright() as driver:
        try:
            browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no Chromium: apt install chromium, or playwright install ({error})"[:200])
        yield browser
        browser.close()


@pytest.fixture
def chat(browser: Any, live: Callable[..., Live]) -> Iterator[Callable[..., Chat]]:
    """Opens the page of a server that says what `llm` does, in a new profile."""
    from tests.server.page_chat import Chat

    contexts = []

    def start(llm: FakeLLM | None = None, view: dict[str, Any] | None = None, **app: Any) -> Chat:
        contexts.append(browser.new_context(**(view or {})))
        contexts[-1].set_default_timeout(15_000)
        return Chat(contexts[-1].new_page(), live(llm, **app))

    yield start
    for context in contexts:
        context.close()
