"""Prepares a conversation for generation, for every endpoint that has messages: each makes a
`ChatRequest` of its body. Parses the outputs into reasoning, content and tool calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import define, evolve, field, frozen

from inferno.contracts import Delta, OutputParser
from inferno.errors import RequestError
from inferno.llm import TextDelta
from inferno.sampling_params import SamplingParams
from inferno.server.errors import unsupported
from inferno.server.generation import Prepared
from inferno.server.model import ChatPrompt, ServedModel
from inferno.server.parsing import Parsed
from inferno.server.schema import ChatRequest, sampling_values
from inferno.server.shape import Choice

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
    body, output_format = parsed.body, model.output_format
    tools, ignored_tools = _tools(body, model)
    params = _params(body, model, has_tools=bool(tools))
    prompt = await model.encode_chat(body, tools)
    prompt = evolve(prompt, token_ids=model.preprocessor.truncated(prompt.token_ids, params))
    prepared = Prepared.of(
        parsed,
        model=model.name(body.model),
        prompts=[prompt.token_ids],
        params=params,
        ignored=(*ignored_tools, *prompt.ignored),
        rendered=prompt.rendered,
    )
    parallel = body.parallel_tool_calls is not False
    parsers = [
        output_format.parser(prompt.text, tools, parallel=parallel) if output_format else None
        for _ in range(params.n)
    ]
    return Conversation(prepared, prompt, parsers)


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


def _tools(data: ChatRequest, model: ServedModel) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the function tools to offer, and the names of tools of other types, which clients send
    too but no model here can call. Raises RequestError."""
    choice, tools, ignored = data.tool_choice, [], []
    for i, tool in enumerate(data.tools or ()):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"tools[{i}] has no function.name",
                "Give it a name.",
                param=f"tools[{i}].function.name",
            )
        else:
            tools.append(tool)
    if isinstance(choice, dict) or choice == "required":
        raise unsupported("tool_choice", "Use auto or none: calls cannot be forced yet.")
    if choice not in (None, "auto", "none"):
        raise RequestError(
            f"invalid tool_choice {choice[:40]!r}", "Use auto or none.", param="tool_choice"
        )
    if choice == "none" or not tools:
        return [], tuple(ignored)
    if model.output_format is None or not model.output_format.has_tools:
        raise unsupported(
            "tools",
            "Its chat template shows no known format of tool calls: `inferno explain` says which "
            "formats there are, and --chat-format NAME sets one.",
        )
    return tools, tuple(ignored)


def _params(data: ChatRequest, model: ServedModel, *, has_tools: bool) -> SamplingParams:
    if data.top_logprobs and not data.logprobs:
        raise RequestError(
            "top_logprobs needs logprobs", "Set logprobs to true.", param="top_logprobs"
        )
    values: dict[str, Any] = {"max_tokens": None}
    if model.output_format is not None and model.output_format.writes_special(tools=has_tools):
        values["skip_special_tokens"] = False
    values |= sampling_values(data)
    if data.max_completion_tokens is not None:
        values["max_tokens"] = data.max_completion_tokens
    if data.logprobs:
        values["logprobs"] = data.top_logprobs or 0
    return evolve(model.preprocessor.default_params, **values)
