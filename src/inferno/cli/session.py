"""A model opened for a command: its plan, its engine, and their terminal output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import rich_click as click
from attrs import evolve, frozen

from inferno.cli import render
from inferno.cli.endings import Ending
from inferno.cli.options import chosen, plan_options
from inferno.cli.shares import how_to_join
from inferno.errors import CONTEXT_LENGTH_EXCEEDED, OptionError, RequestError
from inferno.host import load_torch_library
from inferno.llm import LLM, CompletionOutput, TextDelta
from inferno.llm.overflow import room, windows
from inferno.llm.preprocessor import Preprocessor
from inferno.llm.prompts import Prompt
from inferno.plan import Opened, Plan, open_model
from inferno.process.blocking import BlockingClient
from inferno.process.launch import EngineProcess, launch_early
from inferno.process.prepare import prepared
from inferno.request.sampling_params import SamplingParams

if TYPE_CHECKING:
    from inferno.core.engine import Engine

_Result = TypeVar("_Result")


@contextmanager
def opened(
    ref: str | None,
    values: dict[str, Any],
    chat_template: str | None = None,
    process: EngineProcess | None = None,
) -> Iterator[Run]:
    """Resolve and load the model, and print what runs and the start-up times; closed at the end.
    `process` is its engine's, if one was launched before."""
    process = process or launch_early()
    if process is None:
        load_torch_library()
    options = plan_options(values)
    clock = Clock()
    opened = open_model(chosen(ref), options)
    clock.lap("plan")
    how_to_join(opened.plan)
    engine: Engine | BlockingClient
    with opened:
        engine, plan, preprocessor = (
            _in_this_process(opened, chat_template, clock)
            if process is None and opened.plan.engines is None
            else _in_own_process(opened, chat_template, clock, process)
        )
    with LLM.of(engine, preprocessor) as llm:
        render.started(plan, clock.laps)
        [lora, *_] = [*preprocessor.adapters.uses, None]
        yield Run(llm, preprocessor, lora or plan.model_id, lora)


def _in_own_process(
    opened: Opened, chat_template: str | None, clock: Clock, process: EngineProcess | None
) -> tuple[BlockingClient, Plan, Preprocessor]:
    """Start the engine in its process, which is importing torch, and meanwhile read the text
    side."""
    engine = BlockingClient(opened.plan, process)
    try:
        preprocessor = Preprocessor.open(opened, chat_template)
        preprocessor.template.warm_up()
        clock.lap("text")
        plan = engine.wait_until_ready()
    except BaseException:
        engine.close()
        raise
    clock.lap("engine")
    return engine, plan, evolve(preprocessor, max_model_len=plan.max_model_len)


def _in_this_process(
    opened: Opened, chat_template: str | None, clock: Clock
) -> tuple[Engine, Plan, Preprocessor]:
    with prepared(opened) as packed, ThreadPoolExecutor(1, "inferno text") as beside:  # as in `LLM`
        text = beside.submit(Preprocessor.open, opened, chat_template)
        from inferno.process.ranks.engine import load_engine

        clock.lap("imports")
        engine = load_engine(opened, packed)
        clock.lap("load")
        preprocessor = text.result()
    clock.lap("text")
    return engine, engine.plan, preprocessor


