from __future__ import annotations

from typing import Any

import pytest
from tests.server.server_fakes import FakeLLM

PATH = "/v1/completions"


def ask(client: Any, **body: Any) -> Any:
    response = client.post(PATH, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def test_an_answer_has_openais_shape(client: Any) -> None:
    answer = ask(client(), prompt="hi", model="fake")
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "text_completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "text": "Hello there",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 11,
            "total_tokens": 13,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_sixteen_tokens_unless_said(client: Any) -> None:
    llm = FakeLLM(endless=True)
    assert ask(client(llm), prompt="hi")["usage"]["completion_tokens"] == 16


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        ("hi", [b"hi"]),
        (["hi", "ho"], [b"hi", b"ho"]),
        ([104, 105], [b"hi"]),
        ([[104, 105], [104, 111]], [b"hi", b"ho"]),
    ],
)
def test_prompts_come_in_four_forms(client: Any, prompt: Any, ids: list[bytes]) -> None:
    llm = FakeLLM()
    answer = ask(client(llm), prompt=prompt, n=2, echo=True)
    assert [bytes(seen) for seen, _ in llm.seen] == ids
    assert [c["index"] for c in answer["choices"]] == list(range(2 * len(ids)))
    assert [c["text"] for c in answer["choices"]] == [
        i.decode() + "Hello there" for i in ids for _ in "12"
    ]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, ids))


def test_logprobs_have_the_old_shape(client: Any) -> None:
    logprobs = ask(client(), prompt="hi", max_tokens=2, logprobs=1)["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": ["H", "e"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"H": -0.5}, {"e": -0.5}],
        "text_offset": [0, 1],
    }
    assert (
        ask(client(), prompt="hi", max_tokens=1, logprobs=0)["choices"][0]["logprobs"][
            "top_logprobs"
        ]
        is None
    )


def test_an_echo_is_scored_but_for_its_first_token(client: Any) -> None:
    """What lm-eval sends."""
    answer = ask(client(), prompt="hi", max_tokens=1, logprobs=1, echo=True, seed=1, temperature=0)
    assert answer["choices"][0]["text"] == "hiH"
    assert answer["choices"][0]["logprobs"] == {
        "tokens": ["h", "i", "H"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None, {"i": -0.5}, {"H": -0.5}],
        "text_offset": [0, 1, 2],
    }


def test_an_echo_alone_generates_nothing(client: Any) -> None:
    answer = ask(client(), prompt="hi", max_tokens=0, logprobs=1, echo=True)
    assert answer["choices"][0]["text"] == "hi"
    assert answer["choices"][0]["logprobs"]["tokens"] == ["h", "i"]
    assert answer["usage"]["completion_tokens"] == 0


def test_token_ids_and_prompt_logprobs_come_on_request(client: Any) -> None:
    choice = ask(client(), prompt="hi", max_tokens=1, return_token_ids=True, prompt_logprobs=1)[
        "choices"
    ][0]
    assert (choice["prompt_token_ids"], choice["token_ids"]) == ([104, 105], [72])
    assert choice["prompt_logprobs"] == [
        None,
        {"105": {"logprob": -0.5, "rank": 1, "decoded_token": "i"}},
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "x", "suffix": "y"}, "suffix"),
        ({"prompt": "x", "best_of": 3}, "best_of"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens"),
        ({"prompt": "x", "logprobs": 21}, "logprobs"),
        ({"prompt": "x", "stream": True, "echo": True, "logprobs": 1}, "echo"),
        ({"prompt": "x", "stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"prompt": [999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
    ],
)
def test_what_cannot_be_done_is_a_400_that_names_the_field(
    refusing: Any, body: Any, param: str
) -> None:
    response = refusing.post(PATH, json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_best_of_may_equal_n(client: Any) -> None:
    assert len(ask(client(), prompt="x", n=2, best_of=2)["choices"]) == 2


def test_a_model_without_a_tokenizer_runs_on_token_ids(client: Any) -> None:
    http = client(FakeLLM(tokenizer=None))
    choice = ask(http, prompt=[1, 2], max_tokens=1, logprobs=1, return_token_ids=True)["choices"][0]
    assert (choice["token_ids"], choice["logprobs"]["tokens"]) == ([72], ["token_id:72"])


def test_a_stream_ends_with_reason_counts_and_mark(live: Any) -> None:
    events = live().events(
        PATH, prompt=["a", "b"], echo=True, stream_options={"include_usage": True}
    )
    *chunks, usage, done = events
    assert done == "[DONE]"
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {0: "aHello there", 1: "bHello there"}
    assert [c["choices"][0]["finish_reason"] for c in chunks].count("stop") == 2
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 24)


def test_streamed_logprobs_go_on_where_they_were(live: Any) -> None:
    events = live().events(PATH, prompt="a", logprobs=1)
    logprobs = [e["choices"][0]["logprobs"] for e in events[:-1]]
    assert [o for part in logprobs for o in part["text_offset"]] == list(range(11))
    assert "".join(t for part in logprobs for t in part["tokens"]) == "Hello there"
