"""Tools in a request: which ones the model is offered, and whether a grammar constrains its
calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from inferno.contracts import GrammarSpec, ToolChoice
from inferno.errors import RequestError
from inferno.server.fields.schema import ChatRequest
from inferno.server.http.errors import unsupported

if TYPE_CHECKING:
    from inferno.server.hosting.served_model import ServedModel

_CHOICES = "auto, none, required, or {type: function, function: {name: ...}}"
_ANSWER = "answer"


@frozen(kw_only=True)
class ToolUse:
    """The tools of a request, and what its answer may do with them."""

    offered: Sequence[dict[str, Any]] = ()
    """For the prompt and the parser."""
    callable: Sequence[dict[str, Any]] = ()
    """Those that may be called: all, or the named one."""
    forced: bool = False
    """Whether the answer must be a call."""
    parallel: bool = True
    ignored: tuple[str, ...] = field(default=())
    """Names of what has no effect."""

    @classmethod
    def of(cls, data: ChatRequest, model: ServedModel) -> ToolUse:
        """Read a request's tools. Those of other types, which clients send too but no model here
        can call, are ignored. Raises RequestError."""
        tools, ignored = _functions(data.tools or ())
        callable, mode = _chosen(tools, data.tool_choice)
        if mode == "none" or not tools:
            return cls(ignored=ignored)
        format = model.output_format
        if format is None or not format.has_tools:
            raise unsupported(
                "tools",
                "The server has no format of tool calls for this model: `inferno explain` says "
                "why. The chat format `generic` fits every chat template: --chat-format generic.",
            )
        parallel = data.parallel_tool_calls is not False
        use = cls(
            offered=tools,
            callable=callable,
            forced=mode == "required",
            parallel=parallel,
            ignored=ignored,
        )
        if use.strict and not use.forced and not _compiles_lark(model):
            strict = (
                f"tools[{i}].function.strict" for i, t in enumerate(data.tools or ()) if _strict(t)
            )
            return evolve(use, ignored=(*ignored, *strict))
        return use

    @property
    def strict(self) -> bool:
        """Whether a tool's schema is to be enforced."""
        return any(map(_strict, self.callable))

    def grammar(
        self, model: ServedModel, requested: GrammarSpec | None, prompt: str
    ) -> GrammarSpec | None:
        """Return what the output of the rendered prompt must match: calls, or else what is
        `requested`. Raises RequestError if calls are forced, and the format cannot say how they
        are written."""
        format = model.output_format
        if format is None or not self.offered:
            return requested
        if not self.forced and requested is None and not (self.strict and _compiles_lark(model)):
            return None
        choice: ToolChoice = "required" if self.forced or requested is not None else "auto"
        text = format.call_grammar(self.callable, prompt, choice=choice, parallel=self.parallel)
        if text is None and self.forced:
            raise unsupported(
                "tool_choice",
                "Use auto: this model's format has no grammar of calls. Another --chat-format of "
                "the server may have one.",
            )
        if text is None or (requested is not None and not self.forced and not _is_json(requested)):
            return requested
        if requested is not None and not self.forced:
            return _either(requested, text)
        return GrammarSpec(kind="lark", text=text, param="tool_choice" if self.forced else "tools")


def _functions(
    given: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    tools, ignored = [], []
    for i, tool in enumerate(given):
        function = tool.get("function")
        if tool.get("type", "function") != "function":
            ignored.append(f"tools[{i}]")
        elif not isinstance(function, dict) or not _is_name(function.get("name")):
            raise RequestError(
                f"tools[{i}] has no function.name",
                "Give it a name.",
                param=f"tools[{i}].function.name",
            )
        elif not isinstance(function.get("parameters") or {}, dict):
            raise RequestError(
                f"tools[{i}].function.parameters is not a JSON schema",
                "Send an object, or leave it out.",
                param=f"tools[{i}].function.parameters",
            )
        else:
            tools.append(tool)
    return tools, tuple(ignored)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 256


def _chosen(
    tools: list[dict[str, Any]], choice: str | dict[str, Any] | None
) -> tuple[list[dict[str, Any]], str]:
    """Return the tools that may be called, and auto, none or required. Raises RequestError."""
    if choice is None or choice in ("auto", "none"):
        return tools, str(choice or "auto")
    named = choice == "required"
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        mode = allowed.get("mode") if isinstance(allowed, dict) else None
        listed = allowed.get("tools") if isinstance(allowed, dict) else None
        if mode in ("auto", "required") and isinstance(listed, list):
            names = {_named(each) for each in listed}
            return _known(tools, names), mode
    elif isinstance(choice, dict) and (name := _named(choice)) is not None:
        return _known(tools, {name}), "required"
    if not named:
        raise RequestError(
            f"invalid tool_choice {str(choice)[:40]!r}", f"Use {_CHOICES}.", param="tool_choice"
        )
    if not tools:
        raise RequestError(
            "tool_choice is required, but there are no tools", "Send some.", param="tool_choice"
        )
    return tools, "required"


def _named(choice: Any) -> str | None:
    function = choice.get("function", choice) if isinstance(choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None


def _known(tools: list[dict[str, Any]], names: set[str | None]) -> list[dict[str, Any]]:
    chosen = [tool for tool in tools if tool["function"]["name"] in names]
    if not chosen or len(chosen) < len(names):
        known = ", ".join(tool["function"]["name"][:60] for tool in tools[:20])
        raise RequestError(
            "tool_choice names a tool that is not among the tools",
            f"Name one of: {known}." if known else "Send it in tools.",
            param="tool_choice",
        )
    return chosen


def _strict(tool: dict[str, Any]) -> bool:
    function = tool.get("function")
    return isinstance(function, dict) and function.get("strict") is True


def _compiles_lark(model: ServedModel) -> bool:
    return any(use.kind == "lark" for use in model.llm.plan.grammars)


def _is_json(spec: GrammarSpec) -> bool:
    return spec.kind in ("json_schema", "json_object")


def _either(requested: GrammarSpec, calls: str) -> GrammarSpec:
    """Return the grammar of an answer in JSON, or calls."""
    answer = json.loads(requested.text) if requested.kind == "json_schema" else {"type": "object"}
    if isinstance(answer, bool):
        answer = {} if answer else {"not": {}}
    schema = json.dumps(
        {**answer, "x-guidance": requested.embedded_json_options}, ensure_ascii=False
    )
    calls = calls.replace("start:", "calls_only:", 1)
    text = f"start: {_ANSWER}_only | calls_only\n{_ANSWER}_only: %json {schema}\n{calls}"
    return GrammarSpec(kind="lark", text=text, param=requested.param)