class Clock:
    """Seconds per start-up stage, in order."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.laps[name], self._last = now - self._last, now


@frozen
class Run:
    """An open model, as commands use it."""

    llm: LLM
    preprocessor: Preprocessor
    model_id: str
    lora: str | None = None
    """The adapter that answers: the first one that the command line names."""

    @property
    def vocab_size(self) -> int:
        tokenizer = self.preprocessor.tokenizer
        return self.preprocessor.vocab_size or (tokenizer.vocab_size if tokenizer else 1)

    def params(self, **given: Any) -> SamplingParams:
        """The checkpoint's parameters for a person at a terminal, overridden by `given`."""
        return evolve(self.preprocessor.interactive_params, **given)

    def ending(
        self,
        params: SamplingParams,
        tokens: int,
        last: TextDelta | CompletionOutput | None,
        text: str,
    ) -> Ending:
        """Return why an answer ended, given its last delta or the whole, and its text."""
        if last is None:
            return Ending()
        is_empty = not text.strip() and last.stop_reason is None
        limit = self.preprocessor.max_model_len
        return Ending.of(last.finish_reason, tokens, params, limit, is_empty=is_empty)

    def prompt(self, text: str, *, system: str | None, thinking: bool | None, raw: bool) -> Prompt:
        """One user message, through the chat template if the model has one, unless `raw`."""
        if raw or not self.preprocessor.template.exists:
            if system is not None or thinking is not None:
                raise OptionError(
                    "--system and --thinking need a chat template",
                    "Leave them out; if --raw was given, leave it out instead.",
                )
            return text
        messages = [{"role": "system", "content": system}] if system is not None else []
        return self.chat_prompt([*messages, {"role": "user", "content": text}], thinking)

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]], thinking: bool | None) -> Prompt:
        return self.preprocessor.encode_chat(messages, **self._variables(thinking))

    def chat_text(self, messages: Sequence[Mapping[str, Any]], thinking: bool | None) -> str:
        """The text of `chat_prompt`."""
        return self.preprocessor.render_chat(messages, **self._variables(thinking))

    def fitting(
        self, messages: Sequence[Mapping[str, Any]], thinking: bool | None, max_tokens: int | None
    ) -> Sequence[Mapping[str, Any]]:
        """Return the messages without their oldest turns, as many as must go for an answer to
        fit."""
        limit = room(self.preprocessor.max_model_len, max_tokens)
        if self._fits(messages, thinking, limit) or self.preprocessor.tokenizer is None:
            return messages
        encode = self.preprocessor.tokenizer.encode
        sizes = [len(encode(str(each["content"]), add_special_tokens=False)) for each in messages]
        subset = messages
        for indices in windows([str(each["role"]) for each in messages], sizes, limit):
            subset = [messages[i] for i in indices]
            if self._fits(subset, thinking, limit):
                break
        return subset

    def _fits(
        self, messages: Sequence[Mapping[str, Any]], thinking: bool | None, limit: int
    ) -> bool:
        try:
            return len(self.chat_prompt(messages, thinking)) <= limit
        except RequestError as error:
            if error.code != CONTEXT_LENGTH_EXCEEDED:
                raise
            return False

    def _variables(self, thinking: bool | None) -> dict[str, Any]:
        """Variables for the chat template. Raises OptionError if it does not know them."""
        if thinking is None:
            return {}
        if "enable_thinking" not in self.preprocessor.template.source():
            raise OptionError(
                "this model's chat template cannot switch reasoning on or off",
                "Leave --thinking and --no-thinking out; in a chat: /think default.",
            )
        return {"enable_thinking": thinking}

    def stream(self, prompt: Prompt, params: SamplingParams) -> Ending:
        """Print the answer as it is generated, then its speed on stderr. Returns why it ended."""
        text, delta = "", None
        tokens, first, start = 0, None, time.perf_counter()
        for delta in self.llm.stream(prompt, params, lora=self.lora):
            first = first or time.perf_counter()
            tokens += len(delta.token_ids)
            text += delta.text
            sys.stdout.write(delta.text)
            sys.stdout.flush()
        end = time.perf_counter()
        click.echo()
        click.echo(
            speed(tokens, end - start, f"first after {(first or end) - start:.2f} s"), err=True
        )
        return self.ending(params, tokens, delta, text)

    def timed(self, call: Callable[[], _Result]) -> tuple[_Result, float]:
        start = time.perf_counter()
        result = call()
        return result, time.perf_counter() - start


def speed(tokens: int, seconds: float, more: str) -> str:
    rate = f"{tokens / max(seconds, 1e-9):.1f} tokens/s"
    text = f"{tokens} token{'s' * (tokens != 1)} in {seconds:.2f} s, {rate} ({more})"
    return click.style(text, dim=True)
