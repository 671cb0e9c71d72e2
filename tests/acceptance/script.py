"""What the fake model says: it reads the prompt as text, decides, and writes its turn as its own
chat template would.

Questions and results are marked by their words, so that one script serves every chat format.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Sequence
from typing import Any

from attrs import frozen
from tests.acceptance.clients.words import (
    ANSWER,
    ASK_BOTH,
    ASK_PERSON,
    ASK_THOUGHT,
    ASK_TOOLS,
    BOTH,
    COUNT,
    HELLO,
    PERSON,
    SUM,
    THOUGHT,
    WARM,
)

from inferno.errors import RequestError
from inferno.llm.preprocessor import Preprocessor
from inferno.request.requests import Request

_WEATHER, _ADD = "get_weather", "add"
_OUTPUT_TOOLS = re.compile(r'(?<!"title": ")\b((?:Partial)?Person|final_result|json_tool_call)\b')
"""What clients call the tool by which they ask for an object."""
_SAY = re.compile(r"Say exactly: (\w+)")
_SYSTEM = re.compile(r"Answer in one word: (\w+)")
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key in keys},
                "required": list(keys),
            },
        },
    }
    for name, kind, keys in [
        (_WEATHER, "string", ("city",)),
        (_ADD, "integer", ("a", "b")),
        ("Person", "string", ("name", "age")),
    ]
]


def decide(prompt: str, ending: str = "") -> dict[str, Any]:
    """Return the assistant's message that follows a prompt. `ending` is the generation prompt."""
    known = [ASK_TOOLS, ASK_BOTH, ASK_PERSON, ASK_THOUGHT]
    at, question = max((prompt.rfind(each), each) for each in known)
    matches = list(_SAY.finditer(prompt))
    if matches and matches[-1].start() > at:
        return {"content": matches[-1][1]}
    if at < 0:
        word = _SYSTEM.search(prompt)
        return {"content": word[1] if word else HELLO}
    since, offered = prompt[at:], _WEATHER in prompt
    if question == ASK_THOUGHT:
        return {"content": COUNT, "reasoning_content": THOUGHT, "thinking": THOUGHT}
    if question == ASK_PERSON:
        if (tool := _OUTPUT_TOOLS.search(prompt)) is not None and PERSON not in since:
            return _calls((tool[1], {"name": "Ada Lovelace", "age": 36}))
        return {"content": PERSON}
    if not offered:
        return {"content": "I have no thermometer."}
    if question == ASK_BOTH:
        if since.count(WARM) >= 2:
            return {"content": BOTH}
        return _calls((_WEATHER, {"city": "Paris"}), (_WEATHER, {"city": "Rome"}))
    if SUM in since:
        return {"content": ANSWER}
    return _calls((_ADD, {"a": 19, "b": 23}) if WARM in since else (_WEATHER, {"city": "Paris"}))


def _calls(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "content": "",
        "tool_calls": [
            {
                "id": "",
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            for i, (name, arguments) in enumerate(calls)
        ],
    }


@frozen
class Script:
    """A `tests.fake_engine.Script` for one model's text side."""

    text: Preprocessor
    call_id: str = "call0000{index}"
    """How the model numbers its calls, in templates that write an id."""

    def __call__(self, request: Request) -> Iterable[int]:
        tokenizer = self.text.tokenizer
        assert tokenizer is not None, "the fake checkpoint has a tokenizer"
        prompt = tokenizer.decode(request.token_ids, skip_special_tokens=False)
        turn = self.write(decide(prompt), prompt)
        ids = tokenizer.encode(turn, add_special_tokens=False)
        return [*ids, self.text.eos_token_ids[0]]  # where the template ends no turn

    def write(self, turn: dict[str, Any], prompt: str) -> str:
        """Return the turn as the model writes it after `prompt`: what its template adds for it."""
        user = [{"role": "user", "content": "?"}]
        message = {"role": "assistant", **turn}
        for i, call in enumerate(turn.get("tool_calls", ())):
            call["id"] = self.call_id.format(name=call["function"]["name"], index=i)
        tools = _TOOLS if "tool_calls" in turn else None
        try:
            before = self._render(user, tools, opens=False)
            opening = self._render(user, tools, opens=True)[len(before) :]
            whole = self._render([*user, message], tools, opens=False)
        except RequestError:  # no chat template
            return str(turn["content"])
        header = re.sub(r"<\w*$", "", os.path.commonprefix([whole[len(before) :], opening]))
        written = whole[len(before) + len(header) :]
        extra = prompt.rpartition(header)[2] if header else ""
        if extra and len(extra) < 100:  # the prompt has opened, or skipped, the model's thoughts
            written = _after(extra, written, turn)
        return written.rstrip("\n")

    def _render(
        self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None, *, opens: bool
    ) -> str:
        return self.text.render_chat(messages, tools=tools, add_generation_prompt=opens)


def _after(extra: str, written: str, turn: dict[str, Any]) -> str:
    close = re.search(r"</\w+>|\[/THINK\]", extra)
    _, mark, rest = written.partition("</think>")
    answer = rest.lstrip("\n") if mark else written
    if "<think>" in extra and close is None:
        return f"{turn.get('reasoning_content', 'Well.')}\n</think>\n\n{answer}"
    return answer
