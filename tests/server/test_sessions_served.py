"""Sessions of a server, over HTTP: what is kept of them, for whom, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.server.conftest import Live
from tests.server.server_fakes import FakeLLM

from inferno.contracts import SessionHint
from inferno.llm import AsyncLLM

BLOCK = 16
PROMPT = [5 + 7 * i % 90 for i in range(70)]
MESSAGES = [{"role": "user", "content": "Tell me of prefix caches. " * 16}]
ALICE, BOB = ({"Authorization": f"Bearer {name}-key"} for name in ("alice", "bob"))


@pytest.fixture(scope="module")
def server() -> Iterator[httpx.Client]:
    llm = AsyncLLM("demo", dtype="float32", max_model_len=512, max_num_seqs=4, session_ttl=900)
    server = Live(llm, api_keys=["alice-key", "bob-key"])  # type: ignore[arg-type]
    yield httpx.Client(base_url=server.url, timeout=60, headers=ALICE)
    server.stop()


def complete(server: httpx.Client, prompt: list[int], **more: Any) -> Any:
    headers = more.pop("headers", ALICE)
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    response = server.post("/v1/completions", json={**body, **more}, headers=headers)
    assert response.status_code == 200, response.text
    return response.json()


def kept(server: httpx.Client, name: str, headers: Any = ALICE) -> Any:
    response = server.get(f"/v1/sessions/{name}", headers=headers)
    return response.json() if response.status_code == 200 else None


def test_a_session_is_kept_and_changes_no_answer(server: httpx.Client) -> None:
    plain = complete(server, PROMPT)["choices"]
    assert complete(server, PROMPT, session_id="a", cache_salt="x")["choices"] == plain
    assert complete(server, PROMPT, session_id="a", cache_salt="x")["choices"] == plain
    session = kept(server, "a")
    assert session["tokens"] == session["pinned_tokens"] == 64 and session["model"] == "demo"
    assert session["held_tokens"] == {"memory": 64, "host": 0, "disk": 0}
    assert 0 < session["expires_in"] <= 900 and session["quota_tokens"] == 512
    assert session["id"] in [each["id"] for each in server.get("/v1/sessions").json()["data"]]


def test_a_newer_prompt_takes_the_place_of_the_older_one(server: httpx.Client) -> None:
    complete(server, PROMPT * 3, session_id="newer")
    assert kept(server, "newer")["tokens"] == 208
    complete(server, PROMPT, session_id="newer", session_ttl=5)
    assert kept(server, "newer")["tokens"] == 64 and kept(server, "newer")["expires_in"] <= 5


def test_a_deleted_session_is_computed_again_where_nobody_else_has_it(
    server: httpx.Client,
) -> None:
    prompt, salt = [*PROMPT, *range(5, 45)], {"cache_salt": "deleted"}
    complete(server, prompt, session_id="child", **salt)
    complete(server, PROMPT, session_id="parent", **salt)
    answer = server.delete("/v1/sessions/child")
    assert answer.json() == {"id": "child", "object": "session", "deleted": True}
    assert kept(server, "child") is None and server.delete("/v1/sessions/child").status_code == 404
    usage = complete(server, prompt, **salt)["usage"]["prompt_tokens_details"]
    assert usage["cached_tokens"] == 64, "what it shared with another is there, the rest is not"


def test_keys_neither_see_nor_end_each_others_sessions(server: httpx.Client) -> None:
    complete(server, PROMPT, session_id="shared name")
    complete(server, PROMPT * 2, session_id="shared name", headers=BOB)
    assert kept(server, "shared name")["tokens"] == 64
    assert kept(server, "shared name", BOB)["tokens"] == 144
    complete(server, PROMPT, session_id="of alice")
    assert kept(server, "of alice", BOB) is None
    assert server.delete("/v1/sessions/of alice", headers=BOB).status_code == 404
    listed = server.get("/v1/sessions", headers=BOB).json()["data"]
    assert [each["id"] for each in listed] == ["shared name"]
    assert server.delete("/v1/sessions/shared name", headers=BOB).status_code == 200
    assert kept(server, "of alice") and kept(server, "shared name")
    assert server.get("/v1/sessions", headers={"Authorization": "Bearer no"}).status_code == 401


@pytest.mark.parametrize(
    ("body", "headers", "name"),
    [
        ({"prompt_cache_key": "by key"}, {}, "by key"),
        ({"session_id": "by id", "prompt_cache_key": "no"}, {}, "by id"),
        ({}, {"session-id": "by-header"}, "by-header"),
        ({}, {"x-claude-code-session-id": "of-an-agent"}, "of-an-agent"),
        ({"session_id": "a/b c\0%"}, {}, "a/b%20c%00%25"),
        ({"session_id": "é中"}, {}, "é中"),
    ],
)
def test_a_session_is_named_in_the_body_or_a_header(
    server: httpx.Client, body: Any, headers: Any, name: str
) -> None:
    complete(server, PROMPT, **body, headers={**ALICE, **headers})
    assert kept(server, name)["tokens"] == 64
    chat = {"messages": MESSAGES, "max_tokens": 4, **body}
    assert server.post("/v1/chat/completions", json=chat, headers=headers).status_code == 200
    assert kept(server, name)["tokens"] > 64
    response = {"input": "Hi. " * 30, "max_output_tokens": 4, **body}
    assert server.post("/v1/responses", json=response, headers=headers).status_code == 200
    assert 0 < kept(server, name)["tokens"]


def test_a_name_of_any_length_is_kept_short(server: httpx.Client) -> None:
    name = "x" * 100_000
    complete(server, PROMPT, session_id=name)
    listed = server.get("/v1/sessions", params={"limit": 1}).json()["data"]
    assert len(listed) == 1 and len(listed[0]["id"]) == 64
    assert kept(server, name[:5000]) is None


@pytest.mark.parametrize("ttl", [0, -1, 1e9])
def test_a_wrong_time_is_a_400(server: httpx.Client, ttl: float) -> None:
    body = {"prompt": PROMPT, "session_id": "a", "session_ttl": ttl}
    response = server.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "session_ttl"


@pytest.mark.parametrize("limit", ["0", "101", "x"])
def test_a_wrong_limit_is_a_400(server: httpx.Client, limit: str) -> None:
    assert server.get("/v1/sessions", params={"limit": limit}).status_code == 400


def message(server: httpx.Client, marked: Any, more: Any = (), **fields: Any) -> httpx.Response:
    text: dict[str, Any] = {"type": "text", "text": "Tell me of caches. " * 10}
    first = {"role": "user", "content": [text | ({"cache_control": marked} if marked else {})]}
    body = {"max_tokens": 4, "messages": [first, *more], **fields}
    return server.post("/v1/messages", json=body)


def test_anthropics_marks_keep_a_conversation_for_their_time(server: httpx.Client) -> None:
    def of_marks() -> list[Any]:
        listed = server.get("/v1/sessions", params={"limit": 100}).json()["data"]
        return [each for each in listed if each["id"].startswith("cache_control-")]

    assert message(server, None).status_code == 200 and not of_marks()
    assert message(server, {"type": "ephemeral"}).status_code == 200
    [session] = of_marks()
    assert 0 < session["expires_in"] <= 300
    turns = [{"role": "assistant", "content": "Well."}, {"role": "user", "content": "More."}]
    answered = message(server, None, turns, cache_control={"type": "ephemeral", "ttl": "1h"})
    assert answered.status_code == 200 and "cache_control" not in answered.text
    [again] = of_marks()
    assert again["id"] == session["id"] and 300 < again["expires_in"] <= 3600
    named = message(server, {"type": "ephemeral", "ttl": "1h"}, session_id="mine")
    assert named.status_code == 200 and len(of_marks()) == 1
    assert 900 < kept(server, "mine")["expires_in"] <= 3600


@pytest.mark.parametrize("mark", [{"ttl": "2h"}, {"ttl": 5}, "ephemeral", [1]])
def test_a_wrong_mark_is_named(server: httpx.Client, mark: Any) -> None:
    response = message(server, mark)
    assert response.status_code == 400
    assert "messages[0].content[0].cache_control" in response.text


def test_metrics_count_what_is_pinned(server: httpx.Client) -> None:
    complete(server, PROMPT, session_id="counted")
    lines = dict(
        line.split('{model_name="demo"} ')
        for line in server.get("/metrics").text.splitlines()
        if line.startswith("inferno_session")
    )
    assert float(lines["inferno_sessions"]) >= 1
    assert float(lines["inferno_session_blocks"]) >= 64 / BLOCK


@pytest.mark.slow
def test_without_a_keeper_none_reaches_the_engine(client: Any) -> None:
    llm = FakeLLM()
    start, keeps = client(llm, only=()), SimpleNamespace(**{**vars(llm.plan), "sessions": object()})
    body = {"prompt": [1, 2], "session_id": "a", "session_ttl": 5}
    assert start.post("/v1/completions", json=body).status_code == 200
    assert start.get("/v1/sessions").json()["data"] == []
    llm.plan = keeps
    assert start.post("/v1/completions", json=body).status_code == 200
    assert llm.sessions_seen == [None, SessionHint("a", "", 5)]
    assert start.get("/v1/usage?session_id=a").json()["requests"] == 2
