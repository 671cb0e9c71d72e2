"""Traces: one span per request, in the client's trace if it has one."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from tests.server.server_fakes import FakeLLM

from inferno.errors import OptionError

pytest.importorskip("opentelemetry.sdk", reason="traces need the extra: pip install inferno[otel]")

from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from inferno.server.observe.tracing import Tracer

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "my secret prompt"}]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_span_of_the_clients_trace(client: Any, stream: bool) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    http = client(FakeLLM(), on_end=tracer.ended)
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{parent}-01"}
    body = {"messages": MESSAGES, "stream": stream, "max_tokens": 50, "temperature": 0.5}
    http.post(CHAT, json=body, headers=headers)
    http.get("/health")
    tracer.close()
    [span] = exporter.get_finished_spans()
    assert f"{span.context.trace_id:032x}" == trace
    assert span.parent is not None and f"{span.parent.span_id:016x}" == parent
    assert span.name == "chat fake"
    values = dict(span.attributes or {})
    assert values["gen_ai.request.model"] == "fake"
    assert values["gen_ai.operation.name"] == "chat"
    assert values["gen_ai.usage.output_tokens"] == 11
    assert int(str(values["gen_ai.usage.input_tokens"])) > 10
    assert values["gen_ai.response.finish_reasons"] == ("stop",)
    assert values["gen_ai.request.max_tokens"] == 50
    assert values["gen_ai.request.temperature"] == 0.5
    assert values["http.response.status_code"] == 200
    assert "secret" not in str(values)
    assert span.end_time is not None and span.start_time is not None
    assert span.end_time > span.start_time


def test_an_error_is_one_of_the_span(client: Any) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter)
    http = client(FakeLLM(alive=False), on_end=tracer.ended)
    http.post(CHAT, json={"messages": MESSAGES}, headers={"traceparent": "nonsense"})
    tracer.close()
    [span] = exporter.get_finished_spans()
    assert span.parent is None
    assert not span.status.is_ok
    assert (span.attributes or {})["error.type"] == "503"


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(OptionError, match="not the URL"):
        Tracer.to("localhost:4318")


def test_nothing_is_imported_without_an_endpoint() -> None:
    code = (
        "import sys\n"
        "from inferno.server.observe.observers import observe\n"
        "with observe() as on_end: assert callable(on_end)\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
