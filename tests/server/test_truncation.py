"""Conversations that outgrow the context, where the request allows to drop their oldest turns."""

from __future__ import annotations

from typing import Any

import pytest
from tests.server.server_fakes import FakeLLM

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
LONG = [
    {"role": "system", "content": "Be brief."},
    *[
        {"role": role, "content": f"{role} says {i} " + "x" * 20}
        for i in range(9)
        for role in ("user", "assistant")
    ],
    {"role": "user", "content": "last"},
]


def post(client: Any, llm: FakeLLM, path: str, status: int = 200, **body: Any) -> Any:
    response = client(llm).post(path, json=body)
    assert response.status_code == status, response.text
    return response.json()


@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (RESPONSES, "input")])
def test_the_oldest_turns_are_dropped_if_the_request_says_so(
    client: Any, path: str, name: str
) -> None:
    llm = FakeLLM(max_model_len=500)
    body: dict[str, Any] = {name: LONG, "truncation": "auto"}
    answer = post(client, llm, path, **body)
    assert answer["x_inferno"]["ignored"][0] == f"{name}[1]"
    assert "Be brief." in llm.prompts[-1] and "last" in llm.prompts[-1]
    assert "user says 0" not in llm.prompts[-1] and "user says 8" in llm.prompts[-1]
    assert len(llm.prompts[-1]) <= 375, "a quarter of the context is left for the answer"
    assert answer.get("truncation", "auto") == "auto"


@pytest.mark.parametrize(("path", "name"), [(CHAT, "messages"), (RESPONSES, "input")])
@pytest.mark.parametrize("more", [{}, {"truncation": "disabled"}])
def test_else_they_are_a_400(client: Any, path: str, name: str, more: Any) -> None:
    error = post(client, FakeLLM(max_model_len=500), path, 400, **{name: LONG}, **more)["error"]
    assert error["code"] == "context_length_exceeded"


def test_a_conversation_that_fits_stays_whole(client: Any) -> None:
    answer = post(client, FakeLLM(), CHAT, messages=LONG, truncation="auto")
    assert "x_inferno" not in answer


def test_a_last_turn_may_take_the_room_of_the_answer_but_must_fit(client: Any) -> None:
    llm = FakeLLM(max_model_len=500)
    [system, *_] = LONG
    body: dict[str, Any] = {"truncation": "auto", "max_tokens": 250}
    post(
        client, llm, CHAT, messages=[*LONG, system | {"role": "user", "content": "x" * 300}], **body
    )
    assert "x" * 300 in llm.prompts[-1]
    long = {"role": "user", "content": "x" * 490}
    error = post(client, llm, CHAT, 400, messages=[*LONG, long], **body)["error"]
    assert error["code"] == "context_length_exceeded"


def test_other_words_are_refused(client: Any) -> None:
    error = post(client, FakeLLM(), CHAT, 400, messages=LONG, truncation="middle")["error"]
    assert error["param"] == "truncation" and "auto, disabled" in error["message"]
