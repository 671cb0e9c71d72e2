"""Every endpoint of the server: its own, and those of plugins. Each package of an API has its
handlers and its bodies."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from attrs import frozen
from litestar.handlers import HTTPRouteHandler
from litestar.types import ControllerRouterHandler

from inferno.catalog import GROUPS, Catalog, Offer, load_catalog
from inferno.contracts import Endpoints
from inferno.contracts.endpoints import is_under
from inferno.contracts.lazy import resolved
from inferno.errors import InfernoError, PluginError
from inferno.hookspecs import ENDPOINTS
from inferno.server import batches, openai, pooling, responses, routes
from inferno.server.fields.support import Field
from inferno.server.hosting import admin, weights
from inferno.server.http.apis import Api, Apis, Mounted
from inferno.server.observe import debug

log = logging.getLogger("inferno.server")

HANDLERS: tuple[ControllerRouterHandler, ...] = (
    *openai.HANDLERS,
    *responses.HANDLERS,
    *pooling.HANDLERS,
    *batches.HANDLERS,
    *admin.HANDLERS,
    *weights.HANDLERS,
    *routes.HANDLERS,
    *debug.HANDLERS,
)
"""The server's own."""
BODIES: tuple[type[Any], ...] = (
    *openai.BODIES,
    *responses.BODIES,
    *pooling.BODIES,
    *batches.BODIES,
    *admin.BODIES,
    *weights.BODIES,
    *routes.BODIES,
)
"""The class of each request body of the server's own endpoints, with its endpoint (`path`) and the
support of each field (`rows`)."""


def installed_apis(disable: Iterable[str] = (), only: Iterable[str] = ()) -> Apis:
    """Return the APIs of the installed plugins. A plugin that does not load is left out, with a
    warning. Raises PluginError if two distributions have endpoints at the same paths."""
    catalog = load_catalog(disable=disable, only=only, groups=(ENDPOINTS,))
    offers = catalog.of("inferno_endpoints")
    _check_claims(offers)
    names = {body.__name__ for body in BODIES}
    mounted, absent = [], _absent(catalog)
    for offer in offers:
        try:
            api = _api_of(offer, names)
        except InfernoError as error:
            absent.append(_Absent(offer.distribution, offer.item.paths, error.cause, error.remedy))
            continue
        mounted.append(Mounted(offer.distribution, offer.item.paths, api))
    for each in absent:
        log.warning("%s", each)

    @cache
    def hints() -> Catalog:
        return load_catalog(disable=disable, only=only, groups=GROUPS)

    def missing(path: str) -> str:
        forms = (path, path.removeprefix("/v1"), f"/v1{path}")
        known = [o.item for o in hints().of("inferno_hints") if o.item.kind == "endpoint"]
        matching = [h for h in known if any(is_under(form, h.name) for form in forms)]
        distributions = {hint.distribution for hint in matching}
        for each in absent:
            claims = any(is_under(form, start) for start in each.paths for form in forms)
            if claims or each.distribution in distributions:
                return str(each)
        return next(filter(None, (hints().missing_hint("endpoint", h.name) for h in matching)), "")

    return Apis(tuple(mounted), missing)


def fields_by_endpoint(apis: Apis) -> Mapping[str, tuple[Field, ...]]:
    """Return the support of each field, by endpoint."""
    return {body.path: body.rows for body in bodies_of(apis)}


def bodies_of(apis: Apis) -> Sequence[type[Any]]:
    """Return the class of each request body."""
    return [*BODIES, *(body for each in apis.mounted for body in each.api.bodies)]


def handlers_of(apis: Apis) -> Sequence[ControllerRouterHandler]:
    """Return Litestar's handlers of all endpoints."""
    return [*HANDLERS, *(handler for each in apis.mounted for handler in each.api.handlers)]


@frozen
class _Absent:
    """A plugin that does not load."""

    distribution: str
    paths: tuple[str, ...]
    """What its paths would begin with, as far as it is known."""
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"The endpoints of {self.distribution} are missing: {self.reason}. {self.remedy}"


def _absent(catalog: Catalog) -> list[_Absent]:
    return [
        _Absent(plugin.distribution, (), plugin.reason, plugin.remedy or plugin.set_aside[0].remedy)
        for plugin in catalog.aside
    ]


def _check_claims(offers: Sequence[Offer[Endpoints]]) -> None:
    claims = [(path, "inferno") for path in _paths(HANDLERS)]
    others = [(path, offer.distribution) for offer in offers for path in offer.item.paths]
    for i, (path, distribution) in enumerate(others):
        for other, owner in (*claims, *others[:i]):
            nested = is_under(other, path) or owner != "inferno" and is_under(path, other)
            if nested and owner != distribution:
                raise PluginError(
                    f"both {owner} and {distribution} have endpoints at {path}",
                    f"Run without one of them: --disable {distribution}.",
                )


def _api_of(offer: Offer[Endpoints], names: set[str]) -> Api:
    """Import an API, and check that it keeps to its paths. `names` are those of the bodies so far,
    which are the schemas' in the OpenAPI document."""
    api: Any = resolved(offer.item.api)
    if not isinstance(api, Api):
        raise PluginError(
            f"the endpoints {offer.item.name!r} are {api!r}", "They must be a server.api.Api."
        )
    starts = offer.item.paths
    for path in (*_paths(api.handlers), *(body.path for body in api.bodies)):
        if not any(is_under(path.partition("#")[0], start) for start in starts):
            raise PluginError(
                f"the endpoint {path} is none of its paths: {', '.join(starts)}",
                "Declare in `paths` what each begins with.",
            )
    if taken := names & {body.__name__ for body in api.bodies}:
        raise PluginError(
            f"another request body is called {' and '.join(sorted(taken))}", "Rename its class."
        )
    names |= {body.__name__ for body in api.bodies}
    return api


def _paths(handlers: Iterable[Any]) -> list[str]:
    """Return the paths of handlers of HTTP requests."""
    return [path for each in handlers if isinstance(each, HTTPRouteHandler) for path in each.paths]
