from __future__ import annotations

import json
from threading import get_ident
from typing import Any

import pytest
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM

from inferno.request.sampling_params import SamplingParams
from inferno.text import ChatTemplate
from inferno.text.template import SlowTemplateError

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
    }
]
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'


def ask(client: Any, **body: Any) -> Any:
    response = client.post(CHAT, json={"messages": MESSAGES, **body})
    assert response.status_code == 200, response.text
    return response.json()


def refusal(client: Any, **body: Any) -> Any:
    response = client.post(CHAT, json={"messages": MESSAGES, **body})
    assert response.status_code == 400, response.text
    return response.json()["error"]


def test_an_answer_has_openais_shape(client: Any) -> None:
    llm = FakeLLM()
    answer = ask(client(llm), model="fake")
    prompt = llm.prompts[-1]
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1_700_000_000
    assert answer == {
        "object": "chat.completion",
        "model": "fake",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": len(prompt),
            "completion_tokens": 11,
            "total_tokens": len(prompt) + 11,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
    }


def test_n_outputs_and_the_length_limit(client: Any) -> None:
    answer = ask(client(), n=2, max_tokens=4)
    assert [
        (c["index"], c["message"]["content"], c["finish_reason"]) for c in answer["choices"]
    ] == [
        (0, "Hell", "length"),
        (1, "Hell", "length"),
    ]
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}


def test_sampling_parameters_reach_the_engine(client: Any) -> None:
    llm = FakeLLM()
    sent = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.1,
        "repeat_last_n": 5,
        "seed": 7,
        "stop_token_ids": [3],
        "min_tokens": 1,
        "n": 2,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "prompt_logprobs": 1,
    }
    ask(
        client(llm),
        **sent,
        max_completion_tokens=9,
        max_tokens=5,
        stop="x",
        logit_bias={"5": -1},
        logprobs=True,
        top_logprobs=2,
    )
    params = llm.seen[-1][1]
    got = {name: getattr(params, name) for name in sent}
    assert got == {**sent, "stop_token_ids": (3,)}
    assert (params.max_tokens, params.stop, params.logit_bias, params.logprobs) == (
        9,
        ("x",),
        {5: -1},
        2,
    )


def test_what_is_not_given_is_the_checkpoints_own(client: Any) -> None:
    llm = FakeLLM(default_params=SamplingParams(temperature=0.3, top_k=7))
    ask(client(llm), top_k=5)
    params = llm.seen[-1][1]
    assert (params.temperature, params.top_k, params.max_tokens) == (0.3, 5, None)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"),
        ({"stop": ""}, "stop"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"cache_salt": "a/b"}, "cache_salt"),
        ({"cache_salt": "x" * 129}, "cache_salt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"tool_choice": "maybe"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function.name"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "add_generation_prompt"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"tools": TOOLS}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"thinking": {"type": "maybe"}}, "thinking.type"),
        ({"thinking": {"type": "enabled", "budget_tokens": -1}}, "thinking.budget_tokens"),
        ({"thinking_token_budget": -1}, "thinking_token_budget"),
        (
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
        ),
    ],
)
def test_what_cannot_be_done_is_a_400_that_names_the_field(
    client: Any, body: dict[str, Any], param: str
) -> None:
    llm = FakeLLM(
        template=ChatTemplate({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"})
    )
    error = refusal(client(llm), **body)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


def test_a_prompt_too_long_has_its_code(client: Any) -> None:
    assert refusal(client(FakeLLM(max_model_len=10)))["code"] == "context_length_exceeded"


def test_image_parts_are_refused_and_text_parts_read(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm)
    ask(
        http,
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            }
        ],
    )
    assert "a\nb" in llm.prompts[-1]
    image = [{"type": "image_url", "image_url": {"url": "data:"}}]
    error = refusal(http, messages=[{"role": "user", "content": image}])
    assert (error["param"], error["code"]) == ("messages[0].content[0]", "unsupported_parameter")


