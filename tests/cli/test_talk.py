"""`generate`, `chat` and `bench` over a fake model that answers in words: what is printed, where,
and what is asked."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import define, field
from click.testing import CliRunner, Result

from inferno.cli import cli
from inferno.cli.session import Run
from inferno.errors import RequestError
from inferno.llm import CompletionOutput, RequestOutput, TextDelta
from inferno.llm.outputs import RequestMetrics
from inferno.process.launch import EngineProcess
from inferno.request.sampling_params import SamplingParams


@define
class FakeTemplate:
    exists: bool = True

    def source(self) -> str:
        return "{% if enable_thinking %}"


class Characters:
    """A tokenizer: each character is a token."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [*map(ord, text)]


@define
class FakePreprocessor:
    """A chat prompt is its messages, joined."""

    template: FakeTemplate = field(factory=FakeTemplate)
    interactive_params: SamplingParams = SamplingParams(max_tokens=None, temperature=0.6)
    max_model_len: int = 12
    tokenizer: Characters | None = None
    vocab_size: int = 10

    def chat_format(self) -> None:
        return None

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str:
        if "refuse" in messages[-1]["content"]:
            raise RequestError("No", "Ask something else.")
        text = " ".join(f"{m['role'][0]}:{m['content']}" for m in messages)
        return text + "".join(f" {key}={value}" for key, value in kwargs.items())


@define
class FakeLLM:
    """Says the prompt backwards, word by word."""

    preprocessor: FakePreprocessor = field(factory=FakePreprocessor)
    asked: list[tuple[Any, SamplingParams]] = field(factory=list)
    interrupt: bool = False
    silent: bool = False
    """It ends at once."""
    finish_reasons: list[str] = field(factory=list)
    """Of `generate`."""

    def stream(
        self, prompt: str, params: SamplingParams, lora: str | None = None
    ) -> Iterator[TextDelta]:
        self.asked.append((prompt, params))
        words, reason = prompt.split()[::-1], "stop"
        room = self.preprocessor.max_model_len - len(words)
        if (limit := min(params.max_tokens or room, room)) < len(words):
            words, reason = words[:limit], "length"
        for word in () if self.silent else words:
            yield TextDelta(index=0, text=word + " ", token_ids=(1,))
            if self.interrupt:
                self.interrupt = False
                raise KeyboardInterrupt
        yield TextDelta(index=0, token_ids=(2,) * (reason == "stop"), finish_reason=reason)

    def generate(
        self,
        prompts: Sequence[Any],
        params: SamplingParams | Sequence[SamplingParams],
        lora: str | None = None,
    ) -> list[RequestOutput]:
        each = [params] * len(prompts) if isinstance(params, SamplingParams) else params
        self.asked += zip(prompts, each, strict=True)
        reasons = self.finish_reasons or ["stop"] * len(prompts)
        answer = [
            CompletionOutput(index=0, text=f"[{prompt}]", token_ids=(1, 2), finish_reason=reason)
            for prompt, reason in zip(prompts, reasons, strict=True)
        ]
        now = RequestMetrics(0, 0, 0)
        return [
            RequestOutput(request_id="", prompt=None, prompt_token_ids=(), outputs=[a], metrics=now)
            for a in answer
        ]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    llm = FakeLLM()

    @contextlib.contextmanager
    def opened(
        ref: str | None,
        values: dict[str, Any],
        chat_template: str | None = None,
        process: EngineProcess | None = None,
    ) -> Iterator[Run]:
        yield Run(llm, llm.preprocessor, "toy")  # type: ignore[arg-type]

    monkeypatch.setattr("inferno.cli.session.opened", opened)
    return llm


def run(*args: str, stdin: str = "", code: int = 0) -> Result:
    result = CliRunner().invoke(cli, args, input=stdin)
    assert result.exit_code == code, result.output
    return result


def test_one_prompt_is_streamed_and_its_speed_told_on_stderr(llm: FakeLLM) -> None:
    result = run("generate", "toy", "--prompt", "what is it")
    assert result.stdout == "it is u:what \n"
    assert "4 tokens in" in result.stderr and "tokens/s" in result.stderr


def test_raw_and_template_less_prompts_go_as_they_are(llm: FakeLLM) -> None:
    run("generate", "--prompt", "as it is", "--raw")
    llm.preprocessor.template.exists = False
    run("generate", "--prompt", "as it is")
    assert [prompt for prompt, _ in llm.asked] == ["as it is", "as it is"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--max-tokens", "2"), "Cut after 2 tokens, the limit: a larger --max-tokens"),
        (("--system", "s " * 7), "Cut: the context of 12 tokens is full"),
    ],
)
def test_an_answer_that_is_cut_says_so_and_how_to_get_more(
    llm: FakeLLM, args: tuple[str, ...], said: str
) -> None:
    result = run("generate", "toy", "--prompt", "what is it then", *args)
    assert result.stdout.startswith("then ")
    assert said in result.stderr
    assert said not in run("generate", "toy", "--prompt", "what is it").stderr


def test_several_answers_that_are_cut_are_counted(llm: FakeLLM) -> None:
    llm.finish_reasons = ["length", "stop", "length"]
    result = run("generate", "--prompts", "a | b | c", "--max-tokens", "2")
    assert "2 of 3 answers: Cut after 2 tokens" in result.stderr


def test_a_model_that_ends_at_once_says_so(llm: FakeLLM) -> None:
    llm.silent = True
    output = run("generate", "-p", "The end.", "--raw").stderr
    assert "Nothing was generated" in output and "Without --raw" in output
    assert "Nothing was generated" in run("generate", "-p", "x").stderr
    output = run("chat", stdin="hm\n/retry\n").stderr
    assert output.count("ended at once, without an answer: /retry asks again") == 2
    assert [prompt for prompt, _ in llm.asked][-2:] == ["u:hm", "u:hm"]


