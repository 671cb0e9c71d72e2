"""The APIs that a server has besides OpenAI's, by what their paths begin with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from litestar.handlers import HTTPRouteHandler

from inferno.contracts.endpoints import is_under

ErrorFormat = Callable[[int, dict[str, Any], str], dict[str, Any]]


@frozen(kw_only=True)
class ModelCards:
    """GET /v1/models and /v1/models/{name} in the format of another API, whose clients share these
    paths."""

    header: str
    """The request header that only its clients send."""
    card: Callable[[Mapping[str, Any]], dict[str, Any]]
    """card(model) -> a model in its format, from OpenAI's."""
    page: Callable[[Sequence[Mapping[str, Any]]], dict[str, Any]]
    """page(models) -> the list in its format, from OpenAI's models."""


@frozen(kw_only=True)
class Api:
    """Endpoints in the shape of one API."""

    handlers: tuple[HTTPRouteHandler, ...]
    """Litestar's. Those of a POST with a JSON body are made by `post_body`."""
    bodies: tuple[type[Any], ...] = ()
    """The class of each request body, with its endpoint (`path`) and the support of each field
    (`rows`, of `Field`)."""
    error: ErrorFormat | None = None
    """error(status, body, request_id) -> the body of an error in this API's format; `body` is that
    of OpenAI's, which is sent if this is None."""
    request_id_header: str = ""
    """Name of an answer's header in which clients look for the request's id, besides
    x-request-id."""
    any_content_type: bool = False
    """Whether a body is JSON whatever its Content-Type says."""
    stream_type: str = "text/event-stream"
    """Media type of streamed answers, for the OpenAPI document."""
    model_cards: ModelCards | None = None
    """The format of `/v1/models` for its clients, if they ask there."""


@frozen
class Mounted:
    """An API, where it is served."""

    distribution: str
    paths: tuple[str, ...]
    """What its paths begin with."""
    api: Api

    def has(self, path: str) -> bool:
        return any(is_under(path, start) for start in self.paths)


def _nothing(path: str) -> str:
    return ""


@frozen
class Apis:
    """The APIs of a server besides OpenAI's."""

    mounted: tuple[Mounted, ...] = ()
    missing: Callable[[str], str] = _nothing
    """missing(path) -> a sentence on the distribution that has a path and is not installed or does
    not load; empty if none is known."""

    def of(self, path: str) -> Api | None:
        """Return the API that a path belongs to; None: OpenAI's."""
        return next((each.api for each in self.mounted if each.has(path)), None)

    def formatted(
        self, path: str, status: int, body: dict[str, Any], request_id: str
    ) -> dict[str, Any]:
        """Return the body of an error in OpenAI's format in that of the path's API."""
        api = self.of(path)
        return body if api is None or api.error is None else api.error(status, body, request_id)

    @property
    def request_id_headers(self) -> Iterable[str]:
        return (each.api.request_id_header for each in self.mounted if each.api.request_id_header)

    def model_cards(self, headers: Mapping[str, str]) -> ModelCards | None:
        """Return the format of models that a request's headers ask for; None: OpenAI's."""
        formats = (each.api.model_cards for each in self.mounted)
        return next((cards for cards in formats if cards and cards.header in headers), None)