def test_roles_and_history_reach_the_template(client: Any) -> None:
    llm = FakeLLM()
    ask(
        client(llm),
        messages=[
            {"role": "developer", "content": "be brief"},
            {"role": "assistant", "content": "x", "reasoning": "first"},
            {"role": "assistant", "content": "y", "reasoning_content": "second"},
            {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        ],
    )
    assert "<|im_start|>system\nbe brief" in llm.prompts[-1]
    assert "<think>first</think>x" in llm.prompts[-1]
    assert "<think>second</think>y" in llm.prompts[-1]
    assert "<|im_start|>tool\n42" in llm.prompts[-1]


def test_the_last_message_can_be_continued(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm)
    ask(
        http,
        messages=[*MESSAGES, {"role": "assistant", "content": "Well,"}],
        continue_final_message=True,
    )
    assert llm.prompts[-1].endswith("Well,")
    ask(http, add_generation_prompt=False)
    assert llm.prompts[-1].endswith("<|im_end|>\n")


def test_template_variables_are_handed_over_and_strange_ones_named(client: Any) -> None:
    llm = FakeLLM()
    http = client(llm)
    answer = ask(http, chat_template_kwargs={"enable_thinking": False, "mood": 1})
    assert llm.prompts[-1].endswith("</think>\n\n")
    assert answer["x_inferno"] == {"ignored": ["chat_template_kwargs.mood"]}
    ask(http, reasoning_effort="none")
    assert llm.prompts[-1].endswith("</think>\n\n")
    ask(http, reasoning_effort="high")
    assert llm.prompts[-1].endswith("assistant\n")


def test_logprobs_have_tokens_bytes_and_alternatives(client: Any) -> None:
    content = ask(client(), logprobs=True, top_logprobs=2, max_tokens=1)["choices"][0]["logprobs"][
        "content"
    ]
    assert content == [
        {
            "token": "H",
            "logprob": -0.5,
            "bytes": [72],
            "top_logprobs": [
                {"token": "H", "logprob": -0.5, "bytes": [72]},
                {"token": "I", "logprob": -1.5, "bytes": [73]},
            ],
        }
    ]


def test_token_ids_and_prompt_logprobs_come_on_request(client: Any) -> None:
    llm = FakeLLM()
    answer = ask(client(llm), return_token_ids=True, prompt_logprobs=0, max_tokens=2)
    assert answer["choices"][0]["token_ids"] == list(b"He")
    assert answer["prompt_token_ids"] == list(llm.prompts[-1].encode())
    assert answer["prompt_logprobs"][:2] == [
        None,
        {"124": {"logprob": -0.5, "rank": 1, "decoded_token": "|"}},
    ]


def test_a_tool_call_is_an_object_and_says_so(client: Any) -> None:
    llm = FakeLLM(reply=f"<think>hm</think>\n{CALL}", response_template=RESPONSE_TEMPLATE)
    answer = ask(client(llm), tools=[*TOOLS, {"type": "web_search"}])
    choice = answer["choices"][0]
    call = choice["message"]["tool_calls"][0]
    assert call.pop("id").startswith("call_")
    assert call == {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["reasoning"] == choice["message"]["reasoning_content"] == "hm"
    assert answer["usage"]["completion_tokens_details"] == {"reasoning_tokens": 2}
    assert answer["x_inferno"] == {"ignored": ["tools[1]"]}
    assert "TOOLS 1" in llm.prompts[-1]


def test_no_tools_are_offered_where_none_may_be_chosen(client: Any) -> None:
    llm = FakeLLM(reply=CALL, response_template=RESPONSE_TEMPLATE)
    choice = ask(client(llm), tools=TOOLS, tool_choice="none")["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("stop", CALL)
    assert "TOOLS" not in llm.prompts[-1]


def test_a_call_cut_off_by_the_limit_is_content(client: Any) -> None:
    llm = FakeLLM(reply=CALL, response_template=RESPONSE_TEMPLATE)
    choice = ask(client(llm), tools=TOOLS, max_tokens=20)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("length", CALL[:20])


def test_the_reasoning_fields_name_can_be_chosen(client: Any) -> None:
    llm = FakeLLM(reply="<think>hm</think>yes", response_template=RESPONSE_TEMPLATE)
    message = ask(client(llm, reasoning="reasoning"))["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "yes", "refusal": None, "reasoning": "hm"}


def test_a_model_without_a_tokenizer_cannot_chat(client: Any) -> None:
    assert "no tokenizer" in refusal(client(FakeLLM(tokenizer=None)))["message"]


def test_a_long_conversation_is_encoded_aside(client: Any) -> None:
    llm = FakeLLM(max_model_len=10**6)
    ask(client(llm), messages=[{"role": "user", "content": "é" * 30_000}])
    assert len(llm.seen[-1][0]) == len(llm.prompts[-1].encode())


# --- streams --------------------------------------------------------------------------------------


def test_a_stream_has_its_order(live: Any) -> None:
    events = live().events(
        CHAT, messages=MESSAGES, stream_options={"include_usage": True}, frobnicate=1
    )
    *chunks, usage, done = events
    assert done == "[DONE]"
    assert {(c["id"], c["object"], c["created"], c["model"]) for c in [*chunks, usage]} == {
        (usage["id"], "chat.completion.chunk", usage["created"], "fake")
    }
    assert chunks[0]["choices"] == [
        {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
    ]
    assert chunks[0]["x_inferno"] == {"ignored": ["frobnicate"]}
    assert all("x_inferno" not in c for c in chunks[1:])
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == "Hello there"
    assert [c["choices"][0]["finish_reason"] for c in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["delta"] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(c["usage"] is None for c in chunks)
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 11


def test_without_asking_there_are_no_counts(live: Any) -> None:
    events = live().events(CHAT, messages=MESSAGES)
    assert all("usage" not in e for e in events[:-1])


def test_counts_can_come_all_along(live: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = live().events(CHAT, messages=MESSAGES, stream_options=options)
    counts = [e["usage"]["completion_tokens"] for e in events[:-1]]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 11)


def test_n_streams_in_one(live: Any) -> None:
    events = live().events(CHAT, messages=MESSAGES, n=3)
    texts = {0: "", 1: "", 2: ""}
    for event in events[:-1]:
        texts[event["choices"][0]["index"]] += event["choices"][0]["delta"].get("content", "")
    assert set(texts.values()) == {"Hello there"}


def test_a_streamed_text_is_escaped_whatever_it_holds(live: Any) -> None:
    reply = 'quote " backslash \\ newline \n\n data: é 😀 \x00 </s> %d %b'
    events = live(FakeLLM(reply=reply, chunk=1)).events(CHAT, messages=MESSAGES)
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events[:-1]) == reply


def test_streamed_logprobs_and_ids_lose_nothing(live: Any) -> None:
    llm = FakeLLM(reply=f"<think>hm</think>ok {CALL}", response_template=RESPONSE_TEMPLATE)
    events = live(llm).events(
        CHAT, messages=MESSAGES, logprobs=True, return_token_ids=True, tools=TOOLS
    )
    choices = [e["choices"][0] for e in events[:-1]]
    tokens = [t["token"] for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    assert "".join(tokens) == llm.reply
    assert [i for c in choices for i in c.get("token_ids", [])] == list(llm.reply.encode())


@pytest.mark.parametrize("chunk", [1, 5, 1000])
def test_a_streamed_tool_call_gives_its_name_once_then_arguments(live: Any, chunk: int) -> None:
    llm = FakeLLM(
        reply=f"<think>hm</think>{CALL}\n{CALL}", response_template=RESPONSE_TEMPLATE, chunk=chunk
    )
    events = live(llm).events(CHAT, messages=MESSAGES, tools=TOOLS)
    deltas = [e["choices"][0]["delta"] for e in events[:-1]]
    assert "".join(d.get("reasoning", "") for d in deltas) == "hm"
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "hm"
    calls = [c for d in deltas for c in d.get("tool_calls", [])]
    assert [c["index"] for c in calls] == [0, 0, 1, 1]
    assert [c["function"].get("name") for c in calls] == ["f", None, "f", None]
    assert len({c["id"] for c in calls if "id" in c}) == 2
    for index in (0, 1):
        parts = [c["function"]["arguments"] for c in calls if c["index"] == index]
        assert json.loads("".join(parts)) == {"a": 1}
    assert events[-2]["choices"][0]["finish_reason"] == "tool_calls"


def test_mistakes_are_found_before_a_stream_begins(live: Any) -> None:
    response = live().post(CHAT, messages=MESSAGES, stream=True, temperature=-1)
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")


class SlowTemplate(ChatTemplate):
    """Takes longer than the event loop allows, for messages that say so."""

    def __init__(self) -> None:
        super().__init__({"default": "{{ messages }}"})
        self.rendered: list[tuple[int, float | None]] = []
        """The threads, and the seconds that they had."""

    def render(self, messages: Any, seconds: float | None = None, /, **kwargs: Any) -> str:
        self.rendered.append((get_ident(), seconds))
        if seconds is not None or messages[0]["content"] == "for ever":
            raise SlowTemplateError("the chat template takes more than 2 s, line 1")
        return "hi"


def test_a_template_that_takes_long_is_rendered_beside_the_event_loop(client: Any) -> None:
    template = SlowTemplate()
    http = client(FakeLLM(template=template))
    template.rendered.clear()  # of the start
    assert ask(http)["choices"][0]["message"]["content"] == "Hello there"
    [(loop, brief), (beside, whole)] = template.rendered
    assert loop != beside and brief is not None and brief < 0.1 and whole is None
    error = refusal(http, messages=[{"role": "user", "content": "for ever"}])
    assert "line 1" in error["message"] and error["param"] is None
