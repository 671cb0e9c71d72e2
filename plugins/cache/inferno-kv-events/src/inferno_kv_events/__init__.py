"""Events of the cache over ZeroMQ, in the form that routers read from vLLM, or to a file."""

from __future__ import annotations

from collections.abc import Callable

from inferno import hookimpl
from inferno.contracts import EventNeed, EventSink


@hookimpl
def inferno_event_sinks() -> list[EventSink]:
    return [
        EventSink(
            name="zmq",
            build="inferno_kv_events.zeromq:build",
            refuses=_takes("tcp", "ipc", "inproc"),
        ),
        EventSink(name="file", build="inferno_kv_events.lines:build", refuses=_takes("file")),
    ]


def _takes(*schemes: str) -> Callable[[EventNeed], str | None]:
    def refuses(need: EventNeed) -> str | None:
        scheme = need.url.partition("://")[0]
        takes = ", ".join(f"{each}://" for each in schemes)
        return None if scheme in schemes else f"it publishes to {takes}"

    return refuses
