"""Files of requests, through an app over a fake model."""

from __future__ import annotations

import asyncio
import errno
import io
import json
from pathlib import Path
from typing import Any

import pytest
from tests.server.server_fakes import FakeLLM

from inferno.errors import OptionError, WriteError
from inferno.server import ServerOptions, create_app
from inferno.server.batches.offline import Done, Summary, read_lines, resume, run, started

CHAT = "/v1/chat/completions"
MESSAGES = {"messages": [{"role": "user", "content": "hi"}]}


def request(custom_id: Any, url: Any = CHAT, body: Any = MESSAGES, **more: Any) -> bytes:
    line = {"custom_id": custom_id, "method": "POST", "url": url, "body": body, **more}
    return json.dumps(line).encode() + b"\n"


def answers(
    *lines: bytes, llm: FakeLLM | None = None, done: Done | None = None, concurrency: int = 2
) -> tuple[list[Any], Summary]:
    app = create_app(llm or FakeLLM(), ServerOptions(max_waiting=None, page=False))  # type: ignore[arg-type]
    output, summary = io.BytesIO(), Summary()

    async def work() -> None:
        async with started(app):
            entries = read_lines(lines, done or Done())
            await run(app, entries, output, summary, concurrency=concurrency)

    asyncio.run(work())
    return [json.loads(line) for line in output.getvalue().splitlines()], summary


def test_every_endpoint_answers_as_over_http() -> None:
    lines = [
        request("a"),
        request("b", "/v1/completions", {"prompt": "hi", "max_tokens": 3}),
        request("c", "/v1/embeddings", {"input": "hi"}),
    ]
    results, summary = answers(*lines)
    by_id = {each["custom_id"]: each for each in results}
    assert {each["response"]["status_code"] for each in results} == {200}
    assert all(each["error"] is None and each["id"].startswith("batch_req_") for each in results)
    assert all(each["response"]["request_id"] for each in results)
    chat = by_id["a"]["response"]["body"]
    assert chat["choices"][0]["message"]["content"] == "Hello there"
    assert by_id["b"]["response"]["body"]["choices"][0]["text"] == "Hel"
    assert len(by_id["c"]["response"]["body"]["data"]) == 1
    assert (summary.answered, summary.failed, summary.skipped, summary.done) == (3, 0, 0, 3)
    assert summary.completion_tokens == 11 + 3 and summary.prompt_tokens > 4


@pytest.mark.parametrize(
    ("line", "custom_id", "words"),
    [
        (b"{\n", None, "line 1: it is not valid JSON"),
        (b"[1]\n", None, "not a JSON object"),
        (b"\xff\n", None, "not valid JSON"),
        (b"[" * 3000 + b"\n", None, "not valid JSON"),
        (request(None), None, "no custom_id"),
        (request(7), None, "no custom_id"),
        (request("a", method="GET"), "a", "not POST"),
        (request("a", url="/v1/nothing"), "a", "url is not one of"),
        (request("a", url=3), "a", "url is not one of"),
        (request("a", body=[]), "a", "not an object"),
        (request("a", body={**MESSAGES, "stream": True}), "a", "leave stream out"),
        (request("a", body={"messages": 3}), "a", "messages"),
        (request("a", body={**MESSAGES, "model": "other"}), "a", "does not exist"),
    ],
)
def test_a_bad_line_is_an_error_and_not_the_end(line: bytes, custom_id: Any, words: str) -> None:
    results, summary = answers(line, request("good"), concurrency=1)
    assert [each["custom_id"] for each in results] == [custom_id, "good"]
    assert words in results[0]["error"]["message"]
    assert results[1]["error"] is None
    assert (summary.answered, summary.failed) == (1, 1)


def test_an_id_answers_once() -> None:
    results, _ = answers(request("a"), request("a"), b"\n", request("b"), concurrency=1)
    assert [each["custom_id"] for each in results] == ["a", "a", "b"]
    assert "earlier line" in results[1]["error"]["message"]


def test_what_the_output_has_is_skipped(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    lines = [request("a"), b"bad\n", request("b"), b"worse\n", request("a")]
    first, _ = answers(*lines[:2], concurrency=1)
    complete = b"".join(json.dumps(each).encode() + b"\n" for each in first)
    output.write_bytes(complete + b'{"custom_id": "b", "respo')
    done = resume(output)
    assert (done.ids, done.nameless) == ({"a"}, 1)
    assert output.read_bytes() == complete, "half a line is cut off"
    llm = FakeLLM()
    results, summary = answers(*lines, llm=llm, done=done, concurrency=1)
    assert [each["custom_id"] for each in results] == ["b", None]
    assert (summary.skipped, len(llm.seen)) == (3, 1)


def test_another_kind_of_file_is_not_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "out.jsonl"
    for content in ("hello\n", "[1]\n", '{"id": 1}\n'):
        output.write_text(content)
        with pytest.raises(OptionError, match="another file"):
            resume(output)
        assert output.read_text() == content
    assert resume(tmp_path / "none") == Done()


def test_an_output_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="no/out.jsonl cannot be written: No such file"):
        resume(tmp_path / "no" / "out.jsonl")


def test_a_full_disk_is_one_error_for_all_requests() -> None:
    class Full(io.BytesIO):
        name = "out.jsonl"

        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    app = create_app(FakeLLM(), ServerOptions(max_waiting=None, page=False))  # type: ignore[arg-type]

    async def work() -> None:
        async with started(app):
            lines = read_lines([request("a"), request("b")], Done())
            await run(app, lines, Full(), Summary(), concurrency=2)

    with pytest.raises(WriteError, match="out.jsonl cannot be written: No space left"):
        asyncio.run(work())


def test_as_many_run_at_once_as_wished() -> None:
    running, most = 0, 0

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert (await receive())["type"] == "http.request"
        await asyncio.sleep(0.01)
        running -= 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    shown: list[int] = []
    lines = read_lines([request(str(i)) for i in range(20)], Done())
    output, summary = io.BytesIO(), Summary()
    work = run(app, lines, output, summary, concurrency=3, progress=lambda s: shown.append(s.done))
    asyncio.run(work)
    assert most == 3 and shown == list(range(1, 21))


def test_an_engine_that_dies_fails_its_requests_only() -> None:
    results, summary = answers(request("a"), llm=FakeLLM(dies_after=1))
    assert results[0]["response"]["status_code"] == 503
    assert results[0]["error"]["code"] == "engine_restarting"
    assert summary.failed == 1
