"""OpenTelemetry traces: one span per request, with the attributes that the conventions for
generative AI name. Importing this module imports opentelemetry."""

from __future__ import annotations

import time
from typing import Any, Self

from inferno import __version__
from inferno.errors import OptionError
from inferno.server.observe.logs import QUIET_PATHS
from inferno.server.observe.record import Record

try:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
    from opentelemetry.trace import SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:
    raise OptionError(
        f"traces need a package that is not installed: {error.name}",
        "Install it: pip install 'inferno[otel]'",
    ) from error

_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_PATH = "/v1/traces"


class Tracer:
    """Sends spans to a collector, in batches and in its own thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        resource = Resource.create({"service.name": "inferno", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("inferno", __version__)
        self._propagator = TraceContextTextMapPropagator()

    @classmethod
    def to(cls, endpoint: str) -> Self:
        """Send spans to a collector's HTTP endpoint: its base URL, or that of traces."""
        if not endpoint.startswith(("http://", "https://")):
            raise OptionError(
                f"{endpoint!r} is not the URL of a collector", "Write it as http://localhost:4318."
            )
        url = endpoint.rstrip("/")
        return cls(OTLPSpanExporter(url if url.endswith(_PATH) else url + _PATH))

    def ended(self, record: Record) -> None:
        """Make the span of a request whose response has been sent. It belongs to the client's
        trace, if the request has a `traceparent`."""
        if record.path in QUIET_PATHS:
            return
        end = time.time_ns()
        parent = self._propagator.extract(record.trace_headers)
        span = self._tracer.start_span(
            _name(record),
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes(record),
            start_time=end - int(record.seconds * 1e9),
        )
        if record.status is None or record.status >= 500:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(end)

    def close(self) -> None:
        """Send what is left, and stop."""
        self._provider.shutdown()


def attributes(record: Record) -> dict[str, Any]:
    """A request's attributes, without prompts and keys."""
    values: dict[str, Any] = {
        "http.request.method": record.method,
        "url.path": record.path,
        "http.response.status_code": record.status,
        "error.type": str(record.status) if (record.status or 500) >= 500 else None,
        "inferno.request_id": record.id,
        "inferno.key": record.key_name or None,
        "gen_ai.operation.name": _OPERATIONS.get(record.path),
        "gen_ai.request.model": record.model,
    }
    if record.prompt_tokens:
        values |= {
            "gen_ai.provider.name": "inferno",
            "gen_ai.response.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
            "gen_ai.usage.output_tokens": record.completion_tokens,
            "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
            "gen_ai.response.finish_reasons": tuple(record.finish_reasons),
            "gen_ai.server.time_to_first_token": record.first_token,
            **record.attributes,
        }
    return {name: value for name, value in values.items() if value is not None}


def _name(record: Record) -> str:
    operation = _OPERATIONS.get(record.path)
    if operation is not None and record.model is not None:
        return f"{operation} {record.model}"
    return record.method if record.status == 404 else f"{record.method} {record.path}"
