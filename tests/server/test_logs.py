"""Log lines: one per request, as text or JSON, without prompts and keys."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.server_fakes import FakeLLM

from inferno.server.observe import logs
from inferno.server.observe.record import Record

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "my secret prompt"}]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged, until the test ends."""
    stream = io.StringIO()
    before = {n: logging.getLogger(n) for n in ("inferno", "uvicorn", "asyncio")}
    state = {n: (x.handlers[:], x.level, x.propagate) for n, x in before.items()}
    yield stream
    for name, (handlers, level, propagate) in state.items():
        logger = before[name]
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_a_request_is_one_line_of_json(client: Any, lines: io.StringIO) -> None:
    logs.set_up("json", "info", lines)
    http = client(FakeLLM(), on_end=logs.log_request)
    body = {"messages": MESSAGES, "model": "fake", "stream": True}
    answer = http.post(CHAT, json=body, headers={"x-request-id": "r-1"})
    assert answer.status_code == 200
    [line] = read(lines)
    assert line["message"] == f"POST {CHAT}"
    assert (line["level"], line["logger"]) == ("info", "inferno.access")
    assert (line["request_id"], line["status"], line["model"]) == ("r-1", 200, "fake")
    assert (line["completion_tokens"], line["cached_tokens"]) == (11, 2)
    assert (line["finish_reason"], line["stream"]) == ("stop", True)
    assert 0 < line["ttft"] <= line["duration"]
    assert line["prompt_tokens"] > len("my secret prompt")
    assert "secret" not in lines.getvalue()


def test_prompts_are_logged_if_asked_for(client: Any, lines: io.StringIO) -> None:
    logs.set_up("json", "info", lines)
    http = client(FakeLLM(), on_end=logs.log_request, log_prompts=True)
    http.post(CHAT, json={"messages": MESSAGES})
    [line] = read(lines)
    assert "my secret prompt" in line["prompts"][0]


def test_an_error_has_its_code_and_not_its_text(client: Any, lines: io.StringIO) -> None:
    logs.set_up("json", "info", lines)
    http = client(FakeLLM(), on_end=logs.log_request)
    http.post(CHAT, json={"messages": "my secret prompt"})
    http.post(CHAT, json={"messages": MESSAGES, "model": "other"})
    http.get("/nowhere")
    entries = read(lines)
    assert [line["status"] for line in entries] == [400, 404, 404]
    assert entries[1]["error"] == "model_not_found"
    assert "secret" not in lines.getvalue()


def test_probes_are_quiet_unless_they_fail(client: Any, lines: io.StringIO) -> None:
    logs.set_up("text", "info", lines)
    llm = FakeLLM()
    http = client(llm, on_end=logs.log_request)
    http.get("/health")
    http.get("/metrics")
    assert lines.getvalue() == ""
    llm.alive = False
    http.get("/health")
    assert "GET /health request_id=" in lines.getvalue()
    assert "status=503" in lines.getvalue()


def test_other_lines_name_the_request_and_uvicorn_speaks_the_same_format(
    client: Any, lines: io.StringIO
) -> None:
    logs.set_up("json", "info", lines)
    http = client(FakeLLM(fails_after=0))
    http.post(CHAT, json={"messages": MESSAGES}, headers={"x-request-id": "r-2"})
    logging.getLogger("uvicorn.error").warning("from uvicorn")
    broken, uvicorn = read(lines)
    assert broken["request_id"] == "r-2"
    assert "ZeroDivisionError" in broken["exception"]
    assert uvicorn["message"] == "from uvicorn"


@given(st.text())
def test_a_path_cannot_forge_a_line(path: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.TextFormatter())
    logger = logging.getLogger("inferno.access")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        logs.log_request(Record("id", "GET", f"/{path}", status=404))
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
    assert len(stream.getvalue().splitlines()) == 1


@given(st.text())
def test_a_line_of_text_is_one_line_whatever_it_says(value: str) -> None:
    record = logging.LogRecord("inferno", logging.INFO, "", 0, "%s", ("m",), None)
    record.inferno = {"key": value}
    assert len(logs.TextFormatter().format(record).splitlines()) == 1
    assert json.loads(logs.JsonFormatter().format(record))["key"] == value
