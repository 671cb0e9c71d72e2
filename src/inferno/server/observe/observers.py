"""What watches a server's requests: log lines, and traces if asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from inferno.server.observe import logs
from inferno.server.observe.record import Record


@contextmanager
def observe(
    form: logs.LogFormat = "text",
    level: str = "info",
    otlp_endpoint: str | None = None,
) -> Iterator[Callable[[Record], None]]:
    """Set up logs and traces; yield what an app calls with each request's record. Raises
    OptionError if traces are asked for and cannot be sent."""
    logs.set_up(form, level)
    tracer = None
    if otlp_endpoint:
        from inferno.server.observe.tracing import Tracer  # only then: it imports opentelemetry

        tracer = Tracer.to(otlp_endpoint)

    def ended(record: Record) -> None:
        logs.log_request(record)
        if tracer is not None:
            tracer.ended(record)

    try:
        yield ended
    finally:
        if tracer is not None:
            tracer.close()
