"""Checks host, origin and content type before a request is routed. Answers CORS preflights, and
finds routes with and without `/v1`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Any, cast

from attrs import frozen
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from inferno.errors import OptionError, PermissionDeniedError, RequestError
from inferno.server.http.apis import Apis
from inferno.server.http.paths import Routes
from inferno.server.http.refusals import refuse
from inferno.server.observe.record import record_of

ANY = "*"
FILES = "/v1/files"
"""Files are sent as a form. A web page of another origin may not: its browser names that origin."""
_CURLS = ("", "application/x-www-form-urlencoded")
"""No type, and curl's default: JSON too. A web page of another origin may send both, too, but its
browser names that origin."""
_SAFE = ("GET", "HEAD", "OPTIONS")
_PREFLIGHT_SECONDS = b"600"
_EXPOSED = (
    *("x-request-id", "retry-after", "x-should-retry"),
    *(
        f"x-ratelimit-{what}-{of}"
        for what in ("limit", "remaining", "reset")
        for of in ("requests", "tokens")
    ),
)
"""Headers that web pages may read: by default they may read few."""
_ORIGIN = re.compile(r"[a-zA-Z][\w+.-]*://[^/\s]+", re.ASCII)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")

Headers = list[tuple[bytes, bytes]]


class MediaTypeError(RequestError):
    """A body whose Content-Type is not JSON."""

    status = 415
    code = "unsupported_media_type"


class HostError(PermissionDeniedError):
    """A Host header that names another server."""

    code = "host_not_allowed"


class OriginError(PermissionDeniedError):
    """A web page that may not use the server."""

    code = "origin_not_allowed"

    @classmethod
    def of(cls, origin: str) -> OriginError:
        return cls(
            f"web pages of {origin[:200]!r} may not use this server",
            "Start it with --cors-origin ORIGIN.",
        )


def hosts_of(address: str) -> tuple[str, ...]:
    """Return the names under which a server at this address may be called: on loopback only this
    machine's, so that no web page reaches it by the page's own host name; elsewhere any name."""
    bare = address.strip("[]").lower()
    return (*_LOOPBACK, bare) if bare in _LOOPBACK or bare.startswith("127.") else (ANY,)


def origins_of(given: Iterable[str]) -> frozenset[str]:
    """Check the web pages that may use the server: "https://chat.example.org", or `*` for all.
    Raises OptionError."""
    for origin in given:
        if origin not in (ANY, "null") and not _ORIGIN.fullmatch(origin):
            raise OptionError(
                f"{origin!r} is not an origin",
                "Give a scheme, a host and perhaps a port: https://chat.example.org",
            )
    return frozenset(given)


@frozen
class Gate:
    """ASGI app in front of `app`.

    `hosts` are the names by which clients may call the server, and `origins` the web pages that may
    use it, besides its own; `*` allows any.
    """

    app: ASGIApp
    routes: Routes
    hosts: frozenset[str]
    origins: frozenset[str]
    apis: Apis

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self.app(scope, receive, send)
            return
        given = {name: value.decode("latin-1") for name, value in scope["headers"]}
        method, origin = scope["method"], given.get(b"origin")
        path = self.routes.served(
            given.get(b"access-control-request-method", "GET") if method == "OPTIONS" else method,
            scope["path"],
        )
        allowed = origin is not None and self._allows(origin)
        if allowed:
            send = _shared(send, cast(str, origin), (*_EXPOSED, *self.apis.request_id_headers))
        try:
            self._check_host(given.get(b"host"))
            if method == "OPTIONS" and (methods := self.routes.methods(path)):
                await self._options(methods, given, send, allowed=allowed)
                return
            if origin is not None and not allowed and method not in _SAFE:
                self._check_own(origin, given.get(b"host", ""))
            if method in self.routes.methods(path) and method not in _SAFE:
                self._check_type(path, given)
        except (PermissionDeniedError, RequestError) as error:
            record = record_of(scope)
            await refuse(error, path, record.id if record is not None else "", send, self.apis)
            return
        if method == "HEAD" and "GET" in self.routes.methods(path):
            send, method = _bodiless(send), "GET"
        if (path, method) != (scope["path"], scope["method"]):
            changed: Any = {"path": path, "raw_path": path.encode(), "method": method}
            scope = cast(Scope, {**scope, **changed})
        await self.app(scope, receive, send)

    def _check_host(self, host: str | None) -> None:
        if host is None or ANY in self.hosts:
            return
        name = _name(host)
        if name not in self.hosts and not name.endswith(".localhost"):
            raise HostError(
                f"this server is not called {name[:200]!r}",
                "Call it by a name that it allows, or start it with --allowed-hosts NAME.",
            )

    def _check_own(self, origin: str, host: str) -> None:
        """Browsers name the page that sends a request: only this server's own page, or an allowed
        one, may send a request that changes something."""
        if origin.partition("://")[2].lower() != host.lower():
            raise OriginError.of(origin)

    def _allows(self, origin: str) -> bool:
        return ANY in self.origins or origin in self.origins

    def _check_type(self, path: str, given: dict[bytes, str]) -> None:
        empty = given.get(b"content-length", "0") == "0" and b"transfer-encoding" not in given
        api = self.apis.of(path)
        if empty or (api is not None and api.any_content_type):
            return
        kind = given.get(b"content-type", "").partition(";")[0].strip().lower()
        if path == FILES and kind == "multipart/form-data":
            return
        if path != FILES and kind in _CURLS:
            return
        if kind != "application/json" and not kind.endswith("+json"):
            raise MediaTypeError(
                f"the body's Content-Type is {kind[:100] or 'missing'}",
                "Send JSON with the header Content-Type: application/json.",
            )

    async def _options(
        self, methods: Collection[str], given: dict[bytes, str], send: Send, *, allowed: bool
    ) -> None:
        """Answer OPTIONS; it needs no key, and a preflight cannot carry one."""
        headers: Headers = [(b"allow", ", ".join(sorted(methods)).encode())]
        if b"access-control-request-method" in given:
            if not allowed:
                raise OriginError.of(given.get(b"origin", ""))
            wanted = given.get(b"access-control-request-headers", "")
            headers += [
                (b"access-control-allow-methods", ", ".join(sorted(methods)).encode()),
                (b"access-control-allow-headers", wanted.encode("latin-1")),
                (b"access-control-max-age", _PREFLIGHT_SECONDS),
            ]
            if b"access-control-request-private-network" in given:
                headers.append((b"access-control-allow-private-network", b"true"))
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _name(host: str) -> str:
    """Return a Host header's name, without its port."""
    bracketed = re.match(r"\[([^\]]*)\]", host)
    return (bracketed[1] if bracketed else host.partition(":")[0]).lower()


def _shared(send: Send, origin: str, exposed: Iterable[str]) -> Send:
    """Let the page at `origin` read the answer."""
    headers: Headers = [
        (b"access-control-allow-origin", origin.encode("latin-1")),
        (b"access-control-expose-headers", ", ".join(exposed).encode()),
        (b"vary", b"Origin"),
    ]

    async def shared(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), *headers]
        await send(message)

    return shared


def _bodiless(send: Send) -> Send:
    async def bodiless(message: Message) -> None:
        if message["type"] == "http.response.body":
            message["body"] = b""
        await send(message)

    return bodiless
