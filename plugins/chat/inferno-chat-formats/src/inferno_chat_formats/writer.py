"""Writes tools into the messages of chat templates that have none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from inferno_chat_formats.spec import Calls, Slot

# Tried with a model of 135 million parameters: told so, it answers with the result. With tags
# around the result, or the tool's name before it, it repeats the tags, or the call.
_INSTRUCTION = """\
You can call these functions. Each line is one, with the JSON schema of its parameters:
{tools}

To call a function, write only this, with its name and arguments:
{call}
The result is in the next message. If you need no function, answer in plain words."""
_RESULT = "Result of the call:\n{content}"
_SHOWN = ("name", "description", "parameters")


@frozen
class Writer:
    """Writes calls as JSON objects between the markers of a description."""

    calls: Calls

    def instruction(self, tools: Sequence[Mapping[str, Any]]) -> str:
        shown = (
            {key: value for key in _SHOWN if (value := tool["function"].get(key)) is not None}
            for tool in tools
        )
        lines = "\n".join(json.dumps(each, ensure_ascii=False) for each in shown)
        example = self.call("function name", '{"parameter": "value"}')
        return _INSTRUCTION.format(tools=lines, call=example)

    def call(self, name: str, arguments: str) -> str:
        keys = self.calls.keys
        named = f"{json.dumps(keys.name)}: {json.dumps(name, ensure_ascii=False)}"
        written = f"{{{named}, {json.dumps(keys.arguments)}: {arguments}}}"
        parts = (written if part is Slot.OBJECT else str(part) for part in self.calls.call)
        return "".join(parts)

    def result(self, content: str) -> str:
        return _RESULT.format(content=content)
