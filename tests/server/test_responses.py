"""The Responses API against the `openai` package, its own types and its stream helper."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import TestClient
from tests.server.conftest import Live, wait_until
from tests.server.server_fakes import RESPONSE_TEMPLATE, FakeLLM

from inferno.errors import QueueFullError
from inferno.server import ServerOptions, create_app
from inferno.server.access.keys import Keys
from inferno.server.observe.record import Record, current, in_record
from inferno.server.responses.background import Background
from inferno.server.responses.store import Store

openai = pytest.importorskip("openai")
from openai.types import responses as types  # noqa: E402
from pydantic import BaseModel, TypeAdapter  # noqa: E402

EVENT: Any = TypeAdapter(types.ResponseStreamEvent)
FUNCTION: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "strict": False,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Rome"}}</tool_call>'
SERVED: dict[str, Any] = {"response_template": RESPONSE_TEMPLATE, "max_model_len": 40_000}


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    server = Live(FakeLLM(**SERVED))
    yield server
    server.stop()


@pytest.fixture
def llm(served: Live) -> FakeLLM:
    fake = served.llm
    fake.reply, fake.delay, fake.endless, fake.dies_after = "Hello there", 0.0, False, None
    return fake


@pytest.fixture
def sdk(served: Live) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        yield client


def create(sdk: Any, **body: Any) -> Any:
    return sdk.responses.create(**{"model": "fake", "input": "hi", **body})


def post(served: Live, status: int = 400, **body: Any) -> Any:
    response = served.post("/v1/responses", **{"input": "hi"} | body)
    assert response.status_code == status, response.text
    return response.json()["error"] if status >= 400 else response.json()


def events(served: Live, **body: Any) -> list[tuple[str, Any]]:
    """A stream's events, each checked by the SDK's types."""
    text = served.post("/v1/responses", **{"input": "hi", "stream": True} | body).text
    pairs = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_python(event)
        pairs.append((event["type"].removeprefix("response."), event))
    assert [event["sequence_number"] for _, event in pairs] == list(range(len(pairs)))
    return pairs


# --- whole answers --------------------------------------------------------------------------------


def test_a_response_has_openais_shape(llm: FakeLLM, sdk: Any) -> None:
    response = create(sdk, instructions="Be brief.", temperature=0.5, max_output_tokens=50)
    types.Response.model_validate(response.to_dict())
    assert response.output_text == "Hello there"
    assert (response.status, response.error, response.incomplete_details) == (
        "completed",
        None,
        None,
    )
    assert response.id.startswith("resp_")
    assert response.output[0].id.startswith("msg_")
    assert (response.temperature, response.max_output_tokens) == (0.5, 50)
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (len(llm.prompts[-1]), 11)
    assert usage.total_tokens == usage.input_tokens + 11
    assert usage.input_tokens_details.cached_tokens == 2
    assert llm.prompts[-1].startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user")
    assert llm.seen[-1][1].max_tokens == 50


def test_reasoning_text_and_calls_are_items_in_order(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = f"<think>Hm.</think>Let me look.{CALL}"
    response = create(sdk, tools=[FUNCTION])
    types.Response.model_validate(response.to_dict())
    reasoning, message, call = response.output
    assert (reasoning.type, reasoning.content[0].text, reasoning.summary) == (
        "reasoning",
        "Hm.",
        [],
    )
    assert message.content[0].text == "Let me look."
    assert (call.type, call.name, json.loads(call.arguments)) == (
        "function_call",
        "get_weather",
        {"city": "Rome"},
    )
    assert (reasoning.id[:3], call.id[:3], call.call_id[:5]) == ("rs_", "fc_", "call_")
    assert response.usage.output_tokens_details.reasoning_tokens == 3


def test_a_length_limit_makes_it_incomplete(llm: FakeLLM, sdk: Any) -> None:
    response = create(sdk, max_output_tokens=4)
    assert (response.status, response.output_text) == ("incomplete", "Hell")
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"


def test_a_summary_and_sealed_reasoning_are_there_if_asked_for(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = "<think>Hm.</think>Yes"
    response = create(
        sdk, reasoning={"summary": "auto"}, include=["reasoning.encrypted_content"], store=False
    )
    reasoning = response.output[0]
    assert reasoning.summary[0].text == "Hm."
    # What a client keeps that sends back sealed reasoning only, such as Codex.
    item = {"type": "reasoning", "id": reasoning.id, "summary": []}
    item |= {"encrypted_content": reasoning.encrypted_content}
    history = [item, {"role": "assistant", "content": "Yes"}, {"role": "user", "content": "Sure?"}]
    create(sdk, input=history)
    assert "assistant\n<think>Hm.</think>Yes<|im_end|>" in llm.prompts[-1]


def test_reasoning_sealed_elsewhere_is_left_out(llm: FakeLLM, sdk: Any) -> None:
    for sealed in ("gAAAAABsecret", "inferno1:%%%", "inferno1:/w=="):
        item = {"type": "reasoning", "summary": [], "encrypted_content": sealed}
        create(sdk, input=[{"role": "user", "content": "a"}, item])
        assert "think" not in llm.prompts[-1]


def test_logprobs_come_with_the_text(llm: FakeLLM, served: Live, sdk: Any) -> None:
    llm.reply = "<think>Hm.</think>Yes"
    response = create(sdk, include=["message.output_text.logprobs"], top_logprobs=2)
    part = response.output[1].content[0]
    assert part.text.endswith("".join(p.token for p in part.logprobs)[-3:])
    assert len(part.logprobs[0].top_logprobs) == 2
    deltas = [e for kind, e in events(served, top_logprobs=0) if kind == "output_text.delta"]
    assert any(delta["logprobs"] for delta in deltas)


# --- streams --------------------------------------------------------------------------------------


def test_a_streams_events_are_in_openais_order(llm: FakeLLM, served: Live) -> None:
    pairs = events(served)
    assert [kind for kind, _ in pairs if not kind.endswith(".delta")] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert "".join(e["delta"] for kind, e in pairs if kind == "output_text.delta") == llm.reply
    assert pairs[0][1]["response"]["status"] == "in_progress"
    last = pairs[-1][1]["response"]
    assert last["usage"]["output_tokens"] == 11
    assert last["output"][0]["id"] == pairs[2][1]["item"]["id"]


def test_a_streams_items_are_those_of_the_whole_answer(llm: FakeLLM, served: Live) -> None:
    llm.reply = f"<think>Hm.</think>Let me look.{CALL}{CALL}"
    body = {"tools": [FUNCTION], "reasoning": {"summary": "auto"}, "top_logprobs": 1}
    whole = post(served, 200, **body)["output"]
    pairs = events(served, **body)
    done = [e["item"] for kind, e in pairs if kind == "output_item.done"]
    assert done == pairs[-1][1]["response"]["output"]

    def plain(items: Any) -> Any:
        hidden = ("id", "call_id")
        return [{k: v for k, v in item.items() if k not in hidden} for item in items]

    assert plain(done) == plain(whole)
    assert [e["output_index"] for kind, e in pairs if kind == "output_item.added"] == [0, 1, 2, 3]
    kinds = [kind for kind, _ in pairs]
    for kind in (
        "reasoning_text.delta",
        "reasoning_text.done",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "function_call_arguments.delta",
        "function_call_arguments.done",
    ):
        assert kind in kinds


def test_the_sdks_stream_helper_follows(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = f"<think>Hm.</think>Let me look.{CALL}"
    with sdk.responses.stream(model="fake", input="hi", tools=[FUNCTION]) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert final.output_text == "Let me look."
    assert final.output[-1].parsed_arguments == {"city": "Rome"} or final.output[-1].arguments


def test_parse_reads_a_schema_where_output_can_be_constrained(llm: FakeLLM, sdk: Any) -> None:
    class Answer(BaseModel):
        city: str

    llm.reply = '{"city": "Rome"}'
    try:
        response = sdk.responses.parse(model="fake", input="hi", text_format=Answer)
    except openai.BadRequestError as error:
        assert error.param == "text.format.schema"  # nothing compiles grammars
    else:
        assert response.output_parsed == Answer(city="Rome")


def test_a_limit_ends_a_stream_with_incomplete(llm: FakeLLM, served: Live) -> None:
    kind, last = events(served, max_output_tokens=4)[-1]
    assert (kind, last["response"]["status"]) == ("incomplete", "incomplete")
    assert last["response"]["output"][0]["content"][0]["text"] == "Hell"


def test_an_error_ends_a_stream_with_failed(llm: FakeLLM, served: Live) -> None:
    llm.dies_after = 2
    kind, last = events(served)[-1]
    assert (kind, last["response"]["status"]) == ("failed", "failed")
    assert last["response"]["error"] == {
        "code": "server_error",
        "message": "the engine process ended. Send it again.",
    }
    assert served.post("/v1/responses", input="hi").status_code == 503


# --- conversations of several turns ---------------------------------------------------------------


def test_an_agents_loop(llm: FakeLLM, sdk: Any) -> None:
    """Two tools and three turns, the whole conversation sent each time, as agents do."""
    other = FUNCTION | {"name": "get_time"}
    items: list[Any] = [{"role": "user", "content": "The weather in Rome, then the time?"}]
    for name, output in (("get_weather", "sunny"), ("get_time", "noon")):
        llm.reply = f"<think>Hm.</think>{CALL.replace('get_weather', name)}"
        response = create(sdk, input=items, tools=[FUNCTION, other], store=False)
        items += response.output
        call = response.output[-1]
        assert call.name == name
        result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
        items.append(result)
    llm.reply = "Sunny, and noon."
    response = create(sdk, input=items, tools=[FUNCTION, other], store=False)
    assert response.output_text == "Sunny, and noon."
    prompt = llm.prompts[-1]
    assert prompt.index("tool\nsunny") < prompt.index("tool\nnoon")
    assert prompt.count("<think>Hm.</think>") == 2


def test_previous_response_id_brings_the_whole_conversation(llm: FakeLLM, sdk: Any) -> None:
    first = create(sdk, input="one", instructions="Be brief.")
    second = create(sdk, input="two", previous_response_id=first.id)
    create(sdk, input="three", previous_response_id=second.id)
    assert llm.prompts[-1] == (
        "<|im_start|>user\none<|im_end|>\n<|im_start|>assistant\nHello there<|im_end|>\n"
        "<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nHello there<|im_end|>\n"
        "<|im_start|>user\nthree<|im_end|>\n<|im_start|>assistant\n"
    )
    assert second.previous_response_id == first.id


def test_a_chain_continues_a_tool_call(llm: FakeLLM, sdk: Any) -> None:
    llm.reply = CALL
    first = create(sdk, tools=[FUNCTION])
    llm.reply = "Sunny."
    call_id = first.output[-1].call_id
    output = {"type": "function_call_output", "call_id": call_id, "output": "sunny"}
    second = create(sdk, input=[output], previous_response_id=first.id, tools=[FUNCTION])
    assert second.output_text == "Sunny."
    assert "tool\nsunny" in llm.prompts[-1]


def test_a_stored_response_is_retrieved_listed_and_deleted(llm: FakeLLM, sdk: Any) -> None:
    made = create(sdk, input="one", metadata={"a": "b"})
    response = sdk.responses.retrieve(made.id)
    assert response.to_dict() == made.to_dict()
    assert response.metadata == {"a": "b"}
    items = list(sdk.responses.input_items.list(made.id))
    assert [item.content[0].text for item in items] == ["one"]
    sdk.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.delete(made.id)
    with pytest.raises(openai.BadRequestError) as caught:
        create(sdk, previous_response_id=made.id)
    assert caught.value.code == "previous_response_not_found"


def test_store_false_stores_nothing(llm: FakeLLM, sdk: Any) -> None:
    made = create(sdk, store=False)
    assert not made.store
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(made.id)


def test_a_conversation_grows_by_input_and_output(llm: FakeLLM, sdk: Any) -> None:
    conversation = sdk.conversations.create(
        items=[{"role": "user", "content": "zero"}], metadata={"topic": "x"}
    )
    made = create(sdk, input="one", conversation=conversation.id)
    assert made.conversation.id == conversation.id
    create(sdk, input="two", conversation={"id": conversation.id})
    assert llm.prompts[-1].count("Hello there") == 1
    items = list(sdk.conversations.items.list(conversation.id, order="asc", limit=2))
    shown = [item.content[0].text for item in items]
    assert shown == ["zero", "one", "Hello there", "two", "Hello there"]
    one = sdk.conversations.items.retrieve(items[1].id, conversation_id=conversation.id)
    assert one.content[0].text == "one"
    assert sdk.conversations.items.delete(one.id, conversation_id=conversation.id).metadata == {
        "topic": "x"
    }
    added = sdk.conversations.items.create(
        conversation.id, items=[{"role": "user", "content": "end"}]
    )
    assert added.data[0].content[0].text == "end"
    newest = sdk.conversations.items.list(conversation.id, limit=1)
    assert (newest.data[0].id, newest.has_more) == (added.data[0].id, True)
    assert len(list(sdk.conversations.items.list(conversation.id))) == 5
    updated = sdk.conversations.update(conversation.id, metadata={"topic": "y"})
    assert updated == sdk.conversations.retrieve(conversation.id)
    assert updated.metadata == {"topic": "y"}
    assert sdk.conversations.delete(conversation.id).deleted
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.retrieve(conversation.id)
    with pytest.raises(openai.NotFoundError):
        sdk.conversations.items.list(conversation.id)
    with pytest.raises(openai.NotFoundError):
        create(sdk, conversation=conversation.id)


def test_an_item_is_sent_by_reference(llm: FakeLLM, sdk: Any) -> None:
    made = create(sdk, input="one")
    reference = {"type": "item_reference", "id": made.output[0].id}
    create(sdk, input=[reference, {"role": "user", "content": "two"}])
    assert "assistant\nHello there<|im_end|>\n<|im_start|>user\ntwo" in llm.prompts[-1]
    with pytest.raises(openai.BadRequestError) as caught:
        create(sdk, input=[{"type": "item_reference", "id": "msg_unknown"}])
    assert caught.value.param == "input[0].id"


def test_a_running_response_is_cancelled(llm: FakeLLM, sdk: Any) -> None:
    llm.endless, llm.delay = True, 0.01
    stream = create(sdk, stream=True)
    id = next(stream).response.id
    while next(stream).type != "response.output_text.delta":
        pass
    assert sdk.responses.retrieve(id).status == "in_progress"
    assert sdk.responses.cancel(id).status == "cancelled"
    last = list(stream)[-1]
    assert (last.type, last.response.status) == ("response.incomplete", "cancelled")
    wait_until(lambda: not llm.live)
    stored = sdk.responses.retrieve(id)
    assert stored.output == last.response.output
    assert stored.output_text.startswith("Hel")
    assert sdk.responses.cancel(id).status == "cancelled"


def ended(sdk: Any, id: str) -> Any:
    wait_until(lambda: sdk.responses.retrieve(id).status not in ("queued", "in_progress"))
    return sdk.responses.retrieve(id)


def test_a_response_in_the_background_needs_no_connection(
    llm: FakeLLM, served: Live, sdk: Any
) -> None:
    llm.delay = 0.05
    made = create(sdk, background=True)
    assert made.status == "queued" and made.background and made.output == []
    done = ended(sdk, made.id)
    assert done.status == "completed" and done.output_text == "Hello there"
    assert done.background and done.usage.output_tokens == 11
    follow = create(sdk, previous_response_id=made.id)
    assert follow.status == "completed"


def test_a_response_in_the_background_is_cancelled(llm: FakeLLM, sdk: Any) -> None:
    llm.endless, llm.delay = True, 0.01
    made = create(sdk, background=True)
    wait_until(lambda: sdk.responses.retrieve(made.id).status == "in_progress")
    assert sdk.responses.cancel(made.id).status == "cancelled"
    wait_until(lambda: not llm.live)
    assert sdk.responses.retrieve(made.id).status == "cancelled"


def test_a_response_that_fails_in_the_background_says_why(llm: FakeLLM, sdk: Any) -> None:
    llm.dies_after = 2
    failed = ended(sdk, create(sdk, background=True).id)
    assert failed.status == "failed" and failed.error.code == "server_error"
    assert "the engine process ended" in failed.error.message
    assert failed.output_text == "Hello "


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"stream": True}, "stream"),
        ({"store": False}, "background"),
        ({"temperature": -1}, "temperature"),
    ],
)
def test_mistakes_are_told_before_the_background(
    llm: FakeLLM, served: Live, body: dict[str, Any], param: str
) -> None:
    assert post(served, background=True, **body)["param"] == param
    assert not llm.live


def test_a_server_that_stops_stores_what_it_had(tmp_path: Path) -> None:
    llm, path = FakeLLM(endless=True, delay=0.01), tmp_path / "store.sqlite"
    app = create_app(llm, ServerOptions(store=Store(path)))  # type: ignore[arg-type]
    with TestClient(app) as http:
        made = http.post("/v1/responses", json={"input": "hi", "background": True}).json()
        wait_until(lambda: bool(llm.made))
    assert not llm.live
    with TestClient(create_app(FakeLLM(), ServerOptions(store=Store(path)))) as http:  # type: ignore[arg-type]
        response = http.get(f"/v1/responses/{made['id']}").json()
    assert response["status"] == "failed" and "shut down" in response["error"]["message"]


def test_the_background_is_bounded_and_counts_for_its_key() -> None:
    async def check() -> None:
        ends: list[Record] = []
        key = Keys(["k"]).all[0]
        background = Background(ends.append, limit=1)
        begun, free = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            assert current() is not record
            begun.set()
            await free.wait()

        async with in_record(Record("r", "POST", "/", key=key), ends.append):
            record = current()
            await background.start(work, begun)
            assert key.account.running == 2
            with pytest.raises(QueueFullError):
                await background.start(work, asyncio.Event())
        assert key.account.running == 1
        free.set()
        await background.close()
        assert key.account.running == 0 and len(ends) == 2

    asyncio.run(check())


def test_what_has_ended_cannot_be_cancelled(llm: FakeLLM, sdk: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        sdk.responses.cancel(create(sdk).id)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.cancel("resp_unknown")


def test_a_client_that_goes_leaves_nothing_behind(llm: FakeLLM, served: Live, sdk: Any) -> None:
    llm.endless, llm.delay = True, 0.001
    with create(sdk, stream=True) as stream:
        id = next(stream).response.id
    wait_until(lambda: not llm.live)
    with pytest.raises(openai.NotFoundError):
        sdk.responses.retrieve(id)


def test_the_prompts_tokens_are_counted(llm: FakeLLM, sdk: Any) -> None:
    count = sdk.responses.input_tokens.count(model="fake", input="hi", instructions="Be brief.")
    assert count.input_tokens == create(sdk, instructions="Be brief.").usage.input_tokens


# --- what is ignored and refused ------------------------------------------------------------------

CODEX: dict[str, Any] = {
    "model": "fake",
    "instructions": "You are a coding agent. " * 1000,
    "input": [
        {
            "type": "message",
            "role": "developer",
            "content": [{"type": "input_text", "text": "<permissions>...</permissions>"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [
                {"type": "input_text", "text": "<environment_context>"},
                {"type": "input_text", "text": "List the files."},
            ],
        },
    ],
    "tools": [
        {
            "type": "function",
            "name": "exec_command",
            "description": "Runs a command",
            "strict": False,
            "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}},
        },
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
        },
        {
            "type": "namespace",
            "name": "mcp__x",
            "description": "Tools of x",
            "tools": [FUNCTION],
        },
        {"type": "web_search", "external_web_access": False},
        {"type": "local_shell"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": None,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199-aa",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "1"},
}


def test_what_codex_sends_is_answered(llm: FakeLLM, served: Live) -> None:
    llm.reply = '<tool_call>{"name": "exec_command", "arguments": {"cmd": "ls"}}</tool_call>'
    kind, last = events(served, **CODEX)[-1]
    assert kind == "completed"
    assert set(last["response"]["x_inferno"]["ignored"]) == {
        "client_metadata",
        "tools[1]",
        "tools[2]",
        "tools[3]",
        "tools[4]",
        "text.verbosity",
    }
    call = last["response"]["output"][0]
    assert (call["type"], call["name"]) == ("function_call", "exec_command")
    prompt = llm.prompts[-1]
    assert prompt.count("<|im_start|>system") == 1, "most templates have one place for it"
    assert "user\n<environment_context>\nList the files.<|im_end|>" in prompt
    assert "TOOLS 1" in prompt


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        ({"session_id": "s1", "prompt_cache_key": "other"}, {"session-id": "other"}),
        ({"prompt_cache_key": "s1"}, {"session-id": "other"}),
        ({}, {"session-id": "s1"}),
        ({}, {"session_id": "s1"}),
    ],
)
def test_a_session_has_many_names(
    client: Any, body: dict[str, Any], headers: dict[str, str]
) -> None:
    http = client(FakeLLM())
    assert http.post("/v1/responses", json={"input": "hi", **body}, headers=headers).is_success
    assert http.get("/v1/usage?session_id=s1").json()["requests"] == 1


def test_a_custom_tools_history_is_kept(llm: FakeLLM, sdk: Any) -> None:
    history: list[Any] = [
        {"role": "user", "content": "Patch it"},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "***"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "Done!"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ]
    answer = create(sdk, input=history)
    assert "tool\nDone!" in llm.prompts[-1]
    assert answer.x_inferno == {"ignored": ["input[3]"]}


def test_allowed_tools_are_the_only_ones_offered(llm: FakeLLM, sdk: Any) -> None:
    allowed: dict[str, Any] = {"type": "allowed_tools", "mode": "auto"}
    allowed |= {"tools": [{"type": "function", "name": "get_weather"}]}
    create(sdk, tools=[FUNCTION, FUNCTION | {"name": "b"}], tool_choice=allowed)
    assert "TOOLS 1" in llm.prompts[-1]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 5}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": []}, "input"),
        ({"input": [{"type": "novelty"}]}, "input[0].type"),
        ({"input": [{}]}, "input[0].type"),
        ({"input": [{"role": "boss", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [5]}]}, "input[0].content[0]"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "summary": "x"}]}, "input[0].summary"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "hosted"}}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": "json"}}, "text.format.type"),
        ({"reasoning": {"effort": 5}}, "reasoning.effort"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"temperature": -1}, "temperature"),
        ({"metadata": {"a": 5}}, "metadata"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "metadata"),
        ({"previous_response_id": "resp_unknown"}, "previous_response_id"),
        ({"previous_response_id": "../../etc/passwd"}, "previous_response_id"),
        ({"previous_response_id": "r", "conversation": "c"}, "previous_response_id"),
        ({"conversation": {}}, "conversation"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"messages": [5]}, "messages"),
        ({"input": "x" * 50_000}, "input"),
    ],
)
def test_a_mistake_is_named(llm: FakeLLM, served: Live, body: dict[str, Any], param: str) -> None:
    error = post(served, **body)
    assert error["param"] == param, error
    assert error["message"]


@pytest.mark.parametrize(
    "path",
    [
        "/v1/responses/x%00y",
        "/v1/responses/..%2F..%2Fetc",
        "/v1/responses/" + "x" * 500,
        "/v1/responses/resp_'%3BDROP TABLE records--",
        "/v1/conversations/conv_unknown/items",
        "/v1/conversations/conv_unknown/items/x",
    ],
)
def test_an_impossible_id_is_not_found(served: Live, path: str) -> None:
    import httpx

    assert httpx.get(served.url + path).status_code == 404


@pytest.mark.parametrize("query", ["limit=0", "limit=101", "limit=x", "order=up", "after=nothing"])
def test_a_bad_page_is_refused(llm: FakeLLM, served: Live, sdk: Any, query: str) -> None:
    import httpx

    path = f"/v1/responses/{create(sdk).id}/input_items?{query}"
    assert httpx.get(served.url + path).status_code == 400
