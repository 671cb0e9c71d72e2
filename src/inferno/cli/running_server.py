"""Talks to a running server for `inferno ps`, `load` and `unload`."""

from __future__ import annotations

import http.client
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

import rich_click as click

from inferno.errors import InfernoError, OptionError

_Command = TypeVar("_Command", bound=Callable[..., Any])


class ServerError(InfernoError):
    """A server cannot be reached, or refuses what was asked."""


def server_options(function: _Command) -> _Command:
    """Add the options that name a running server."""
    url = click.option(
        "--url",
        default="http://127.0.0.1:8000",
        help="Base URL of the running server, or unix:PATH of its Unix socket.",
    )
    key = click.option("--api-key", help="An admin's key, if the server has keys.")
    return url(key(function))


def call(url: str, path: str, api_key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Send a request, and return its answer. Raises ServerError, OptionError."""
    path_of_socket = unix_path(url)
    base = "http://localhost" if path_of_socket is not None else url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise OptionError(
            f"{url!r} is not a server's URL",
            "Write it as http://127.0.0.1:8000, or as unix:/run/inferno.sock.",
        )
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, headers)
    # A local server is not behind the proxy that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    if path_of_socket is not None:
        opener.add_handler(_UnixHandler(path_of_socket))
    try:
        with opener.open(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(f"the server answers {error.code}: {_message(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(
            f"no inferno server answers at {url}: {reason}",
            untrusted(reason) or "Start it (inferno serve), or name another: --url.",
        ) from error


def unix_path(url: str) -> str | None:
    """Return the path of a Unix socket, written as `inferno serve` prints it (unix:PATH); None for
    other addresses."""
    return url.removeprefix("unix:").removeprefix("//") if url.startswith("unix:") else None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, host: str, path: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


class _UnixHandler(urllib.request.HTTPHandler):
    handler_order = 400  # before the one for TCP

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_UnixConnection, req, path=self._path)  # type: ignore[arg-type]


def untrusted(reason: object) -> str:
    """The remedy if a server's certificate is why it cannot be reached, else nothing."""
    if "CERTIFICATE_VERIFY_FAILED" not in str(reason):
        return ""
    return "If you trust the server's certificate, name its file: SSL_CERT_FILE=cert.pem."


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return error.reason
