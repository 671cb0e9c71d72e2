"""The OpenAPI document: what Litestar derives from the handlers, and what it cannot know."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from litestar import Request
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin

import inferno
from inferno.contracts import RequestField
from inferno.request.sampling_params import parameters
from inferno.server.fields.support import Field
from inferno.server.http.apis import Apis

_ANYWHERE = {
    "400": "Invalid request, or a feature that this server does not support",
    "401": "API key missing or wrong",
    "403": "The API key or the host name is not allowed here",
    "404": "The model or the thing named does not exist",
    "429": "Too many requests, or the API key's limit is reached",
    "503": "The engine is restarting, or the server is shutting down",
}
_WITH_BODY = {
    "408": "The body did not arrive in time",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "504": "The answer took longer than the request or the server allows",
}
_STREAM_TYPE, _ONLY_OPENAI = "text/event-stream", Apis()


def openapi_config(bodies: Sequence[type[Any]], apis: Apis) -> OpenAPIConfig:
    """Return the configuration of a document at /schema/openapi.json. `bodies` are the classes of
    request bodies, whose `rows` describe their fields; `apis` know how each streams."""
    by_name = {body.__name__: body for body in bodies}
    return OpenAPIConfig(
        title="inferno",
        version=inferno.__version__,
        path="/schema",
        render_plugins=[_Completed(by_name, apis)],
    )


class _Completed(JsonRenderPlugin):
    def __init__(self, bodies: Mapping[str, type[Any]], apis: Apis) -> None:
        super().__init__()
        self._bodies, self._apis = bodies, apis
        self._document: dict[str, Any] | None = None
        self._plugin_fields: Sequence[RequestField] = ()

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        # Plugins are those of the models that are loaded now.
        plugin_fields = tuple(request.app.state.models.request_fields.values())
        if self._document is None or plugin_fields != self._plugin_fields:
            self._document = complete(openapi_schema, self._bodies, plugin_fields, self._apis)
            self._plugin_fields = plugin_fields
        return super().render(request, self._document)


def complete(
    document: Mapping[str, Any],
    bodies: Mapping[str, type[Any]],
    plugin_fields: Sequence[RequestField] = (),
    apis: Apis = _ONLY_OPENAI,
) -> dict[str, Any]:
    """Return the document with every operation's errors and streams, with the notes and bounds of
    each body's fields, and with the fields that plugins understand. `bodies` are the classes by
    name."""
    whole: dict[str, Any] = copy.deepcopy(dict(document))
    schemas = whole.get("components", {}).get("schemas", {})
    for node in _nodes(whole):
        # Several alternatives may match: an empty list is one of strings and of numbers.
        if "oneOf" in node and "discriminator" not in node:
            node["anyOf"] = node.pop("oneOf")
    for name, body in bodies.items():
        if name in schemas:
            properties = schemas[name].setdefault("properties", {})
            for field in plugin_fields:
                if body.path in field.endpoints:
                    properties.setdefault(field.name, _plugin_schema(field))
            _describe(properties, body.rows)
    for path, operations in whole.get("paths", {}).items():
        for operation in operations.values():
            api = apis.of(path)
            stream_type = api.stream_type if api is not None else _STREAM_TYPE
            _answers(operation, schemas, stream_type)
    return whole


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
    if isinstance(node, dict | list):
        for child in list(node.values() if isinstance(node, dict) else node):
            yield from _nodes(child)


def _plugin_schema(field: RequestField) -> dict[str, Any]:
    prefix = {"integer": "", "number": "", "string": "Length", "array": "Items"}.get(field.type)
    limits = {
        f"{side}{prefix}" if prefix else f"{side}imum": int(limit) if prefix else limit
        for side, limit in (("min", field.minimum), ("max", field.maximum))
        if prefix is not None and limit is not None
    }
    kind: dict[str, Any] = {
        "type": field.type,
        **({"items": {}} if field.type == "array" else {}),
        **limits,
    }
    return {"anyOf": [kind, {"type": "null"}], "description": field.help}


def _describe(properties: dict[str, Any], rows: Sequence[Field]) -> None:
    notes = {row.name: row.note for row in rows}
    bounds = {p.name: p.bounds for p in parameters() if p.in_body and p.bounds}
    for name, schema in properties.items():
        if name in notes:
            schema.setdefault("description", notes[name])
        low, high = bounds.get(name, (-math.inf, math.inf))
        limits = {"minimum": low, "maximum": high}
        for branch in schema.get("anyOf", [schema]):
            if branch.get("type") in ("integer", "number"):
                branch |= {k: v for k, v in limits.items() if math.isfinite(v)}


def _answers(operation: dict[str, Any], schemas: Mapping[str, Any], stream_type: str) -> None:
    responses = operation["responses"]
    content = operation.get("requestBody", {}).get("content", {})
    body = content.get("application/json", {})
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorBody"}}}
    declared = responses.get("400", {}).get("content", {})
    if {"$ref", "anyOf"} & set(declared.get("application/json", {}).get("schema", {})):
        error = declared
    else:  # Litestar's own kind of error, which no handler here sends
        responses.pop("400", None)
    for status, text in {**_ANYWHERE, **(_WITH_BODY if content else {})}.items():
        responses.setdefault(status, {"description": text, "content": error})
    name = body.get("schema", {}).get("$ref", "").rpartition("/")[2]
    if "stream" in schemas.get(name, {}).get("properties", {}) and "200" in responses:
        responses["200"].setdefault("content", {})[stream_type] = {"schema": {}}
