"""What the prefix cache held of a request, and usage: as clients see it."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.fake_engine import TOKENIZER
from tests.server.server_fakes import FakeLLM
from tests.server.test_replay import MERGING

from inferno.server.chat.rendered import Rendered
from inferno.server.observe.prompt_history import History, Seen
from inferno.server.observe.prompt_history import explain as compared

Start = Callable[..., TestClient[Any]]
BLOCK = 4


def seen(id: str, text: str, *, cached: int | None = 0, **options: Any) -> Seen:
    fields = {"request_id": f"x-{id}", "owner": "", "salt": ""} | options
    ids = array("I", list(text.encode()))
    return Seen(id=id, prompt_len=len(ids), token_ids=ids, num_cached=cached, **fields)


def history(*requests: Seen, **options: Any) -> History:
    made = History(**options)
    for each in requests:
        made.add(each)
    return made


def explain(made: History, request: Seen) -> dict[str, Any]:
    return compared(request, made.before(request), TOKENIZER, BLOCK)


# --- messages -------------------------------------------------------------------------------------


def test_positions_belong_to_messages() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": " be brief "},
        {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
        {"role": "assistant", "content": None},
        {"role": "user", "content": "brief"},
    ]
    text = "[system]be brief[user]xy[assistant][user]brief[assistant]"
    rendered = Rendered.of(text, messages)
    assert [(m.index, m.role, text[: m.end][-5:]) for m in rendered.marks] == [
        (0, "system", "brief"),
        (1, "user", "er]xy"),
        (3, "user", "brief"),
    ]
    owners = [rendered.message_at(i) for i in (0, text.index("[user]"), len(text) - 1)]
    assert [m and m.index for m in owners] == [0, 1, None]


# --- the comparison -------------------------------------------------------------------------------


def test_the_first_different_token_is_shown_in_both() -> None:
    messages = [{"role": "user", "content": "same day A"}, {"role": "user", "content": "end"}]
    text = "[u]same day A[u]end"
    old = seen("1", text.replace("day A", "day B"))
    new = seen("2", text, cached=12, rendered=Rendered.of(text, messages))
    body = explain(history(seen("0", "zzz"), old, new), new)
    assert body["closest"]["request"] == "1"
    assert body["closest"]["common_tokens"] == body["first_difference"]["position"] == 12
    here, before = body["first_difference"]["here"], body["first_difference"]["before"]
    assert (here["token"], before["token"]) == ("A", "B")
    assert here["message"] == "messages[0] (user)"
    assert here["context"] == {"before": "[u]same day ", "after": "A[u]end"}
    assert before["context"]["after"] == "B[u]end"
    assert body["reason"] == "All before the first different token was cached, in whole blocks."


@pytest.mark.parametrize(
    ("old", "new", "options", "words"),
    [
        ("abcdefgh", "abcdefghij", {"cached": 8}, "All that the earlier request has in common"),
        ("abcdefgh", "abcdefghij", {"cached": 4}, "4 more tokens"),
        ("abcdefgh", "abcdefghij", {"cached": 4}, "not in any tier"),
        ("abcdefgh", "abcdefghij", {"cached": 0, "salt": "s"}, "another cache_salt"),
        ("abcdefgh", "abcxefgh", {"cached": 0}, "None of the 1 earlier"),
        ("abcdefgh", "abcxefgh", {"cached": 4}, "4 tokens were cached by others"),
        ("abcdefgh", "abcdefgh", {"cached": 4}, "All that the earlier"),
        ("abcdefgh", "abcdefgh", {"cached": None}, "no token yet"),
        ("zzzz", "abcd", {"cached": 0}, "None of the 1 earlier"),
    ],
)
def test_the_reason_is_a_sentence(old: str, new: str, options: Any, words: str) -> None:
    request = seen("2", new, **options)
    assert words in explain(history(seen("1", old), request), request)["reason"]


def test_the_tiers_that_tokens_came_from_are_named() -> None:
    request = seen("2", "abcdefgh", cached=6)
    request.num_host, request.num_disk = 3, 2
    body = explain(history(seen("1", "abcdefgh"), request), request)
    assert body["cached_tokens_details"] == {"memory": 1, "host": 3, "disk": 2}
    assert body["reason"].endswith(
        "Of the cached tokens, 3 from host memory and 2 from disk were loaded."
    )
    request.num_host, request.num_remote = 1, 3
    body = explain(history(seen("1", "abcdefgh"), request), request)
    assert body["cached_tokens_details"] == {"memory": 0, "host": 1, "disk": 2, "remote": 3}
    assert body["reason"].endswith(
        "1 from host memory, 2 from disk and 3 from another instance were loaded."
    )


def test_the_output_of_the_earlier_request_is_part_of_it() -> None:
    old, new = seen("1", "abcd"), seen("2", "abcdefXh", cached=4)
    made = history(old, new)
    made.ended(old, list(b"efgh"))
    difference = explain(made, new)["first_difference"]
    assert difference["position"] == 6
    assert difference["before"]["message"] == "the output"
    assert (difference["here"]["token"], difference["before"]["token"]) == ("X", "g")


def test_only_earlier_requests_of_the_same_owner_are_compared() -> None:
    other, new, later = (
        seen("1", "abcdefgh", owner="other"),
        seen("2", "abcdefgh", owner="own", cached=4),
        seen("3", "abcdefgh", owner="own"),
    )
    body = explain(history(other, new, later), new)
    assert (body["compared"], body["closest"]) == (0, None)


def test_requests_are_found_by_their_answers_id_and_only_by_their_owner() -> None:
    made = history(seen("1", "a", owner="own"), seen("2", "b", owner="other"))
    for name in ("1", "chatcmpl-1", "resp_1", "x-1"):
        entry = made.find(name, "own")
        assert entry is not None and entry.id == "1"
    assert made.find("2", "own") is None


def test_the_history_is_bounded() -> None:
    made = History(limit=3)
    for i in range(9):
        made.add(seen(str(i), "a"))
    assert [s.id for s in made._seen.values()] == ["6", "7", "8"]
    made = History(max_bytes=3000)
    for i in range(9):
        made.add(seen(str(i), "a" * 200))
    assert [s.id for s in made._seen.values()] == ["7", "8"]
    assert made._nbytes == sum(s.nbytes for s in made._seen.values())
    made.ended(made._seen["8"], range(600))
    assert list(made._seen) == ["8"], "an output counts too"
    made = History(limit=0)
    made.add(seen("1", "a"))
    assert made.find("1", "") is None


# --- over HTTP ------------------------------------------------------------------------------------

USER = {"role": "user", "content": "What is a heap?"}


def chat(start: TestClient[Any], *messages: Any, **options: Any) -> Any:
    body = {"messages": list(messages), **options.pop("body", {})}
    return start.post("/v1/chat/completions", json=body, **options)


def test_a_miss_is_explained(client: Start) -> None:
    start = client()
    chat(start, {"role": "system", "content": "Today is Monday."}, USER)
    answer = chat(start, {"role": "system", "content": "Today is Tuesday."}, USER).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    body = start.get(f"/v1/debug/cache/{answer['id']}").json()
    assert body["model"] == "fake" and body["cached_tokens"] == 2
    difference = body["first_difference"]
    assert difference["here"]["token"] == "T" and difference["before"]["token"] == "M"
    assert difference["here"]["message"] == "messages[0] (system)"
    assert "2 tokens were cached by others" not in body["reason"]


def test_a_streamed_request_is_explained_by_its_header(client: Start) -> None:
    start = client()
    answer = chat(start, USER, body={"stream": True}, headers={"x-request-id": "mine"})
    assert answer.status_code == 200
    assert start.get("/v1/debug/cache/mine").json()["compared"] == 0


def keys(*names: str) -> list[dict[str, Any]]:
    """The keyword arguments of requests with these keys."""
    return [{"headers": {"Authorization": f"Bearer {name}"}} for name in names]


def test_prompts_of_other_keys_are_not_shown(client: Start) -> None:
    start = client(api_keys=["one", "two"])
    one, two = keys("one", "two")
    first = chat(start, USER, **one).json()["id"]
    second = chat(start, USER, **two).json()["id"]
    assert start.get(f"/v1/debug/cache/{first}", **two).status_code == 404
    body = start.get(f"/v1/debug/cache/{second}", **two).json()
    assert (body["closest"], body["compared"]) == (None, 0)
    assert start.get(f"/v1/debug/cache/{first}").status_code == 401


def test_an_unknown_request_is_a_404(client: Start) -> None:
    answer = client().get("/v1/debug/cache/chatcmpl-nothing")
    assert answer.status_code == 404
    assert "is remembered" in answer.json()["error"]["message"]


def test_usage_of_keys_and_sessions(client: Start) -> None:
    start = client(api_keys=["one", "two"])
    one, two = keys("one", "two")
    for session in ("s", "s", None):
        sent = {} if session is None else {"session_id": session}
        assert "x_inferno" not in chat(start, USER, body=sent, **one).json()
    tokens = len("<|im_start|>user\nWhat is a heap?<|im_end|>\n<|im_start|>assistant\n")
    used = start.get("/v1/usage", **one).json()
    assert used["requests"] == 3 and used["prompt_tokens"] == 3 * tokens
    assert used["completion_tokens"] == 33 and used["cached_tokens"] == 6
    assert used["total_tokens"] == 3 * tokens + 33
    assert used["models"]["fake"]["requests"] == 3
    session = start.get("/v1/usage", params={"session_id": "s"}, **one).json()
    assert (session["requests"], session["session_id"]) == (2, "s")
    for params, headers in (({}, two), ({"session_id": "s"}, two)):
        assert start.get("/v1/usage", params=params, **headers).json()["requests"] == 0


def test_embeddings_count_but_are_no_history(client: Start) -> None:
    start = client()
    start.post("/v1/embeddings", json={"input": ["ab", "c"]}, headers={"x-request-id": "e"})
    assert start.get("/v1/usage").json()["prompt_tokens"] == 3
    assert start.get("/v1/debug/cache/e").status_code == 404


def test_a_turn_that_comes_back_is_sent_as_it_was_generated(client: Start) -> None:
    """The fake says bytes; the tokenizer here would merge them."""
    llm = FakeLLM(reply="abc", tokenizer=MERGING, vocab_size=400)
    start = client(llm)
    answer = chat(start, USER).json()["choices"][0]["message"]
    chat(start, USER, answer, USER)
    first, second = (ids for ids, _ in llm.seen)
    assert second[: len(first) + 3] == (*first, *b"abc")
    assert MERGING.decode(second, skip_special_tokens=False) == llm.prompts[-1]
    assert tuple(MERGING.encode(llm.prompts[-1])) != second
