"""The `openai` package against `inferno serve demo`, a process of its own. What the model says is
its own affair."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.conftest import wait_until

openai = pytest.importorskip("openai")
if importlib.util.find_spec("inferno_demo") is None:
    pytest.skip("the demo model's package (inferno-demo) is not installed", allow_module_level=True)

MESSAGES: list[Any] = [{"role": "user", "content": "What does math.gcd do?"}]
ENDLESS = {"ignore_eos": True, "skip_special_tokens": False}
"""Every token is text, the model's end tokens too: a stream that keeps sending."""
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]


class Served:
    """A running `inferno serve`."""

    def __init__(self, ref: str = "demo", *options: str) -> None:
        command = [
            sys.executable,
            "-m",
            "inferno",
            "serve",
            ref,
            "--port",
            "0",
            "--api-key",
            "secret",
            *options,
        ]
        environment = {**os.environ, "NO_COLOR": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.log: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        wait_until(lambda: bool(self.url) or self.process.poll() is not None, 120)
        assert self.url, "".join(self.log)

    @property
    def url(self) -> str:
        match = re.search(r"Serving at (http://\S+?)/v1", "".join(self.log))
        return match[1] if match else ""

    @property
    def engine(self) -> int | None:
        """The engine's process id: the child that has torch loaded."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((path / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and "libtorch" in (path / "maps").read_text():
                    return int(path.name)
            except (OSError, ValueError):
                continue
        return None

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(40)
        finally:
            self.process.kill()
            assert self.process.stderr is not None
            self._reader.join(10)
            self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    server = Served()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def client(served: Served) -> Iterator[Any]:
    with openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="secret", timeout=60, max_retries=0
    ) as sdk:
        yield sdk


def chat(client: Any, **options: Any) -> Any:
    options = {"model": "demo", "messages": MESSAGES, "max_tokens": 12, "temperature": 0, **options}
    return client.chat.completions.create(**options)


def test_the_model_is_listed(client: Any) -> None:
    assert [m.id for m in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


def test_a_chat_answers_with_text_reason_and_counts(client: Any) -> None:
    answer = chat(client)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert 0 < answer.usage.completion_tokens <= 12
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_what_the_whole_answer_says(client: Any) -> None:
    whole = chat(client)
    chunks = list(chat(client, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert {c.id for c in chunks} == {chunks[0].id}


def test_a_prompt_seen_before_is_found_in_the_cache(client: Any) -> None:
    messages = [{"role": "user", "content": "word " * 60}]
    chat(client, messages=messages)
    usage = chat(client, messages=messages).usage
    assert 0 < usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_a_seed_repeats_and_n_differ(client: Any) -> None:
    options = {"seed": 7, "temperature": 2.0, "n": 3, "max_tokens": 16}
    first, second = ([c.message.content for c in chat(client, **options).choices] for _ in "12")
    assert first == second
    assert len(set(first)) > 1


def test_max_tokens_is_a_length_and_a_stop_text_a_stop(client: Any) -> None:
    text = chat(client, max_tokens=8).choices[0].message.content
    assert chat(client, max_tokens=2).choices[0].finish_reason == "length"
    stopped = chat(client, max_tokens=8, stop=[text[3:5]]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == text[: text.index(text[3:5])]
    assert stopped.model_extra["stop_reason"] == text[3:5]


def test_logprobs_are_there(client: Any) -> None:
    content = chat(client, logprobs=True, top_logprobs=3, max_tokens=4).choices[0].logprobs.content
    assert 0 < len(content) <= 4
    for token in content:
        assert len(token.top_logprobs) == 3
        assert token.logprob <= 0
        assert token.logprob == pytest.approx(token.top_logprobs[0].logprob)  # greedy took the best


def test_text_completions_score_an_echo(client: Any) -> None:
    answer = client.completions.create(
        model="demo", prompt="import math", echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    choice = answer.choices[0]
    assert choice.text.startswith("import math")
    assert choice.logprobs.token_logprobs[0] is None
    assert all(p <= 0 for p in choice.logprobs.token_logprobs[1:])
    assert "".join(choice.logprobs.tokens) == choice.text


def test_token_ids_are_a_prompt(client: Any, served: Served) -> None:
    headers = {"Authorization": "Bearer secret"}
    ids = httpx.post(
        f"{served.url}/tokenize", json={"prompt": "import math"}, headers=headers
    ).json()["tokens"]
    options: Any = {"model": "demo", "max_tokens": 5, "temperature": 0}
    by_ids = client.completions.create(prompt=ids, **options)
    by_text = client.completions.create(prompt="import math", **options)
    assert by_ids.choices[0].text == by_text.choices[0].text


def test_tools_are_offered_and_calls_come_apart(client: Any) -> None:
    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    message = chat(client, messages=messages, tools=TOOLS, max_tokens=60).choices[0].message
    streamed = chat(client, messages=messages, tools=TOOLS, max_tokens=60, stream=True)
    arguments = "".join(
        call.function.arguments or ""
        for c in streamed
        for call in (c.choices[0].delta.tool_calls or [])
    )
    assert message.content or message.tool_calls
    assert arguments == "".join(call.function.arguments for call in message.tool_calls or [])


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}


@pytest.mark.parametrize("stream", [False, True])
def test_answers_match_a_schema(client: Any, stream: bool) -> None:
    schema = {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 3}
    wanted = {"response_format": schema_format(schema), "temperature": 2.0, "max_tokens": 100}
    answer = chat(client, stream=stream, **wanted)
    if stream:
        chunks = [chunk.choices[0] for chunk in answer if chunk.choices]
        text, finish = "".join(c.delta.content or "" for c in chunks), chunks[-1].finish_reason
    else:
        text, finish = answer.choices[0].message.content, answer.choices[0].finish_reason
    value = json.loads(text)
    assert 1 <= len(value) <= 3 and set(value) <= {"a", "b"} and finish == "stop"


def test_errors_are_the_clients_own(client: Any, served: Served) -> None:
    with pytest.raises(openai.NotFoundError, match="demo"):
        chat(client, model="gpt-6")
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, response_format=schema_format({"type": "nothing"}))
    where = "response_format.json_schema.schema"
    assert (caught.value.code, caught.value.param) == ("invalid_grammar", where)
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, messages=[{"role": "user", "content": "word " * 5000}])
    assert caught.value.code == "context_length_exceeded"
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong") as other,
        pytest.raises(openai.AuthenticationError),
    ):
        other.models.list()


def test_unknown_fields_are_named(client: Any) -> None:
    answer = chat(client, extra_body={"frobnicate": True}, user="somebody")
    assert answer.model_extra["x_inferno"] == {"ignored": ["user", "frobnicate"]}


def test_a_client_that_leaves_frees_its_place(client: Any, served: Served) -> None:
    stream = client.completions.create(
        model="demo", prompt="import math", stream=True, max_tokens=2000, extra_body=ENDLESS
    )
    next(iter(stream))
    stream.close()
    headers = {"Authorization": "Bearer secret"}
    ended = {
        'inferno_num_requests_running{model_name="demo"} 0.0',
        'inferno_request_success_total{finished_reason="abort",model_name="demo"} 1.0',
    }

    def lines() -> set[str]:
        return set(httpx.get(f"{served.url}/metrics", headers=headers).text.splitlines())

    wait_until(lambda: ended <= lines())


@pytest.mark.slow
def test_sixty_four_streams_at_once_each_get_their_own_answer(client: Any, served: Served) -> None:
    prompts = [f"What is {i // 8 + 1} + {i % 8 + 1}?" for i in range(64)]

    async def ask(http: Any, prompt: str) -> tuple[str, str]:
        text, finish = "", ""
        stream = await http.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": prompt}],
            stream=True,
            temperature=0,
            max_tokens=40,
        )
        async for chunk in stream:
            text += chunk.choices[0].delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
        return text, finish

    async def all_of_them() -> list[tuple[str, str]]:
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="secret", max_retries=0
        ) as http:
            return await asyncio.gather(*(ask(http, prompt) for prompt in prompts))

    answers = asyncio.run(all_of_them())
    assert {finish for _, finish in answers} == {"stop"}
    right = [
        text == f"{p[8:-1]} = {eval(p[8:-1])}."
        for p, (text, _) in zip(prompts, answers, strict=True)
    ]
    assert sum(right) >= 60, answers


@pytest.mark.slow
def test_a_killed_engine_is_told_to_eight_streams_and_comes_back(
    client: Any, served: Served
) -> None:
    """Last: it takes the engine away."""

    async def stream(http: Any) -> str:
        answer = await http.completions.create(
            model="demo", prompt="import math", stream=True, max_tokens=2000, extra_body=ENDLESS
        )
        count = 0
        try:
            async for _ in answer:
                count += 1
                if count == 3:
                    started.release()
        except openai.APIError as error:
            return str(error.code)
        finally:
            started.release(8)  # nobody waits for one that is over
        return "ended"

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(
            base_url=f"{served.url}/v1", api_key="secret", max_retries=0
        ) as http:
            tasks = [asyncio.create_task(stream(http)) for _ in range(8)]
            for _ in tasks:
                while not started.acquire(blocking=False):
                    await asyncio.sleep(0.01)
            assert served.engine is not None
            os.kill(served.engine, signal.SIGKILL)
            return await asyncio.gather(*tasks)

    started = threading.Semaphore(0)
    assert asyncio.run(all_of_them()) == ["engine_restarting"] * 8
    wait_until(lambda: httpx.get(f"{served.url}/health").status_code == 200, 120)
    assert chat(client).choices[0].message.content
