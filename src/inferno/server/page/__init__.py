"""The chat page at `/`: static files beside this module, which talk to the API like any client."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from attrs import frozen
from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
_INDEX = "index.html"
# What a model writes is shown as text. Should that ever fail, the browser runs no code, loads
# nothing, and sends nothing anywhere but to this server. Pictures of the user's are data: URLs.
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # A browser asks each time whether a file changed: the answer is a 304 until inferno is updated.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


@frozen
class _File:
    """A file as it is sent."""

    media_type: str
    content: bytes
    etag: str

    @classmethod
    def of(cls, name: str, content: bytes) -> _File:
        kind = _TYPES[name[name.rindex(".") :]]
        etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        return cls(kind, content, etag)

    def response(self, request: Request[Any, Any, Any]) -> Response[bytes]:
        headers = {**_HEADERS, "ETag": self.etag}
        if self.etag in request.headers.get("if-none-match", ""):
            return Response(b"", status_code=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers["Content-Encoding"] = _packed(content), "gzip"
        return Response(content, media_type=self.media_type, headers=headers)


def page_handlers() -> list[HTTPRouteHandler]:
    """Handlers of `/` and `/page/NAME`. They need no key; what the page asks of the API does."""
    known = _read()

    @get("/", needs_no_key=True, include_in_schema=False, sync_to_thread=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        """The page."""
        return known[_INDEX].response(request)

    @get("/page/{name:str}", needs_no_key=True, include_in_schema=False, sync_to_thread=False)
    def page_file(name: FromPath[str], request: Request[Any, Any, Any]) -> Response[bytes]:
        """A file that the page needs."""
        if name not in known:
            raise NotFoundException(f"The page has no file {name[:80]!r}. Open / in a browser.")
        return known[name].response(request)

    return [page, page_file]


@cache
def _packed(content: bytes) -> bytes:
    """Compress a file once it is asked for: all of them would delay the server's start."""
    return gzip.compress(content, mtime=0)


@cache
def _read() -> Mapping[str, _File]:
    """The page's files by name."""
    return {
        path.name: _File.of(path.name, path.read_bytes())
        for path in files(__package__).iterdir()
        if path.name[path.name.rfind(".") :] in _TYPES
    }