def test_an_answer_goes_on_to_its_end(llm: FakeLLM) -> None:
    run("generate", "-p", "x")
    run("chat", stdin="x\n")
    assert [params.max_tokens for _, params in llm.asked] == [None, None]


def test_a_chat_says_where_an_answer_is_cut(llm: FakeLLM) -> None:
    result = run("chat", "--max-tokens", "2", stdin="what is it\n")
    assert "Cut after 2 tokens, the limit: /set max_tokens 8 raises it" in result.stderr
    result = run("chat", "--system", "s " * 9, stdin="what is it\n")
    assert "The context of 12 tokens is full. /undo" in result.stderr


def test_several_prompts_are_answered_in_their_order_under_headers(llm: FakeLLM) -> None:
    result = run("generate", "--prompts", "a | b c", "--prompt", "first", "--batch", "2")
    once = "--- first\n[u:first]\n--- a\n[u:a]\n--- b c\n[u:b c]\n"
    assert result.stdout == once * 2
    assert "12 tokens in" in result.stderr and "6 prompts" in result.stderr


def test_a_prompt_may_be_piped_in(llm: FakeLLM) -> None:
    assert run("generate", stdin="from a pipe\n").stdout == "pipe a u:from \n"


def test_no_prompt_at_all_is_a_usage_error(llm: FakeLLM) -> None:
    result = CliRunner().invoke(cli, ["generate"])
    assert result.exit_code == 2
    assert "--prompt" in result.output


def test_sampling_flags_change_the_model_s_own_defaults(llm: FakeLLM) -> None:
    flags = (
        "--max-tokens 7 --top-k 3 --stop END --stop-token-ids 5 --logit-bias 4=-100 "
        "--logit-bias 5=1.5 --seed 1"
    )
    run("generate", "-p", "x", *flags.split())
    assert llm.asked[0][1] == SamplingParams(
        temperature=0.6,
        max_tokens=7,
        top_k=3,
        stop=("END",),
        stop_token_ids=(5,),
        logit_bias={4: -100, 5: 1.5},
        seed=1,
    )


@pytest.mark.parametrize(
    "flags", [["--temperature", "-1"], ["--logit-bias", "4"], ["--raw", "--system", "s"]]
)
def test_impossible_values_are_usage_errors(llm: FakeLLM, flags: list[str]) -> None:
    result = CliRunner().invoke(cli, ["generate", "-p", "x", *flags])
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")


def test_system_and_thinking_reach_the_template(llm: FakeLLM) -> None:
    run("generate", "-p", "x", "--system", "be brief", "--no-thinking")
    assert llm.asked[0][0] == "s:be brief u:x enable_thinking=False"


def test_chat_remembers_until_reset(llm: FakeLLM) -> None:
    result = run("chat", "--system", "s", stdin="one\ntwo\n/reset\nthree\n/exit\nnever\n")
    assert [prompt for prompt, _ in llm.asked] == [
        "s:s u:one",
        "s:s u:one a:u:one s:s  u:two",
        "s:s u:three",
    ]
    assert result.stderr.count("tokens/s") == 3


def test_chat_goes_on_after_a_refused_message(llm: FakeLLM) -> None:
    result = run("chat", stdin="refuse this\nfine\n", code=2)
    assert "Error: No\nAsk something else." in result.stderr
    assert [prompt for prompt, _ in llm.asked] == ["u:fine"]


def test_ctrl_c_stops_an_answer_and_not_the_chat(llm: FakeLLM) -> None:
    llm.interrupt = True
    result = run("chat", stdin="stop me\ngo on\n")
    assert "stopped" in result.stderr
    assert [prompt for prompt, _ in llm.asked] == ["u:stop me", "u:stop me a:me  u:go on"]


def test_a_model_in_this_process_drops_the_oldest_turns_too(llm: FakeLLM) -> None:
    llm.preprocessor.max_model_len, llm.preprocessor.tokenizer = 100, Characters()
    lines = "".join(f"message {i}\n" for i in range(9))
    args = ("chat", "--system", "s", "--context-overflow", "drop-oldest", "--max-tokens", "20")
    result = run(*args, stdin=lines)
    prompts = [prompt for prompt, _ in llm.asked]
    assert len(prompts) == 9 and all(len(prompt) <= 80 for prompt in prompts)
    assert all(prompt.startswith("s:s u:message") for prompt in prompts)
    assert "message 0" not in prompts[-1] and "oldest messages are not sent" in result.stderr
    assert len({prompt.split()[2] for prompt in prompts}) < 9


def test_bench_of_ragged_requests_prints_their_numbers(llm: FakeLLM) -> None:
    report = json.loads(run("bench", "--ragged", "3", "--json").stdout)
    prompts = llm.asked[-3:]
    assert report["requests"] == 3 and all(params.ignore_eos for _, params in prompts)
    assert report["prompt_tokens"] == sum(len(prompt) for prompt, _ in prompts)
    assert report["output_tokens"] == sum(params.max_tokens or 0 for _, params in prompts)
    refused = run("bench", "--ragged", "3", "--input-len", "8", code=2)
    assert "--input-len does not apply to --ragged" in refused.stderr


def test_bench_prints_a_line_per_concurrency(llm: FakeLLM) -> None:
    result = run(
        "bench", "--concurrency", "1", "--concurrency", "4", "--input-len", "8", "--rounds", "1"
    )
    assert [line.split()[0] for line in result.stdout.splitlines()[2:]] == ["1", "4"]
    prompts = [tuple(prompt) for prompt, _ in llm.asked]
    assert {len(prompt) for prompt in prompts} == {8}
    assert all(params.ignore_eos and params.greedy for _, params in llm.asked)
