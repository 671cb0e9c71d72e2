"""Talks to a running server for `inferno ps`, `load` and `unload`."""

from __future__ import annotations

import json
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
        "--url", default="http://127.0.0.1:8000", help="Base URL of the running server."
    )
    key = click.option("--api-key", help="An admin's key, if the server has keys.")
    return url(key(function))


def call(url: str, path: str, api_key: str | None, body: dict[str, Any] | None = None) -> Any:
    """Send a request, and return its answer. Raises ServerError, OptionError."""
    base = url.rstrip("/").removesuffix("/v1")
    if not base.startswith(("http://", "https://")):
        raise OptionError(f"{url!r} is not a server's URL", "Write it as http://127.0.0.1:8000.")
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(base + path, data, headers)
    # A local server is not behind the proxy that the environment may name.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise ServerError(f"the server answers {error.code}: {_message(error)}") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerError(
            f"no inferno server answers at {base}: {reason}",
            untrusted(reason) or "Start it (inferno serve), or name another: --url.",
        ) from error


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
