"""Prepares a conversation for generation, for every endpoint that has messages: each makes a
`ChatRequest` from its body. Parses the outputs into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from attrs import define, evolve, field, frozen

from inferno.contracts import Delta, OutputParser
from inferno.errors import RequestError
from inferno.llm import TextDelta
from inferno.request.sampling_params import MAX_LOGPROBS, SamplingParams
from inferno.server.chat.overflow import encode_fitting
from inferno.server.chat.thinking import Thinking
from inferno.server.chat.tool_choice import ToolUse
from inferno.server.fields.schema import ChatRequest, sampling_values
from inferno.server.generate.generation import Prepared
from inferno.server.generate.shape import Choice
from inferno.server.hosting.served_model import ChatPrompt, ServedModel
from inferno.server.http.parsing import Parsed

if TYPE_CHECKING:
    from inferno.text import Tokenizer


@frozen
class Conversation:
    """A conversation that is ready to be continued."""

    prepared: Prepared
    prompt: ChatPrompt
    parsers: Sequence[OutputParser | None]
    """One for each output; None if all of it is content."""


async def prepare(parsed: Parsed[ChatRequest], model: ServedModel) -> Conversation:
    """Check the request, render and tokenize its messages. Raises RequestError."""
    body, format = parsed.body, model.output_format
    use = ToolUse.of(body, model)
    special = format is not None and format.writes_special(tools=bool(use.offered))
    params = _params(body, model, keeps_special=special)
    prompt = await encode_fitting(body, model, use.offered, params.max_tokens)
    constrained = _held(params, use, model, prompt.text)
    params = model.preprocessor.reasoned(constrained, format, prompt.text)
    prompt = evolve(prompt, token_ids=model.preprocessor.truncated(prompt.token_ids, params))
    prepared = Prepared.of(
        parsed,
        model=model.name(body.model),
        prompts=[prompt.token_ids],
        params=params,
        ignored=(*use.ignored, *prompt.ignored, *_overruled(body, special)),
        rendered=prompt.rendered,
    )
    parsers = [
        format.parser(prompt.text, use.offered, parallel=use.parallel) if format else None
        for _ in range(params.n)
    ]
    return Conversation(prepared, prompt, parsers)


def _held(params: SamplingParams, use: ToolUse, model: ServedModel, prompt: str) -> SamplingParams:
    """Return the parameters with the grammar of calls, if there is one."""
    requested = params.structured_outputs
    spec = use.grammar(model, requested, prompt)
    return params if spec is requested else evolve(params, structured_outputs=spec)


def _overruled(data: ChatRequest, special: bool) -> tuple[str, ...]:
    """Return the names of fields that the format does not allow: without the special tokens that
    it writes, no parser could tell a call from content."""
    return ("skip_special_tokens",) if special and data.skip_special_tokens else ()


@define
class ParsedChoice(Choice):
    """An output that is parsed as it arrives."""

    parser: OutputParser | None = field(kw_only=True)
    deltas: list[Delta] = field(factory=list)
    """What is not written yet."""
    reasoning: list[str] = field(factory=list)
    """All reasoning, counted at the end."""
    has_calls: bool = False

    def take(self, delta: TextDelta) -> None:
        super().take(delta)
        for new in self._parsed(delta):
            self.deltas.append(new)
            if new.kind == "reasoning":
                self.reasoning.append(new.text)
            elif new.kind == "tool":
                self.has_calls = True
        if self.finish == "stop" and self.has_calls:
            self.finish = "tool_calls"

    def drain(self) -> list[Delta]:
        """Return what is new since the last call."""
        deltas, self.deltas = self.deltas, []
        return deltas

    def reasoning_tokens(self, tokenizer: Tokenizer | None) -> int | None:
        """Count by encoding the reasoning again; None if it cannot be separated from the output."""
        if self.parser is None or tokenizer is None:
            return None
        text = "".join(self.reasoning)
        return len(tokenizer.encode(text, add_special_tokens=False)) if text else 0

    def _parsed(self, delta: TextDelta) -> list[Delta]:
        if self.parser is None:
            return [Delta("content", delta.text)] if delta.text else []
        deltas = self.parser.feed(delta.text) if delta.text else []
        return deltas + self.parser.finish() if delta.finish_reason is not None else deltas


def arguments_object(text: str) -> dict[str, Any]:
    """Return a call's arguments as an object, for APIs that have no other. What the model wrote
    instead of one becomes its only member."""
    try:
        arguments = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, RecursionError):
        arguments = text
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _params(data: ChatRequest, model: ServedModel, *, keeps_special: bool) -> SamplingParams:
    if data.top_logprobs and not data.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs", "Set logprobs to true.", param="top_logprobs"
        )
    if not 0 <= (data.top_logprobs or 0) <= MAX_LOGPROBS:
        raise RequestError(
            f"top_logprobs is {data.top_logprobs}",
            f"It must be between 0 and {MAX_LOGPROBS}.",
            param="top_logprobs",
        )
    values: dict[str, Any] = {"max_tokens": None, **sampling_values(data)}
    if keeps_special:
        values["skip_special_tokens"] = False
    if (budget := Thinking.of(data).budget) is not None:
        values["thinking_token_budget"] = budget
    if data.max_completion_tokens is not None:
        values["max_tokens"] = data.max_completion_tokens
    if data.logprobs:
        values["logprobs"] = data.top_logprobs or 0
    return evolve(model.preprocessor.default_params, **values)
