"""HTTP endpoints of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen

from inferno.contracts import lazy
from inferno.errors import PluginError


def _checked(endpoints: Endpoints, attribute: object, paths: tuple[str, ...]) -> None:
    is_tuple = isinstance(paths, tuple) and paths
    if not is_tuple or not all(path.startswith("/") and path != "/" for path in paths):
        raise PluginError(
            f"the paths of the endpoints {endpoints.name!r} are {paths!r}",
            'They are a tuple of what each begins with: ("/api/",) or ("/v1/messages",).',
        )


@frozen(kw_only=True)
class Endpoints:
    """HTTP endpoints that the server has besides its own: an API in the shape of another server."""

    name: str
    paths: tuple[str, ...] = field(validator=_checked)
    """What their paths begin with, whole parts of them: `/api/`, `/v1/messages`. Errors under them
    have this API's format, and no other distribution may have endpoints there."""
    api: Callable[..., Any] = field(converter=lazy.function)
    """The endpoints, an `inferno.server.api.Api`. Imported when a server starts."""
    api_version: int = 1


def is_under(path: str, start: str) -> bool:
    """Whether a path begins with `start`, by whole parts: `/api/tags` with `/api/` and with `/api`,
    `/apis` with neither."""
    return f"{path.rstrip('/')}/".startswith(f"{start.rstrip('/')}/")
